"""Parts of a kernel that read a page of a file, and decompress it if it is Snappy's, 64 KiB at a time to a window.

Which tags there are is taken from the compressed bytes that were read, most of them by ``take_tags``; the ends of what
was read, of the window and of the page, and long literals, are taken with care. What comes from the file may be
anything: nothing is read or written outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.bytes import PADDING_BYTES, byte_at
from weir.kernels.declare import byte_kernel_part
from weir.kernels.kernel_types import INT, TYPES
from weir.operators.sources.parquet.parquet_kernels import copy_text
from weir.operators.sources.parquet.parquet_snappy_tags import (
    MADE_BYTES_MAX,
    TAKEN_BYTES_MAX,
    copy_within,
    tag_at,
    take_tags,
)

#: Decompressed bytes at a time. Before them what is left of the window before: less than the length of a text.
_WINDOW_BYTES, FRONT_BYTES = 1 << 16, 64
_STOP = FRONT_BYTES + _WINDOW_BYTES
#: A copy may go on after the end.
_COPIED_BYTES_MAX = 64
#: Compressed bytes that are read at a time; and after what was read to the window at once, of so many bytes or more.
_PIECE_BYTES, _SMALL_PIECE_BYTES, _AT_ONCE_BYTES = 1 << 16, 1 << 12, 1 << 13
#: A tag has so many bytes at most.
_TAG_BYTES = 5
#: What the form of a page consists of.
IS_SNAPPY, HAS_LEVELS = 1, 2
#: Where it stands in a page, as indices of the array that holds it: compressed bytes that were read and are not
#: unpacked yet; where the file goes on, and its bytes up to the end of the page; the next piece.
_PACKED_AT, _PACKED_END, _FILE_AT, _FILE_LEFT, _PIECE = range(5)
#: Bytes of the literal that are not in the window yet; where the window is filled; bytes of the page before it; all.
_LITERAL, FILLED, BEFORE, SIZE = range(5, 9)
#: Where the next text is in the window; bytes of the text that are not copied yet.
AT, TEXT_LEFT = range(9, 11)
#: The page in which it stands, by where it begins, and the rows before the next one; no page begins at 0.
PAGE, ROW = range(11, 13)
#: Where the system is told of two places to read to: an address and bytes of each.
_VECTOR, _VECTOR_PLACES = 13, 2
_PLACES = _VECTOR + 2 * _VECTOR_PLACES

_external: Any = TYPES.ExternalFunction
#: The C library's, with addresses as numbers.
_pread = _external("pread", INT(TYPES.int32, INT, TYPES.uint64, INT))
_preadv = _external("preadv", INT(TYPES.int32, INT, TYPES.int32, INT))


class Windows:
    """Memory in which one thread divides pages of a file."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: of the open file; it belongs to the caller."""
        self.descriptor = descriptor
        self.window = np.empty(_STOP + _COPIED_BYTES_MAX + PADDING_BYTES, dtype=np.uint8)
        self.packed = np.empty(_PIECE_BYTES + _TAG_BYTES + PADDING_BYTES, dtype=np.uint8)
        self.places = np.zeros(_PLACES, dtype=np.int64)


@byte_kernel_part
def _read_piece(descriptor: int, packed: np.ndarray, places: np.ndarray) -> bool:
    """Read on after the compressed bytes that are left, which are few."""
    at, end = places[_PACKED_AT], places[_PACKED_END]
    for place in range(end - at):
        packed[place] = packed[at + place]
    end -= at
    wanted = min(places[_PIECE], places[_FILE_LEFT])
    count = _pread(descriptor, packed.ctypes.data + end, wanted, places[_FILE_AT])
    if count <= 0:
        return False
    places[_PACKED_AT], places[_PACKED_END] = 0, end + count
    places[_FILE_AT] += count
    places[_FILE_LEFT] -= count
    places[_PIECE] = _PIECE_BYTES
    return True


@byte_kernel_part
def _read_at_once(
    descriptor: int, window: np.ndarray, packed: np.ndarray, places: np.ndarray, count: int
) -> int:
    """Read so many bytes of a literal to the window, and what follows its last one to the place of compressed bytes.

    No compressed bytes are left. Returns how many bytes of the literal were read; 0 or less: it cannot be read.
    """
    more = 0
    if count == places[_LITERAL]:
        more = min(_SMALL_PIECE_BYTES, places[_FILE_LEFT] - count)
    places[_VECTOR], places[_VECTOR + 1] = window.ctypes.data + places[FILLED], count
    places[_VECTOR + 2], places[_VECTOR + 3] = packed.ctypes.data, more
    vector = places.ctypes.data + _VECTOR * places.itemsize
    read = _preadv(descriptor, vector, _VECTOR_PLACES, places[_FILE_AT])
    if read > 0:
        places[_FILE_AT] += read
        places[_FILE_LEFT] -= read
        places[_PIECE] = _SMALL_PIECE_BYTES
        places[_PACKED_AT], places[_PACKED_END] = 0, max(0, read - count)
    return int(min(count, read))


@byte_kernel_part
def _fill_literal(descriptor: int, window: np.ndarray, packed: np.ndarray, places: np.ndarray) -> bool:
    """Put some of a literal into the window."""
    filled = places[FILLED]
    count = min(places[_LITERAL], _STOP - filled)
    there = places[_PACKED_END] - places[_PACKED_AT]
    if there > 0:
        count = min(count, there)
        copy_text(packed, places[_PACKED_AT], count, window, filled, len(packed) - PADDING_BYTES)
        places[_PACKED_AT] += count
    elif count >= _AT_ONCE_BYTES and count <= places[_FILE_LEFT]:
        count = _read_at_once(descriptor, window, packed, places, count)
        if count <= 0:
            return False
    else:
        return bool(places[_FILE_LEFT] > 0 and _read_piece(descriptor, packed, places))
    places[_LITERAL] -= count
    places[FILLED] = filled + count
    return True


@byte_kernel_part
def _take_tag(window: np.ndarray, packed: np.ndarray, places: np.ndarray) -> bool:
    """What a tag says: a copy is made, a literal begins. False: it cannot be."""
    filled = places[FILLED]
    # The buffer goes on after the last byte that was read.
    length, offset, after = tag_at(packed, places[_PACKED_AT])
    if after > places[_PACKED_END] or length > _left(places):
        return False
    places[_PACKED_AT] = after
    if offset == -1:
        places[_LITERAL] = length
        return True
    if offset == 0 or offset > filled - FRONT_BYTES:
        return False
    copy_within(window, filled, offset, length)
    places[FILLED] = filled + length
    return True


@byte_kernel_part
def _take_many(window: np.ndarray, packed: np.ndarray, places: np.ndarray) -> bool:
    """Take tags that need no care; returns whether there were any."""
    at, filled = places[_PACKED_AT], places[FILLED]
    at_max = places[_PACKED_END] - TAKEN_BYTES_MAX
    filled_max = min(_STOP - 1, filled + _left(places) - MADE_BYTES_MAX)
    after, places[FILLED] = take_tags(packed, at, at_max, window, FRONT_BYTES, filled, filled_max)
    places[_PACKED_AT] = after
    return bool(after > at)


@byte_kernel_part
def fill_window(descriptor: int, window: np.ndarray, packed: np.ndarray, places: np.ndarray) -> bool:
    """Fill the window, up to the end of the page at most; False: the page is not as it says."""
    while places[FILLED] < _STOP:
        if places[_LITERAL] > 0:
            if not _fill_literal(descriptor, window, packed, places):
                return False
            continue
        if places[_PACKED_END] - places[_PACKED_AT] < _TAG_BYTES and places[_FILE_LEFT] > 0:
            if not _read_piece(descriptor, packed, places):
                return False
            continue
        if places[_PACKED_AT] == places[_PACKED_END]:
            return True
        if not _take_many(window, packed, places) and not _take_tag(window, packed, places):
            return False
    return True


@byte_kernel_part
def _left(places: np.ndarray) -> int:
    """Bytes of the page that are to follow those in the window."""
    return int(places[SIZE] - places[BEFORE] - (places[FILLED] - FRONT_BYTES))


@byte_kernel_part
def begin_page(
    descriptor: int, pages: np.ndarray, number: int, packed: np.ndarray, places: np.ndarray
) -> bool:
    """Set everything for a page; False: it is not as its header says."""
    places[_PACKED_AT] = places[_PACKED_END] = 0
    places[_FILE_AT], places[_FILE_LEFT], places[SIZE] = pages[number, 0], pages[number, 1], pages[number, 2]
    places[_PIECE] = _SMALL_PIECE_BYTES
    places[_LITERAL] = places[BEFORE] = places[TEXT_LEFT] = 0
    places[FILLED] = places[AT] = FRONT_BYTES
    if pages[number, 4] & IS_SNAPPY == 0:
        places[_LITERAL] = places[SIZE]
        return bool(places[_FILE_LEFT] == places[SIZE])
    if places[_FILE_LEFT] <= 0 or not _read_piece(descriptor, packed, places):
        return False
    size = shift = 0
    while places[_PACKED_AT] < places[_PACKED_END] and shift < 35:
        byte = byte_at(packed, places[_PACKED_AT])
        places[_PACKED_AT] += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return bool(size == places[SIZE])
    return False
