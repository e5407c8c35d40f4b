"""Compiled loops over keys: hashing, routing, composite encoding.

Called by ``weir.keys.hashing`` only, which checks what these loops take for granted. All kernels release the GIL, have
explicit signatures (nothing is compiled in the middle of a run) and are cached on disk. Functions that call each other
stay in this file, because the disk cache looks at one file only. Inputs may be read-only or unaligned, as views of
Arrow buffers are; outputs are written in place.

The hash is XXH64 with seed 0, as published; the state's location depends on it, so it can never change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.bytes import byte_at, copy_bytes, load4, load8, same_bytes
from weir.kernels.declare import brief_kernel, byte_kernel, byte_kernel_part, kernel
from weir.kernels.kernel_types import input_array

_U8, _I32, _I64, _U64 = (
    input_array(dtype) for dtype in (types.uint8, types.int32, types.int64, types.uint64)
)
_OUT_U8, _OUT_U16, _OUT_U32, _OUT_U64, _OUT_I64 = (
    dtype[::1] for dtype in (types.uint8, types.uint16, types.uint32, types.uint64, types.int64)
)


PRIME_1 = np.uint64(0x9E3779B185EBCA87)
PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
PRIME_3 = np.uint64(0x165667B19E3779F9)
PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
PRIME_5 = np.uint64(0x27D4EB2F165667C5)
#: Wrapped sums of the primes, the start values of lanes 1 and 4 for seed 0.
LANE_1 = np.uint64((0x9E3779B185EBCA87 + 0xC2B2AE3D27D4EB4F) % 2**64)
LANE_4 = np.uint64(2**64 - 0x9E3779B185EBCA87)
SIGN_BIT = np.uint64(1 << 63)

#: Tags of the components of a composite key.
TAG_NULL = 0
TAG_INTEGER = 1
TAG_BYTES = 2


@byte_kernel_part
def _rotate(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@byte_kernel_part
def _round(lane: Any, word: Any) -> Any:
    return _rotate(lane + word * PRIME_2, 31) * PRIME_1


@byte_kernel_part
def _mix_word(value: Any, word: Any) -> Any:
    return _rotate(value ^ _round(np.uint64(0), word), 27) * PRIME_1 + PRIME_4


@byte_kernel_part
def _avalanche(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(33))) * PRIME_2
    value = (value ^ (value >> np.uint64(29))) * PRIME_3
    return value ^ (value >> np.uint64(32))


@byte_kernel_part
def _swap_bytes(value: Any) -> Any:
    value = ((value & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(8)) | (
        (value >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    )
    value = ((value & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(16)) | (
        (value >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    )
    return (value << np.uint64(32)) | (value >> np.uint64(32))


@byte_kernel_part
def _merge_lane(value: Any, lane: Any) -> Any:
    return (value ^ _round(np.uint64(0), lane)) * PRIME_1 + PRIME_4


@byte_kernel_part
def _long_start(data: Any, start: Any, stop: Any) -> Any:
    """The hash state after all whole blocks of 32 bytes; only for keys of at least 32 bytes."""
    lane_1, lane_2, lane_3, lane_4 = LANE_1, PRIME_2, np.uint64(0), LANE_4
    position = start
    while position + 32 <= stop:
        lane_1 = _round(lane_1, load8(data, position))
        lane_2 = _round(lane_2, load8(data, position + 8))
        lane_3 = _round(lane_3, load8(data, position + 16))
        lane_4 = _round(lane_4, load8(data, position + 24))
        position += 32
    value = _rotate(lane_1, 1) + _rotate(lane_2, 7) + _rotate(lane_3, 12) + _rotate(lane_4, 18)
    for lane in (lane_1, lane_2, lane_3, lane_4):
        value = _merge_lane(value, lane)
    return value


@byte_kernel_part
def _hash(data: Any, position: Any, stop: Any) -> Any:
    """XXH64 of ``data[position:stop]``."""
    length = stop - position
    if length >= 32:
        value = _long_start(data, position, stop)
        position += length & ~31
    else:
        value = PRIME_5
    value += np.uint64(length)
    # Each power of two by itself: most keys of a batch take the same way, which a loop would not.
    if length & 16:
        value = _mix_word(_mix_word(value, load8(data, position)), load8(data, position + 8))
        position += 16
    if length & 8:
        value = _mix_word(value, load8(data, position))
        position += 8
    if length & 4:
        value = _rotate(value ^ (load4(data, position) * PRIME_1), 23) * PRIME_2 + PRIME_3
        position += 4
    while position < stop:
        value = _rotate(value ^ (np.uint64(byte_at(data, position)) * PRIME_5), 11) * PRIME_1
        position += 1
    return _avalanche(value)


@byte_kernel(types.void(_U8, _I32, _OUT_U64), types.void(_U8, _I64, _OUT_U64))
def hash_bytes(data: Any, offsets: Any, hashes: Any) -> None:
    """XXH64 of ``data[offsets[i]:offsets[i + 1]]`` into ``hashes[i]``, shape (rows,)."""
    for row in range(hashes.size):
        hashes[row] = _hash(data, np.int64(offsets[row]), np.int64(offsets[row + 1]))


@brief_kernel(types.uint64(_U8))
def hash_one(data: Any) -> Any:
    """XXH64 of ``data``."""
    return _hash(data, np.int64(0), np.int64(data.size))


@kernel(types.void(_I64, _OUT_U64))
def hash_integers(integers: Any, hashes: Any) -> None:
    """XXH64 of each integer's canonical 8 bytes (big endian, sign bit flipped), without writing them."""
    for row in range(hashes.size):
        word = _swap_bytes(np.uint64(integers[row]) ^ SIGN_BIT)
        hashes[row] = _avalanche(_mix_word(PRIME_5 + np.uint64(8), word))


@kernel(types.void(_U64, types.uint64, _OUT_U16))
def groups_of_hashes(hashes: Any, max_parallelism: Any, groups: Any) -> None:
    """Scale the upper 32 bits of each hash to ``0 <= group < max_parallelism``."""
    for row in range(groups.size):
        groups[row] = ((hashes[row] >> np.uint64(32)) * max_parallelism) >> np.uint64(32)


@byte_kernel_part
def _order_by_two(hashes: Any, group_to_subtask: Any, positions: Any, order: Any) -> None:
    """See :func:`order_by_destination`, of two subtasks: in a third of the time, as no row waits for the one before."""
    group_count = np.uint64(group_to_subtask.size)
    zeros = np.int64(0)
    last = order.size - 1
    for row in range(order.size):
        group = ((hashes[row] >> np.uint64(32)) * group_count) >> np.uint64(32)
        is_one = np.int64(group_to_subtask[group])
        # Rows of the second one from the end. A mask is no branch.
        ones_at = last - row + zeros
        order[np.uint64(zeros + ((ones_at - zeros) & -is_one))] = row
        zeros += 1 - is_one
    for place in range((order.size - zeros) >> 1):
        first, other = zeros + place, last - place
        order[first], order[other] = order[other], order[first]
    positions[1] = zeros
    positions[2] = order.size
    positions[3] = order.size


@byte_kernel(types.boolean(_U64, _I32, _OUT_I64, _OUT_U32))
def order_by_destination(hashes: Any, group_to_subtask: Any, positions: Any, order: Any) -> bool:
    """Row numbers by destination, stable, into ``order``; False if the table names an unknown subtask.

    ``positions`` is zero, shape (subtasks + 2,); the rows of subtask s get to ``positions[s]`` until
    ``positions[s + 1]`` of ``order``. One call, because calls are what small batches pay for.
    """
    subtasks = positions.size - 2
    for group in range(group_to_subtask.size):
        if group_to_subtask[group] < 0 or group_to_subtask[group] >= subtasks:
            return False
    if subtasks == 2:
        _order_by_two(hashes, group_to_subtask, positions, order)
        return True
    group_count = np.uint64(group_to_subtask.size)
    for row in range(order.size):
        group = ((hashes[row] >> np.uint64(32)) * group_count) >> np.uint64(32)
        positions[group_to_subtask[group] + 2] += 1
    for subtask in range(subtasks):
        positions[subtask + 2] += positions[subtask + 1]
    # Now positions[s + 1] is where the rows of s begin, and each of them moves it on by one.
    for row in range(order.size):
        group = ((hashes[row] >> np.uint64(32)) * group_count) >> np.uint64(32)
        place = group_to_subtask[group] + 1
        order[positions[place]] = row
        positions[place] += 1
    return True


@kernel(types.boolean(_U64, _I64, _I32, _OUT_I64, _OUT_U32))
def order_picked_by_destination(
    hashes: Any, rows: Any, group_to_subtask: Any, positions: Any, order: Any
) -> bool:
    """As ``order_by_destination`` of the rows with these numbers."""
    subtasks = positions.size - 2
    for group in range(group_to_subtask.size):
        if group_to_subtask[group] < 0 or group_to_subtask[group] >= subtasks:
            return False
    group_count = np.uint64(group_to_subtask.size)
    for index in range(rows.size):
        group = ((hashes[rows[index]] >> np.uint64(32)) * group_count) >> np.uint64(32)
        positions[group_to_subtask[group] + 2] += 1
    for subtask in range(subtasks):
        positions[subtask + 2] += positions[subtask + 1]
    for index in range(rows.size):
        group = ((hashes[rows[index]] >> np.uint64(32)) * group_count) >> np.uint64(32)
        place = group_to_subtask[group] + 1
        order[positions[place]] = rows[index]
        positions[place] += 1
    return True


@kernel(types.void(_OUT_U8, _OUT_I64, _I64, _U8))
def append_integers(out: Any, cursors: Any, integers: Any, nulls: Any) -> None:
    """Append one integer component to every row's key at ``cursors[row]``, which advances."""
    for row in range(cursors.size):
        position = cursors[row]
        if nulls[row]:
            out[position] = TAG_NULL
            cursors[row] = position + 1
            continue
        out[position] = TAG_INTEGER
        value = np.uint64(integers[row]) ^ SIGN_BIT
        for index in range(8):
            out[position + 1 + index] = value >> np.uint64(56 - 8 * index)
        cursors[row] = position + 9


@byte_kernel(types.void(_OUT_U8, _OUT_I64, _U8, _I32, _U8), types.void(_OUT_U8, _OUT_I64, _U8, _I64, _U8))
def append_bytes(out: Any, cursors: Any, data: Any, offsets: Any, nulls: Any) -> None:
    """Append one byte-string component (tag, u32 length little endian, bytes) to every row's key."""
    for row in range(cursors.size):
        position = cursors[row]
        if nulls[row]:
            out[position] = TAG_NULL
            cursors[row] = position + 1
            continue
        start = np.int64(offsets[row])
        length = np.int64(offsets[row + 1]) - start
        out[position] = TAG_BYTES
        for index in range(4):
            out[position + 1 + index] = (length >> (8 * index)) & 0xFF
        position += 5
        copy_bytes(out, position, data, start, length)
        cursors[row] = position + length


@kernel(types.void(_I64, _OUT_U8))
def write_integers(integers: Any, out: Any) -> None:
    """Write each integer's canonical 8 bytes to ``out``, shape (8 * rows,)."""
    for row in range(integers.size):
        value = np.uint64(integers[row]) ^ SIGN_BIT
        for index in range(8):
            out[8 * row + index] = value >> np.uint64(56 - 8 * index)


@kernel(types.void(_U8, _OUT_I64, _OUT_I64))
def read_integers(data: Any, starts: Any, integers: Any) -> None:
    """Read canonical 8-byte integers at ``starts``; a negative start leaves 0."""
    for row in range(integers.size):
        if starts[row] >= 0:
            integers[row] = _swap_bytes(load8(data, starts[row])) ^ SIGN_BIT


@kernel(types.int64(_U8, _OUT_I64, _OUT_I64, types.uint8, _OUT_I64, _OUT_I64))
def read_component(data: Any, cursors: Any, stops: Any, tag: Any, starts: Any, lengths: Any) -> int:
    """Read one component of every composite key at ``cursors[row]``, which advances.

    ``starts[row]`` becomes the position of the component's bytes, or -1 for null; ``lengths[row]`` their
    number.
    Returns the first row that is malformed or of another tag, else -1.
    """
    for row in range(cursors.size):
        position = cursors[row]
        if position >= stops[row]:
            return row
        found = data[position]
        position += 1
        starts[row] = -1
        lengths[row] = 0
        if found != TAG_NULL:
            length = np.int64(8)
            if found == TAG_BYTES and position + 4 <= stops[row]:
                length = np.int64(load4(data, position))
                position += 4
            if found != tag or position + length > stops[row]:
                return row
            starts[row] = position
            lengths[row] = length
            position += length
        cursors[row] = position
    return -1


@byte_kernel(types.void(_U8, _OUT_I64, _OUT_I64, _OUT_I64, _OUT_U8))
def scatter_bytes(data: Any, starts: Any, lengths: Any, out_starts: Any, out: Any) -> None:
    """Copy so many bytes at ``starts[row]`` to ``out_starts[row]`` of ``out``."""
    for row in range(starts.size):
        copy_bytes(out, out_starts[row], data, starts[row], lengths[row])


@byte_kernel(types.void(_U8, _OUT_I64, _OUT_I64, _OUT_U8))
def gather_bytes(data: Any, starts: Any, out_offsets: Any, out: Any) -> None:
    """Copy the bytes at ``starts[row]`` to ``out[out_offsets[row]:out_offsets[row + 1]]``."""
    for row in range(starts.size):
        to = out_offsets[row]
        copy_bytes(out, to, data, starts[row], out_offsets[row + 1] - to)


@byte_kernel(
    types.int64(_U64, _U8, _I32, _OUT_U32, _OUT_I64, _OUT_I64, _OUT_I64),
    types.int64(_U64, _U8, _I64, _OUT_U32, _OUT_I64, _OUT_I64, _OUT_I64),
)
def distinct_keys(
    hashes: Any, data: Any, offsets: Any, table: Any, inverse: Any, firsts: Any, lasts: Any
) -> int:
    """Number the distinct keys in the order in which they come first; returns how many they are.

    ``table`` is zeroed, a power of two of entries, more than there are rows.
    """
    mask = np.uint64(table.size - 1)
    count = 0
    for row in range(hashes.size):
        position = hashes[row] & mask
        start = np.int64(offsets[row])
        length = np.int64(offsets[row + 1]) - start
        while True:
            entry = np.int64(table[position])
            if entry == 0:
                table[position] = count + 1
                inverse[row] = count
                firsts[count] = row
                lasts[count] = row
                count += 1
                break
            other = firsts[entry - 1]
            other_start = np.int64(offsets[other])
            is_as_long = np.int64(offsets[other + 1]) - other_start == length
            if (
                hashes[other] == hashes[row]
                and is_as_long
                and same_bytes(data, start, data, other_start, length)
            ):
                inverse[row] = entry - 1
                lasts[entry - 1] = row
                break
            position = (position + np.uint64(1)) & mask
    return count
