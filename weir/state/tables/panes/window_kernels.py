"""Compiled loops of window tables: entries whose keys begin with the end of a pane, 8 bytes that order as times do.

Called by ``weir.state.tables.panes.window_table``. All kernels release the GIL, have explicit signatures and are cached
on disk. An end is int64, ms; its bytes are those of ``weir.state.tables.timers.time_first``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel, kernel_part
from weir.kernels.kernel_types import input_array
from weir.state.tables.cells.slot_layout import USED

_IN_U8, _IN_U64, _IN_I32, _IN_I64 = (
    input_array(dtype) for dtype in (types.uint8, types.uint64, types.int32, types.int64)
)
_U8, _U64, _I32, _I64 = (dtype[::1] for dtype in (types.uint8, types.uint64, types.int32, types.int64))
_BOOL = types.boolean[::1]
_INT = types.int64

_SIGN = np.uint64(1 << 63)
_BYTE = np.uint64(8)
_LOW_32 = np.uint64(0xFFFFFFFF)
_HIGH_32 = np.uint64(0xFFFFFFFF00000000)
_SHIFT = np.uint64(32)
_MIX = np.uint64(0x9E3779B97F4A7C15)

#: Bytes of an end.
END_BYTES = 8


@kernel_part
def _end_at(data: Any, start: Any) -> Any:
    word = np.uint64(0)
    for index in range(start, start + 8):
        word = (word << _BYTE) | np.uint64(data[index])
    return np.int64(word ^ _SIGN)


@kernel_part
def _mixed(value: Any, end: Any) -> Any:
    """The hash of an entry: the upper half, of which the key group is made, is that of the user key."""
    word = (np.uint64(end) ^ (value << _SHIFT)) * _MIX
    word ^= word >> _SHIFT
    return (value & _HIGH_32) | ((value ^ word) & _LOW_32)


@kernel(
    types.int64(_IN_I64, _IN_U64, _INT, _INT, _INT, _INT, _INT, _IN_I64, _I64),
)
def pane_ends(
    times: Any,
    hashes: Any,
    pane: Any,
    offset: Any,
    shift: Any,
    grid: Any,
    base: Any,
    places: Any,
    ends: Any,
) -> int:
    """The end of the pane of each row, or the smallest int64 if the row is late; returns how many are.

    ``ends`` are ``offset`` plus multiples of ``pane``. The last window with the pane ends at the largest ``base`` plus
    multiple of ``grid`` that is not above the pane's end plus ``shift``. ``places`` is by key group.
    """
    late = 0
    groups = np.uint64(places.size)
    for row in range(times.size):
        end = times[row] - (times[row] - offset) % pane + pane
        last = end + shift
        last -= (last - base) % grid
        group = ((hashes[row] >> _SHIFT) * groups) >> _SHIFT
        if last <= places[group]:
            end = np.iinfo(np.int64).min
            late += 1
        ends[row] = end
    return late


_KEYS = (_U8, _I64, _U64)


@kernel(
    types.void(_IN_I64, _IN_U64, _IN_U8, _IN_I32, *_KEYS),
    types.void(_IN_I64, _IN_U64, _IN_U8, _IN_I64, *_KEYS),
)
def entry_keys(
    ends: Any, hashes: Any, data: Any, offsets: Any, out: Any, out_offsets: Any, out_hashes: Any
) -> None:
    """Keys of entries, ``end | user key``, and their hashes."""
    position = 0
    for row in range(ends.size):
        out_offsets[row] = position
        word = np.uint64(ends[row]) ^ _SIGN
        for index in range(8):
            out[position + index] = np.uint8((word >> np.uint64(56 - 8 * index)) & np.uint64(0xFF))
        position += 8
        for index in range(np.int64(offsets[row]), np.int64(offsets[row + 1])):
            out[position] = data[index]
            position += 1
        out_hashes[row] = _mixed(hashes[row], ends[row])
    out_offsets[ends.size] = position


@kernel(types.int64(_U8, _I64, _U8, _INT, _INT, _I32, _I64))
def slots_between(
    flags: Any, starts: Any, arena: Any, after: Any, until: Any, found: Any, beyond: Any
) -> int:
    """Slots whose end is above ``after`` and at most ``until``; returns how many.

    ``beyond[0]`` becomes the smallest end above ``until``, if it is smaller than what is there.
    """
    count = 0
    least = beyond[0]
    for slot in range(flags.size):
        if flags[slot] & USED:
            end = _end_at(arena, starts[slot])
            if end > until:
                least = min(least, end)
            elif end > after:
                found[count] = slot
                count += 1
    beyond[0] = least
    return count


@kernel(types.void(_I32, _I64, _U8, _I64))
def ends_of_slots(slots: Any, starts: Any, arena: Any, ends: Any) -> None:
    """The end of each slot's entry."""
    for number in range(slots.size):
        ends[number] = _end_at(arena, starts[slots[number]])


@kernel_part
def _bits_of(value: Any) -> Any:
    """Four bits of a word, of the lower half of a hash."""
    bits = np.uint64(0)
    for shift in (0, 6, 12, 18):
        bits |= np.uint64(1) << ((value >> np.uint64(shift)) & np.uint64(63))
    return bits


@kernel_part
def _word_of(value: Any, words: Any) -> Any:
    """The word of a hash in a filter whose number of words is a power of two."""
    mixed = value * _MIX
    return np.int64((mixed >> _SHIFT) & np.uint64(words - 1))


@kernel(types.void(_IN_U64, _U64))
def add_to_filter(hashes: Any, words: Any) -> None:
    """Set the bits of hashes in a Bloom filter, all those of one in one word."""
    for row in range(hashes.size):
        words[_word_of(hashes[row], words.size)] |= _bits_of(hashes[row])


@kernel(types.void(_IN_U64, _U64, _BOOL))
def are_in_filter(hashes: Any, words: Any, found: Any) -> None:
    """Whether all bits of each hash are set, as they are if it was added."""
    for row in range(hashes.size):
        bits = _bits_of(hashes[row])
        found[row] = words[_word_of(hashes[row], words.size)] & bits == bits


@kernel(types.void(_IN_U8, _IN_I64, _I64, _U8))
def split_keys(data: Any, offsets: Any, ends: Any, users: Any) -> None:
    """Ends and user keys of entries; ``users`` is shorter than ``data`` by 8 bytes for each."""
    position = 0
    for row in range(ends.size):
        start = offsets[row]
        ends[row] = _end_at(data, start)
        for index in range(start + 8, offsets[row + 1]):
            users[position] = data[index]
            position += 1
