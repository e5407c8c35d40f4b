"""Compiled loops over the index of the slot table; ``slot_table`` calls them and owns the arrays.

All kernels release the GIL, have explicit signatures (nothing is compiled in the middle of a run) and are cached on
disk. The home position of an index entry is the lower bits of the hash (the key group is made of the upper ones),
collisions probe linearly, deletion shifts back.

The arrays of the table are arguments of their own: in a tuple they would cost each call about 5 µs more than the 1 µs
that it takes, as Numba finds out the type of each array anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.bytes import prefetch, same_bytes
from weir.kernels.declare import brief_kernel, byte_kernel, byte_kernel_part, kernel
from weir.state.tables.cells.slot_layout import (
    ARENA_USED,
    DIRTY,
    FREE,
    I32,
    I64,
    I64_2D,
    IN_I32,
    IN_I64,
    IN_I64_2D,
    IN_U8,
    IN_U8_2D,
    IN_U64,
    LIVE,
    LIVE_KEY_BYTES,
    LOW_32,
    MASK,
    NEW,
    ONE,
    SHIFT,
    U8,
    U8_2D,
    U32,
    U64,
    USE,
    USED,
    USES_MAX,
    group_of,
)

#: Rows from one look ahead to the next: about what a row takes, and what memory takes to answer.
_AHEAD = 8


@byte_kernel_part
def _find(
    value: Any, data: Any, key_start: Any, key_stop: Any, table: Any, starts: Any, lengths: Any, arena: Any
) -> Any:
    """The key's slot, or -1 - (position in the index where it belongs)."""
    mask = np.uint64(table.size - 1)
    tag = value & LOW_32
    position = value & mask
    length = key_stop - key_start
    while True:
        entry = table[position]
        if entry == 0:
            return -1 - np.int64(position)
        if (entry >> SHIFT) == tag:
            slot = np.int64(entry & LOW_32) - 1
            if lengths[slot] == length and same_bytes(arena, starts[slot], data, key_start, length):
                return slot
        position = (position + ONE) & mask


@byte_kernel_part
def _fetch_ahead(
    hashes: Any, row: Any, table: Any, starts: Any, lengths: Any, arena: Any, flags: Any, stamps: Any
) -> None:
    """Have in the caches what :func:`_find` needs for later rows: each of these places is at random in megabytes.

    First an entry of the index; when that is there, what the entry leads to; and then the key.
    """
    mask = np.uint64(table.size - 1)
    later = row + 3 * _AHEAD
    if later < hashes.size:
        prefetch(table, np.int64(hashes[later] & mask))
    later = row + 2 * _AHEAD
    if later < hashes.size:
        slot = np.int64(table[hashes[later] & mask] & LOW_32) - 1
        if slot >= 0:
            prefetch(starts, slot)
            prefetch(lengths, slot)
            prefetch(flags, slot)
            prefetch(stamps, slot)
    later = row + _AHEAD
    if later < hashes.size:
        slot = np.int64(table[hashes[later] & mask] & LOW_32) - 1
        if slot >= 0:
            prefetch(arena, starts[slot])


_TABLE = (U64, I64, I32, U8)


@byte_kernel(
    types.int64(IN_U64, IN_U8, IN_I32, *_TABLE, U8, U32, types.uint32, types.uint8, I32),
    types.int64(IN_U64, IN_U8, IN_I64, *_TABLE, U8, U32, types.uint32, types.uint8, I32),
)
def probe(
    hashes: Any,
    data: Any,
    offsets: Any,
    table: Any,
    starts: Any,
    lengths: Any,
    arena: Any,
    flags: Any,
    stamps: Any,
    now: Any,
    mark: Any,
    slots: Any,
) -> int:
    """Slot of every row's key, -1 if it has none; found ones are pinned, and dirty if ``mark`` is ``DIRTY``, not 0.

    Returns the missing rows.
    """
    missing = 0
    for row in range(slots.size):
        _fetch_ahead(hashes, row, table, starts, lengths, arena, flags, stamps)
        slot = _find(
            hashes[row],
            data,
            np.int64(offsets[row]),
            np.int64(offsets[row + 1]),
            table,
            starts,
            lengths,
            arena,
        )
        if slot < 0:
            slots[row] = -1
            missing += 1
        else:
            slots[row] = slot
            uses = min((flags[slot] & USES_MAX) + USE, USES_MAX)
            flags[slot] = (flags[slot] & DIRTY) | mark | USED | uses
            stamps[slot] = now
    return missing


_INSERT = (*_TABLE, U8, U32, types.uint32, U64, I64_2D, U8_2D, I32, I32, I64)


@byte_kernel(
    types.int64(IN_U64, IN_U8, IN_I32, types.int64, I32, *_INSERT),
    types.int64(IN_U64, IN_U8, IN_I64, types.int64, I32, *_INSERT),
)
def insert_missing(
    hashes: Any,
    data: Any,
    offsets: Any,
    first_row: Any,
    slots: Any,
    table: Any,
    starts: Any,
    lengths: Any,
    arena: Any,
    flags: Any,
    stamps: Any,
    now: Any,
    slot_hashes: Any,
    cells: Any,
    presence: Any,
    free_slots: Any,
    new_slots: Any,
    counters: Any,
) -> int:
    """Give rows without a slot one, the same for equal keys, from ``first_row`` on.

    Returns the row at which slots or arena ran out; ``slots.size`` when all rows are done.
    """
    for row in range(first_row, slots.size):
        if slots[row] >= 0:
            continue
        start = np.int64(offsets[row])
        stop = np.int64(offsets[row + 1])
        slot = _find(hashes[row], data, start, stop, table, starts, lengths, arena)
        if slot < 0:
            position = -1 - slot
            length = stop - start
            used = counters[ARENA_USED]
            if counters[FREE] == 0 or used + length > arena.size:
                return row
            counters[FREE] -= 1
            slot = np.int64(free_slots[counters[FREE]])
            table[position] = ((hashes[row] & LOW_32) << SHIFT) | np.uint64(slot + 1)
            for index in range(length):
                arena[used + index] = data[start + index]
            starts[slot] = used
            lengths[slot] = length
            slot_hashes[slot] = hashes[row]
            for cell in range(cells.shape[1]):
                cells[slot, cell] = 0
            for byte in range(presence.shape[1]):
                presence[slot, byte] = 0
            flags[slot] = USED | DIRTY
            stamps[slot] = now
            counters[ARENA_USED] = used + length
            counters[LIVE_KEY_BYTES] += length
            counters[LIVE] += 1
            new_slots[counters[NEW]] = slot
            counters[NEW] += 1
        slots[row] = slot
    return int(slots.size)


@byte_kernel(
    types.int64(
        IN_U64,
        IN_U8,
        I64,
        IN_I64_2D,
        IN_U8_2D,
        MASK,
        types.boolean,
        *_TABLE,
        U8,
        U32,
        U64,
        I64_2D,
        U8_2D,
        I32,
        I64,
    )
)
def put_clean(
    hashes: Any,
    data: Any,
    offsets: Any,
    new_cells: Any,
    new_presence: Any,
    wanted: Any,
    may_insert: Any,
    table: Any,
    starts: Any,
    lengths: Any,
    arena: Any,
    flags: Any,
    stamps: Any,
    slot_hashes: Any,
    cells: Any,
    presence: Any,
    free_slots: Any,
    counters: Any,
) -> int:
    """Set keys of the groups in the mask ``wanted`` to what the store has of them: neither dirty nor pinned.

    Returns the row at which slots or arena ran out, ``hashes.size`` when all rows are done; rows of an earlier call
    may come again. Without ``may_insert`` only keys that have a slot are set.
    """
    for row in range(hashes.size):
        if not wanted[group_of(hashes[row], wanted.size)]:
            continue
        start, stop = offsets[row], offsets[row + 1]
        slot = _find(hashes[row], data, start, stop, table, starts, lengths, arena)
        if slot < 0:
            if not may_insert:
                continue
            length = stop - start
            used = counters[ARENA_USED]
            if counters[FREE] == 0 or used + length > arena.size:
                return row
            position = -1 - slot
            counters[FREE] -= 1
            slot = np.int64(free_slots[counters[FREE]])
            table[position] = ((hashes[row] & LOW_32) << SHIFT) | np.uint64(slot + 1)
            for index in range(length):
                arena[used + index] = data[start + index]
            starts[slot] = used
            lengths[slot] = length
            slot_hashes[slot] = hashes[row]
            counters[ARENA_USED] = used + length
            counters[LIVE_KEY_BYTES] += length
            counters[LIVE] += 1
        for cell in range(cells.shape[1]):
            cells[slot, cell] = new_cells[row, cell]
        for byte in range(presence.shape[1]):
            presence[slot, byte] = new_presence[row, byte]
        flags[slot] = USED
        stamps[slot] = 0
    return int(hashes.size)


@kernel(types.void(I32, U64, U64, I32, U8, I32, I64))
def remove_slots(
    slots: Any, table: Any, slot_hashes: Any, lengths: Any, flags: Any, free_slots: Any, counters: Any
) -> None:
    """Take slots out of the index and free them; their key bytes stay as waste until the arena is compacted."""
    mask = np.uint64(table.size - 1)
    for slot in slots:
        position = slot_hashes[slot] & mask
        while (table[position] & LOW_32) != np.uint64(slot + 1):
            position = (position + ONE) & mask
        # Close the gap: an entry moves back unless its home lies after the gap.
        follower = (position + ONE) & mask
        while table[follower] != 0:
            home = (table[follower] >> SHIFT) & mask
            if ((follower - home) & mask) >= ((follower - position) & mask):
                table[position] = table[follower]
                position = follower
            follower = (follower + ONE) & mask
        table[position] = 0
        flags[slot] = 0
        counters[LIVE] -= 1
        counters[LIVE_KEY_BYTES] -= lengths[slot]
        free_slots[counters[FREE]] = slot
        counters[FREE] += 1


@kernel(types.void(I32, I32, U8, I32, I64))
def free_slots(slots: Any, lengths: Any, flags: Any, free: Any, counters: Any) -> None:
    """Free slots, which are still in the index; their key bytes stay as waste until the arena is compacted."""
    for slot in slots:
        flags[slot] = 0
        counters[LIVE] -= 1
        counters[LIVE_KEY_BYTES] -= lengths[slot]
        free[counters[FREE]] = slot
        counters[FREE] += 1


@kernel(types.void(U8, U64, U64))
def rebuild_index(flags: Any, slot_hashes: Any, table: Any) -> None:
    """Fill an empty index with all used slots."""
    mask = np.uint64(table.size - 1)
    for slot in range(flags.size):
        if flags[slot] & USED:
            position = slot_hashes[slot] & mask
            while table[position] != 0:
                position = (position + ONE) & mask
            table[position] = ((slot_hashes[slot] & LOW_32) << SHIFT) | np.uint64(slot + 1)


@kernel(types.void(MASK, U64, U64, I32, U8, I32, I64))
def remove_groups(
    wanted: Any,
    table: Any,
    slot_hashes: Any,
    lengths: Any,
    flags: Any,
    free_slots: Any,
    counters: Any,
) -> None:
    """Free all slots of the key groups in the mask ``wanted``, and fill the index anew with the others.

    The others are entered in the order of the index, so that it is walked in order and not at random.
    """
    for slot in range(flags.size - 1, -1, -1):
        if flags[slot] & USED and wanted[group_of(slot_hashes[slot], wanted.size)]:
            flags[slot] = 0
            counters[LIVE] -= 1
            counters[LIVE_KEY_BYTES] -= lengths[slot]
            free_slots[counters[FREE]] = slot
            counters[FREE] += 1
    mask = np.uint64(table.size - 1)
    # Probing wraps around, so begin after a free entry: no run is then split.
    first = np.uint64(0)
    while table[first] != 0:
        first += ONE
    for step in range(table.size):
        position = (first + np.uint64(step)) & mask
        entry = table[position]
        if entry == 0:
            continue
        table[position] = 0
        if flags[np.int64(entry & LOW_32) - 1] & USED:
            # Its home is in the part that has been filled anew, or it is the position itself.
            home = (entry >> SHIFT) & mask
            while table[home] != 0:
                home = (home + ONE) & mask
            table[home] = entry


@brief_kernel(types.int64(types.uint64, IN_U8, *_TABLE, I64_2D, U8_2D, I64, U8))
def peek(
    value: Any,
    key: Any,
    table: Any,
    starts: Any,
    lengths: Any,
    arena: Any,
    cells: Any,
    presence: Any,
    cells_out: Any,
    presence_out: Any,
) -> int:
    """Copy what the slot of a key has; returns the slot, or -1: the key has none.

    Another thread may change the table meanwhile. Then what is returned means nothing, but nothing outside the arrays
    is read, and it ends.
    """
    mask = np.uint64(table.size - 1)
    tag = value & LOW_32
    position = value & mask
    for _ in range(table.size):
        entry = table[position]
        if entry == 0:
            return -1
        slot = np.int64(entry & LOW_32) - 1
        if (entry >> SHIFT) == tag and 0 <= slot < lengths.size and slot < cells.shape[0]:
            start = starts[slot]
            length = key.size
            if lengths[slot] == length and start >= 0 and start + length <= arena.size:
                index = 0
                while index < length and arena[start + index] == key[index]:
                    index += 1
                if index == length:
                    cells_out[:] = cells[slot, :]
                    presence_out[:] = presence[slot, :]
                    return int(slot)
        position = (position + ONE) & mask
    return -1
