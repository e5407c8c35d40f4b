"""Compiled loops over the keys of slots, whose bytes lie in the arena of the slot table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.bytes import copy_bytes
from weir.kernels.declare import byte_kernel, kernel
from weir.state.tables.cells.slot_layout import (
    I32,
    I64,
    U8,
    U16,
    U64,
    USED,
)


@kernel(types.int64(U8, U8, U8, I64, I32))
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


@kernel(types.void(I32, U16, I64, I32, U8, U64))
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


@byte_kernel(types.void(I32, U16, types.uint16, I64, I32, U8, I64, U8))
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
        copy_bytes(out, position + 5, arena, starts[slot], np.int64(lengths[slot]))
        position += 5 + lengths[slot]
    out_offsets[slots.size] = position


@byte_kernel(types.void(I32, I64, I32, U8, U8))
def copy_keys(slots: Any, starts: Any, lengths: Any, arena: Any, out: Any) -> None:
    """The keys of slots, one after the other."""
    position = 0
    for slot in slots:
        copy_bytes(out, position, arena, starts[slot], np.int64(lengths[slot]))
        position += lengths[slot]
