"""Numba kernels that read data pages of Parquet: levels, dictionary indices, and where the values of a page lie.

What they read comes from files: nothing is read beyond the end of an array, whatever the bytes say.
"""

from __future__ import annotations

import numpy as np

from weir.kernels.bytes import PADDING_BYTES, byte_at, copy_block, load4, load8
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BOOL, BYTES, INT, INTS, OFFSETS, TYPES

_COPIED_BYTES = 32
_HEADER_BITS_MAX = 35


@byte_kernel_part
def _header_at(data: np.ndarray, at: int, stop: int) -> tuple[int, int]:
    """What a run or a group of packed numbers begins with, and the position after it; -1: it does not end."""
    header = shift = 0
    while at < stop and shift <= _HEADER_BITS_MAX:
        byte = byte_at(data, at)
        at += 1
        header |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return header, at
    return -1, at


@byte_kernel(INT(BYTES, INT, INT, INT, OFFSETS, INT))
def decode_hybrid(data: np.ndarray, at: int, stop: int, width: int, out: np.ndarray, count: int) -> int:
    """Decode numbers of ``width`` bits, in runs and in bit-packed groups of eight.

    Args:
        data: uint8, shape (bytes,).
        at: where they begin.
        stop: where they end at the latest; at most ``len(data)``.
        width: 0 to 31.
        out: int32, shape (count or more,); filled.
        count: how many are wanted.

    Returns:
        Position after them; -1: there are not so many, or one has more bits.
    """
    filled = 0
    value_bytes = (width + 7) >> 3
    mask = (1 << width) - 1
    while filled < count:
        header, at = _header_at(data, at, stop)
        if header < 0:
            return -1
        if header & 1 == 0:
            run = header >> 1
            if run == 0 or at + value_bytes > stop:
                return -1
            value = 0
            for place in range(value_bytes):
                value |= byte_at(data, at + place) << (8 * place)
            at += value_bytes
            if value > mask:
                return -1
            run = min(run, count - filled)
            for place in range(run):
                out[filled + place] = value
            filled += run
            continue
        groups = header >> 1
        if groups == 0:
            return -1
        wanted = min(groups * 8, count - filled)
        # The last group may be cut off after the last value that counts.
        if at + ((wanted * width + 7) >> 3) > stop:
            return -1
        # Eight bytes at once hold a value, wherever it begins, as long as there are so many.
        whole = 0 if width == 0 else min(wanted, max(0, (len(data) - 8 - at) * 8 // width))
        for number in range(whole):
            bit = number * width
            word = load8(data, at + (bit >> 3)) >> np.uint64(bit & 7)
            # Without care for negative indices, which takes longer than the rest.
            out[np.uint64(filled + number)] = np.int64(word) & mask
        held = 0
        bits = -(whole * width & 7)
        place = at + (whole * width >> 3)
        for number in range(whole, wanted):
            while bits < width:
                byte = byte_at(data, place)
                held |= byte << bits if bits >= 0 else byte >> -bits
                place += 1
                bits += 8
            out[filled + number] = held & mask
            held >>= width
            bits -= width
        filled += wanted
        at = min(stop, at + groups * width)
    return at


@byte_kernel(INT(BYTES, INT, INT, OFFSETS, OFFSETS, INT))
def find_texts(
    data: np.ndarray, at: int, stop: int, starts: np.ndarray, lengths: np.ndarray, count: int
) -> int:
    """Find plain values of variable length: four bytes with the length before each.

    Args:
        data: uint8, shape (bytes,).
        at: where they begin.
        stop: where they end at the latest.
        starts: int32, shape (count or more,); filled.
        lengths: the same.
        count: how many there are.

    Returns:
        Position after them; -1: there are not so many.
    """
    for number in range(count):
        if at + 4 > stop:
            return -1
        length = int(load4(data, at))
        at += 4
        if length > stop - at:
            return -1
        starts[number] = at
        lengths[number] = length
        at += length
    return at


@byte_kernel(BOOL(OFFSETS, OFFSETS, OFFSETS, INT, OFFSETS, OFFSETS))
def look_up_texts(
    dictionary_starts: np.ndarray,
    dictionary_lengths: np.ndarray,
    indices: np.ndarray,
    count: int,
    starts: np.ndarray,
    lengths: np.ndarray,
) -> bool:
    """Starts and lengths of values by their indices in the dictionary; False: an index is none."""
    values = len(dictionary_starts)
    for number in range(count):
        index = indices[number]
        if index < 0 or index >= values:
            return False
        starts[number] = dictionary_starts[index]
        lengths[number] = dictionary_lengths[index]
    return True


@byte_kernel(BOOL(BYTES, INT, INT, INT))
def all_present(data: np.ndarray, at: int, stop: int, count: int) -> bool:
    """Whether definition levels of one bit are runs of 1 only, of ``count`` together: the usual form without nulls."""
    while count > 0:
        header, at = _header_at(data, at, stop)
        if header < 0:
            return False
        if header & 1 == 1 or header == 0 or at >= stop or byte_at(data, at) != 1:
            return False
        at += 1
        count -= header >> 1
    return True


@byte_kernel_part
def copy_text(data: np.ndarray, at: int, length: int, out: np.ndarray, to: int, safe: int) -> None:
    """Copy bytes, 32 at a time where they end at ``safe`` or before it; ``out`` has room for ``PADDING_BYTES`` more."""
    if at + length <= safe:
        done = 0
        while done < length:
            copy_block(out, to + done, data, at + done)
            done += _COPIED_BYTES
    else:
        for place in range(length):
            out[to + place] = data[at + place]


@byte_kernel(TYPES.UniTuple(INT, 2)(BYTES, INT, INT, BYTES, INT, OFFSETS, INT, BYTES, INT))
def append_plain(
    data: np.ndarray,
    at: int,
    count: int,
    valid: np.ndarray,
    first: int,
    offsets: np.ndarray,
    filled: int,
    out: np.ndarray,
    out_bytes: int,
) -> tuple[int, int]:
    """Append plain texts, each after four bytes with its length, as far as they fit.

    Args:
        data: uint8, shape (bytes,): the page.
        at: where the first one begins.
        count: how many rows are wanted.
        valid: uint8, 0 where a row has no value; empty: all have one.
        first: number of the first row in ``valid``.
        offsets: int32; ``offsets[filled]`` is where the first one goes; the next ones are filled.
        filled: rows that are there.
        out: uint8, shape (``out_bytes`` + ``PADDING_BYTES`` or more,).
        out_bytes: so many may be filled.

    Returns:
        Rows appended, and the position after them in the page; the position is -1: the page is damaged.
    """
    stop = len(data)
    safe = stop - PADDING_BYTES
    to = int(offsets[filled])
    for row in range(count):
        if len(valid) == 0 or valid[first + row] != 0:
            if at + 4 > stop:
                return row, -1
            length = int(load4(data, at))
            if length > stop - at - 4:
                return row, -1
            if to + length > out_bytes:
                return row, at
            at += 4
            copy_text(data, at, length, out, to, safe)
            at += length
            to += length
        offsets[filled + row + 1] = to
    return count, at


@byte_kernel(INT(BYTES, OFFSETS, OFFSETS, INT, INT, OFFSETS, INT, BYTES, INT))
def append_found(
    data: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    first: int,
    count: int,
    offsets: np.ndarray,
    filled: int,
    out: np.ndarray,
    out_bytes: int,
) -> int:
    """Append texts of which it is known where they lie; see :func:`append_plain`.

    Args:
        data: uint8, shape (bytes,).
        starts: int32, where the values of a page begin.
        lengths: int32, their bytes.
        first: the first of these that is wanted.
        count: how many of them.
        offsets: see there.
        filled: see there.
        out: see there.
        out_bytes: see there.

    Returns:
        Rows appended.
    """
    safe = len(data) - PADDING_BYTES
    to = int(offsets[filled])
    for row in range(count):
        length = int(lengths[first + row])
        if to + length > out_bytes:
            return row
        copy_text(data, int(starts[first + row]), length, out, to, safe)
        to += length
        offsets[filled + row + 1] = to
    return count


@byte_kernel(BOOL(INTS, OFFSETS, INT, INTS))
def look_up_words(dictionary: np.ndarray, indices: np.ndarray, count: int, values: np.ndarray) -> bool:
    """Values of 64 bits by their indices in the dictionary; False: an index is none."""
    for number in range(count):
        index = indices[number]
        if index < 0 or index >= len(dictionary):
            return False
        values[number] = dictionary[index]
    return True
