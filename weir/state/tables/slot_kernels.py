"""Compiled loops of the slot table. Called by ``weir.state.tables.slot_table`` only, which owns the arrays.

All kernels release the GIL, have explicit signatures (nothing is compiled in the middle of a run) and are cached on
disk. An index entry is ``(lower 32 bits of the hash) << 32 | slot + 1``; 0 is free. Its home position is the lower
bits of the hash (the key group is made of the upper ones), collisions probe linearly, deletion shifts back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels import kernel, kernel_part

#: Bits of ``flags[slot]``.
USED, DIRTY = 1, 2
#: A counter of two bits: how often the hand of the clock passes a slot by. See :func:`select_victims`.
USE, USES_MAX = 4, 12
#: Positions in ``counters``.
LIVE, FREE, ARENA_USED, LIVE_KEY_BYTES, HAND, NEW = range(6)
COUNTERS = 6


def _input(dtype: Any) -> Any:
    return types.Array(dtype, 1, "C", readonly=True, aligned=False)


_IN_U8, _IN_U64, _IN_I32, _IN_I64 = (
    _input(dtype) for dtype in (types.uint8, types.uint64, types.int32, types.int64)
)
_U8, _U32, _U64, _I32, _I64, _U16 = (
    dtype[::1] for dtype in (types.uint8, types.uint32, types.uint64, types.int32, types.int64, types.uint16)
)
_U8_2D, _I64_2D = types.uint8[:, ::1], types.int64[:, ::1]

_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ONE = np.uint64(1)


@kernel_part
def _find(
    value: Any, data: Any, key_start: Any, key_stop: Any, table: Any, starts: Any, lengths: Any, arena: Any
) -> Any:
    """The key's slot, or -1 - (position in the index where it belongs)."""
    mask = np.uint64(table.size - 1)
    tag = value & _LOW_32
    position = value & mask
    length = key_stop - key_start
    while True:
        entry = table[position]
        if entry == 0:
            return -1 - np.int64(position)
        if (entry >> _SHIFT) == tag:
            slot = np.int64(entry & _LOW_32) - 1
            if lengths[slot] == length:
                start = starts[slot]
                index = 0
                while index < length and arena[start + index] == data[key_start + index]:
                    index += 1
                if index == length:
                    return slot
        position = (position + _ONE) & mask


_MASK = types.boolean[::1]


@kernel_part
def _group_of(value: Any, groups: Any) -> Any:
    """As ``weir.keys.key_groups``."""
    return ((value >> _SHIFT) * np.uint64(groups)) >> _SHIFT


_TABLE = (_U64, _I64, _I32, _U8)


@kernel(
    types.int64(_IN_U64, _IN_U8, _IN_I32, *_TABLE, _U8, _U32, types.uint32, types.uint8, _I32),
    types.int64(_IN_U64, _IN_U8, _IN_I64, *_TABLE, _U8, _U32, types.uint32, types.uint8, _I32),
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


_INSERT = (*_TABLE, _U8, _U32, types.uint32, _U64, _I64_2D, _U8_2D, _I32, _I32, _I64)


@kernel(
    types.int64(_IN_U64, _IN_U8, _IN_I32, types.int64, _I32, *_INSERT),
    types.int64(_IN_U64, _IN_U8, _IN_I64, types.int64, _I32, *_INSERT),
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
            table[position] = ((hashes[row] & _LOW_32) << _SHIFT) | np.uint64(slot + 1)
            for index in range(length):
                arena[used + index] = data[start + index]
            starts[slot] = used
            lengths[slot] = length
            slot_hashes[slot] = hashes[row]
            cells[slot, :] = 0
            presence[slot, :] = 0
            flags[slot] = USED | DIRTY
            stamps[slot] = now
            counters[ARENA_USED] = used + length
            counters[LIVE_KEY_BYTES] += length
            counters[LIVE] += 1
            new_slots[counters[NEW]] = slot
            counters[NEW] += 1
        slots[row] = slot
    return int(slots.size)


_IN_I64_2D = types.Array(types.int64, 2, "C", readonly=True, aligned=False)
_IN_U8_2D = types.Array(types.uint8, 2, "C", readonly=True, aligned=False)


@kernel(
    types.int64(
        _IN_U64,
        _IN_U8,
        _I64,
        _IN_I64_2D,
        _IN_U8_2D,
        _MASK,
        types.boolean,
        *_TABLE,
        _U8,
        _U32,
        _U64,
        _I64_2D,
        _U8_2D,
        _I32,
        _I64,
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
        if not wanted[_group_of(hashes[row], wanted.size)]:
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
            table[position] = ((hashes[row] & _LOW_32) << _SHIFT) | np.uint64(slot + 1)
            for index in range(length):
                arena[used + index] = data[start + index]
            starts[slot] = used
            lengths[slot] = length
            slot_hashes[slot] = hashes[row]
            counters[ARENA_USED] = used + length
            counters[LIVE_KEY_BYTES] += length
            counters[LIVE] += 1
        cells[slot, :] = new_cells[row, :]
        presence[slot, :] = new_presence[row, :]
        flags[slot] = USED
        stamps[slot] = 0
    return int(hashes.size)


@kernel(types.int64(types.int64, _U8, _U32, types.uint32, _I64, _I32))
def select_victims(wanted: Any, flags: Any, stamps: Any, now: Any, counters: Any, victims: Any) -> int:
    """Choose slots to evict by CLOCK with counters: the hand takes a slot that was not used, else counts its uses down.

    A new key has none, so one that comes once makes room for those that come again. Under Zipf 1.1, with a quarter of
    the keys cached, 8.4 % of the rows miss instead of the 9.5 % of one bit that new keys have set (measured by
    tests/weir/state/test_columnar.py).

    Slots stamped ``now`` are pinned. Victims are stamped too, so that none is chosen twice. Returns how many.
    """
    count = 0
    hand = counters[HAND]
    for _ in range((USES_MAX // USE + 1) * flags.size):
        if count == wanted:
            break
        if flags[hand] & USED and stamps[hand] != now:
            if flags[hand] & USES_MAX:
                flags[hand] -= USE
            else:
                victims[count] = hand
                stamps[hand] = now
                count += 1
        hand += 1
        if hand == flags.size:
            hand = 0
    counters[HAND] = hand
    return count


@kernel(types.void(_I32, _U64, _U64, _I32, _U8, _I32, _I64))
def remove_slots(
    slots: Any, table: Any, slot_hashes: Any, lengths: Any, flags: Any, free_slots: Any, counters: Any
) -> None:
    """Take slots out of the index and free them; their key bytes stay as waste until the arena is compacted."""
    mask = np.uint64(table.size - 1)
    for slot in slots:
        position = slot_hashes[slot] & mask
        while (table[position] & _LOW_32) != np.uint64(slot + 1):
            position = (position + _ONE) & mask
        # Close the gap: an entry moves back unless its home lies after the gap.
        follower = (position + _ONE) & mask
        while table[follower] != 0:
            home = (table[follower] >> _SHIFT) & mask
            if ((follower - home) & mask) >= ((follower - position) & mask):
                table[position] = table[follower]
                position = follower
            follower = (follower + _ONE) & mask
        table[position] = 0
        flags[slot] = 0
        counters[LIVE] -= 1
        counters[LIVE_KEY_BYTES] -= lengths[slot]
        free_slots[counters[FREE]] = slot
        counters[FREE] += 1


@kernel(types.void(_U8, _U64, _U64))
def rebuild_index(flags: Any, slot_hashes: Any, table: Any) -> None:
    """Fill an empty index with all used slots."""
    mask = np.uint64(table.size - 1)
    for slot in range(flags.size):
        if flags[slot] & USED:
            position = slot_hashes[slot] & mask
            while table[position] != 0:
                position = (position + _ONE) & mask
            table[position] = ((slot_hashes[slot] & _LOW_32) << _SHIFT) | np.uint64(slot + 1)


@kernel(types.int64(_U8, _U8, _U8, _I64, _I32))
def compact_arena(flags: Any, arena: Any, new_arena: Any, starts: Any, lengths: Any) -> int:
    """Copy the keys of all used slots to ``new_arena``; returns the bytes used there."""
    used = 0
    for slot in range(flags.size):
        if flags[slot] & USED:
            start = starts[slot]
            for index in range(lengths[slot]):
                new_arena[used + index] = arena[start + index]
            starts[slot] = used
            used += lengths[slot]
    return used


@kernel(types.int64(_U8, types.uint8, _I32))
def slots_with(flags: Any, bits: Any, found: Any) -> int:
    """Slots whose flags hold all ``bits``, in slot order; returns how many."""
    count = 0
    for slot in range(flags.size):
        if flags[slot] & bits == bits:
            found[count] = slot
            count += 1
    return count


@kernel(types.int64(_U8, _U64, types.uint8, _MASK, _I32))
def slots_in_groups(flags: Any, slot_hashes: Any, bits: Any, wanted: Any, found: Any) -> int:
    """Slots of the key groups in the mask ``wanted`` whose flags hold all ``bits``; returns how many."""
    count = 0
    for slot in range(flags.size):
        if flags[slot] & bits == bits and wanted[_group_of(slot_hashes[slot], wanted.size)]:
            found[count] = slot
            count += 1
    return count


@kernel(types.void(_MASK, _U64, _U64, _I32, _U8, _I32, _I64))
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
        if flags[slot] & USED and wanted[_group_of(slot_hashes[slot], wanted.size)]:
            flags[slot] = 0
            counters[LIVE] -= 1
            counters[LIVE_KEY_BYTES] -= lengths[slot]
            free_slots[counters[FREE]] = slot
            counters[FREE] += 1
    mask = np.uint64(table.size - 1)
    # Probing wraps around, so begin after a free entry: no run is then split.
    first = np.uint64(0)
    while table[first] != 0:
        first += _ONE
    for step in range(table.size):
        position = (first + np.uint64(step)) & mask
        entry = table[position]
        if entry == 0:
            continue
        table[position] = 0
        if flags[np.int64(entry & _LOW_32) - 1] & USED:
            # Its home is in the part that has been filled anew, or it is the position itself.
            home = (entry >> _SHIFT) & mask
            while table[home] != 0:
                home = (home + _ONE) & mask
            table[home] = entry


@kernel(types.void(_I32, _U16, _I64, _I32, _U8, _U64))
def sort_words(slots: Any, groups: Any, starts: Any, lengths: Any, arena: Any, words: Any) -> None:
    """For each slot a word that sorts about as its state key does: the group, then 6 bytes of the key.

    The bytes are those after the prefix that all these keys share, because keys such as ``server-17`` differ late.
    """
    if slots.size == 0:
        return
    first = starts[slots[0]]
    shared = np.int64(lengths[slots[0]])
    for slot in slots:
        start = starts[slot]
        shared = min(shared, np.int64(lengths[slot]))
        index = 0
        while index < shared and arena[start + index] == arena[first + index]:
            index += 1
        shared = np.int64(index)
    for number in range(slots.size):
        slot = slots[number]
        word = np.uint64(groups[number])
        for index in range(shared, shared + 6):
            word <<= np.uint64(8)
            if index < lengths[slot]:
                word |= np.uint64(arena[starts[slot] + index])
        words[number] = word


@kernel(types.void(_I32, _U16, types.uint16, _I64, _I32, _U8, _I64, _U8))
def encode_state_keys(
    slots: Any, groups: Any, state_id: Any, starts: Any, lengths: Any, arena: Any, out_offsets: Any, out: Any
) -> None:
    """State keys (``weir.state.layout``, empty namespace) of slots, one after the other; fills ``out_offsets``."""
    position = 0
    for number in range(slots.size):
        slot = slots[number]
        out_offsets[number] = position
        out[position] = groups[number] >> 8
        out[position + 1] = groups[number] & 0xFF
        out[position + 2] = state_id >> 8
        out[position + 3] = state_id & 0xFF
        out[position + 4] = 0
        start = starts[slot]
        for index in range(lengths[slot]):
            out[position + 5 + index] = arena[start + index]
        position += 5 + lengths[slot]
    out_offsets[slots.size] = position


@kernel(types.void(_I32, _I64, _I32, _U8, _U8))
def copy_keys(slots: Any, starts: Any, lengths: Any, arena: Any, out: Any) -> None:
    """The keys of slots, one after the other."""
    position = 0
    for slot in slots:
        start = starts[slot]
        for index in range(lengths[slot]):
            out[position + index] = arena[start + index]
        position += lengths[slot]


@kernel(types.int64(_U8, _U64, _U32, _I64, _I32))
def changed_in_groups(flags: Any, slot_hashes: Any, stamps: Any, marks: Any, found: Any) -> int:
    """Slots stamped later than the mark of their key group, if that is not negative; returns how many."""
    count = 0
    for slot in range(flags.size):
        if flags[slot] & USED:
            mark = marks[_group_of(slot_hashes[slot], marks.size)]
            if mark >= 0 and np.int64(stamps[slot]) > mark:
                found[count] = slot
                count += 1
    return count
