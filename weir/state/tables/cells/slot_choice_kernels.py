"""Compiled loops that choose slots of the slot table: those to evict, and those of a kind or of some key groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel
from weir.state.tables.cells.slot_layout import (
    HAND,
    I32,
    I64,
    MASK,
    U8,
    U32,
    U64,
    USE,
    USED,
    USES_MAX,
    group_of,
)


@kernel(types.int64(types.int64, U8, U32, types.uint32, I64, I32))
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


@kernel(types.int64(U8, types.uint8, I32))
def slots_with(flags: Any, bits: Any, found: Any) -> int:
    """Slots whose flags hold all ``bits``, in slot order; returns how many."""
    count = 0
    for slot in range(flags.size):
        if flags[slot] & bits == bits:
            found[count] = slot
            count += 1
    return count


@kernel(types.int64(U8, U64, types.uint8, MASK, I32))
def slots_in_groups(flags: Any, slot_hashes: Any, bits: Any, wanted: Any, found: Any) -> int:
    """Slots of the key groups in the mask ``wanted`` whose flags hold all ``bits``; returns how many."""
    count = 0
    for slot in range(flags.size):
        if flags[slot] & bits == bits and wanted[group_of(slot_hashes[slot], wanted.size)]:
            found[count] = slot
            count += 1
    return count


@kernel(types.boolean(U64, I32, U8, types.uint8))
def are_in_groups_of(slot_hashes: Any, slots: Any, statuses: Any, status: Any) -> bool:
    """Whether the key groups of all these slots have this status; ``statuses`` has that of each group."""
    others = 0
    for slot in slots:
        if statuses[group_of(slot_hashes[slot], statuses.size)] != status:
            others += 1
    return others == 0


@kernel(types.int64(U8, U64, U32, I64, I32))
def changed_in_groups(flags: Any, slot_hashes: Any, stamps: Any, marks: Any, found: Any) -> int:
    """Slots stamped later than the mark of their key group, if that is not negative; returns how many."""
    count = 0
    for slot in range(flags.size):
        if flags[slot] & USED:
            mark = marks[group_of(slot_hashes[slot], marks.size)]
            if mark >= 0 and np.int64(stamps[slot]) > mark:
                found[count] = slot
                count += 1
    return count
