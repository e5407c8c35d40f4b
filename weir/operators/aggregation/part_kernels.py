"""Compiled loops of aggregates that keep entries of their own besides a key's cells; see ``parts``.

All kernels release the GIL, have explicit signatures and are cached on disk. Keys are bytes and offsets (int64).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel, kernel_part
from weir.kernels.kernel_types import input_array

_IN_U8, _IN_U64, _IN_I32, _IN_I64 = (
    input_array(dtype) for dtype in (types.uint8, types.uint64, types.int32, types.int64)
)
_U8, _U64, _I64 = (dtype[::1] for dtype in (types.uint8, types.uint64, types.int64))
_LOW_32, _HIGH_32 = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)
_SHIFT = np.uint64(32)
#: Bytes after a value: the length of the key before it, big endian.
LENGTH_BYTES = 4
#: Most ranks that a register can have; 0 is an empty one.
RANKS = 64


@kernel(types.void(_IN_U64, _IN_U8, _IN_I64, _IN_U64, _IN_U8, _IN_I64, _U8, _I64, _U64))
def part_keys(
    hashes: Any,
    data: Any,
    offsets: Any,
    value_hashes: Any,
    value_data: Any,
    value_offsets: Any,
    out: Any,
    out_offsets: Any,
    out_hashes: Any,
) -> None:
    """``user key | value | length of the user key``, and hashes, whose upper half is that of the user key."""
    position = np.int64(0)
    for row in range(hashes.size):
        out_offsets[row] = position
        length = offsets[row + 1] - offsets[row]
        for index in range(offsets[row], offsets[row + 1]):
            out[position] = data[index]
            position += 1
        for index in range(value_offsets[row], value_offsets[row + 1]):
            out[position] = value_data[index]
            position += 1
        for place in range(LENGTH_BYTES):
            out[position] = (length >> (8 * (LENGTH_BYTES - 1 - place))) & 0xFF
            position += 1
        mixed = hashes[row] ^ value_hashes[row] ^ (value_hashes[row] >> _SHIFT)
        out_hashes[row] = (hashes[row] & _HIGH_32) | (mixed & _LOW_32)
    out_offsets[hashes.size] = position


@kernel(types.void(_IN_U8, _IN_I64, _I64))
def user_key_stops(data: Any, offsets: Any, stops: Any) -> None:
    """Where the user key of each of :func:`part_keys` ends."""
    for row in range(stops.size):
        length = np.int64(0)
        for index in range(offsets[row + 1] - LENGTH_BYTES, offsets[row + 1]):
            length = (length << 8) | np.int64(data[index])
        stops[row] = offsets[row] + length


@kernel(types.void(_IN_I32, types.int64[:, ::1], _IN_U64, _U64))
def note_seen(slots: Any, cells: Any, bits: Any, new: Any) -> None:
    """Set bits of values; ``new``: of each row those that were not set before."""
    for row in range(slots.size):
        seen = np.uint64(cells[slots[row], 0])
        found = bits[row] & ~seen
        new[row] = found
        if found:
            cells[slots[row], 0] = np.int64(seen | found)


@kernel(types.void(_IN_I32, types.uint8[:, ::1], _IN_U8, _IN_U8, _U8))
def raise_registers(slots: Any, registers: Any, places: Any, ranks: Any, before: Any) -> None:
    """Raise registers to ranks; ``before``: what each was."""
    for row in range(slots.size):
        old = registers[slots[row], places[row]]
        before[row] = old
        if ranks[row] > old:
            registers[slots[row], places[row]] = ranks[row]


@kernel(types.void(_IN_I32, types.int64[:, ::1], _IN_U8))
def add_to_buckets(slots: Any, cells: Any, places: Any) -> None:
    """Count values in buckets."""
    for row in range(slots.size):
        cells[slots[row], places[row]] += 1


@kernel(types.void(_IN_U64, types.int64, _I64, _U8, _U8))
def registers_of(hashes: Any, precision: Any, blocks: Any, places: Any, ranks: Any) -> None:
    """The register of each hash: its block of 64, its place there, and the rank: leading zeros of the rest, plus 1."""
    for row in range(hashes.size):
        # Upper bits say where keys go, and lower ones where they are in caches: all of them are mixed once more.
        word = hashes[row]
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
        register = np.int64(word >> np.uint64(64 - precision))
        rest = word << np.uint64(precision)
        rank = 1
        while rank <= 64 - precision and not (rest >> np.uint64(63)):
            rest <<= np.uint64(1)
            rank += 1
        blocks[row], places[row], ranks[row] = register >> 6, register & 63, rank


@kernel_part
def _sigma(share: Any) -> Any:
    if share == 1.0:
        return np.inf
    power, total, weight, before = share, share, 1.0, -1.0
    while total != before:
        power *= power
        before = total
        total += power * weight
        weight += weight
    return total


@kernel_part
def _tau(share: Any) -> Any:
    if share == 0.0 or share == 1.0:
        return 0.0
    total, weight, before, root = 1.0 - share, 1.0, -1.0, share
    while total != before:
        root = np.sqrt(root)
        before = total
        weight *= 0.5
        total -= (1.0 - root) * (1.0 - root) * weight
    return total / 3.0


@kernel_part
def _estimate(ranks: Any, row: Any, at: Any, precision: Any) -> Any:
    """Ertl's improved estimate from the numbers of registers by rank; that of empty ones does not count."""
    size = np.float64(1 << precision)
    last = 64 - precision
    filled = np.int64(0)
    for rank in range(1, last + 2):
        filled += np.int64(ranks[row, at + rank])
    total = size * _tau(1.0 - np.float64(ranks[row, at + last + 1]) / size)
    for rank in range(last, 0, -1):
        total = 0.5 * (total + np.float64(ranks[row, at + rank]))
    total += size * _sigma((size - filled) / size)
    return size * size / (2.0 * np.log(2.0) * total)


@kernel(types.void(_IN_I32, types.uint16[:, ::1], types.int64, _IN_U8, _IN_U8, types.int64, _I64))
def count_ranks(slots: Any, ranks: Any, at: Any, before: Any, after: Any, precision: Any, out: Any) -> None:
    """Bring registers that rose into the numbers of registers by rank.

    ``ranks``: cells as uint16, those of the aggregate from column ``at`` on; ``before``, ``after``: of each row the
    rank of its register and its own, 0 if it does not count; ``out``: the estimate after each row, or of length 0.
    """
    for row in range(slots.size):
        slot = slots[row]
        if after[row] > before[row]:
            if before[row]:
                ranks[slot, at + before[row]] -= np.uint16(1)
            ranks[slot, at + after[row]] += np.uint16(1)
        if out.size:
            out[row] = np.int64(np.rint(_estimate(ranks, slot, at, precision)))


@kernel(types.void(types.uint16[:, ::1], types.int64, types.int64, _I64))
def estimates(ranks: Any, at: Any, precision: Any, out: Any) -> None:
    """How many different values there are about; ``ranks`` and ``at`` as for :func:`count_ranks`."""
    for row in range(out.size):
        out[row] = np.int64(np.rint(_estimate(ranks, row, at, precision)))


@kernel(types.void(_IN_I64, input_array(types.uint8, 2), types.uint16[:, ::1], types.int64))
def ranks_of_registers(index: Any, registers: Any, ranks: Any, at: Any) -> None:
    """Count registers by rank; ``index``: whose each block of 64 registers is."""
    for entry in range(index.size):
        for place in range(registers.shape[1]):
            rank = registers[entry, place]
            if rank:
                ranks[index[entry], at + rank] += np.uint16(1)
