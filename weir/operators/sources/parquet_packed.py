"""A Numba kernel that reads pages of texts, decompresses them, and copies each text to its consumer, 64 KiB at a time.

A page of long texts is larger than the processor's cache: read, decompressed and divided as a whole, each of its bytes
goes to memory, or a cache far away, and comes back, twice. Here it goes through a window. Writers of Snappy compress
64 KiB at a time, each for itself, so that no byte before a window is needed again; a page that was written in another
way is read as a whole, as every page that is not as it says. What a compressor stored as it is, because it
does not repeat, is read from the file to its place in the window, and by the same call what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weir.kernel_bytes import PADDING_BYTES, byte_at, load4
from weir.kernels import byte_kernel, byte_kernel_part
from weir.operators.kernel_types import BYTES, INT, INTS, INTS_2D, OFFSETS, TYPES
from weir.operators.sources.parquet_division import copy_text_to
from weir.operators.sources.parquet_kernels import all_present, copy_text
from weir.operators.sources.parquet_snappy import copy_within

#: Decompressed bytes at a time. Before them what is left of the window before: less than the length of a text.
_WINDOW_BYTES, _FRONT_BYTES = 1 << 16, 64
_STOP = _FRONT_BYTES + _WINDOW_BYTES
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
_LITERAL, _FILLED, _BEFORE, _SIZE = range(5, 9)
#: Where the next text is in the window; bytes of the text that are not copied yet.
_AT, _TEXT_LEFT = range(9, 11)
#: The page in which it stands, by where it begins, and the rows before the next one; no page begins at 0.
_PAGE, _ROW = range(11, 13)
#: Where the system is told of two places to read to: an address and bytes of each.
_VECTOR, _VECTOR_PLACES = 13, 2
_PLACES = _VECTOR + 2 * _VECTOR_PLACES

_external: Any = TYPES.ExternalFunction
#: The C library's, with addresses as numbers.
_pread = _external("pread", INT(TYPES.int32, INT, TYPES.uint64, INT))
_preadv = _external("preadv", INT(TYPES.int32, INT, TYPES.int32, INT))


#: Columns of the array of pages that follow what a :class:`PackedPage` has, and its rows.
_ROWS, _PASSED, _WANTED = 3, 5, 6


class Windows:
    """Memory in which one thread divides pages of a file."""

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: of the open file; it belongs to the caller."""
        self.descriptor = descriptor
        self.window = np.empty(_STOP + _COPIED_BYTES_MAX + PADDING_BYTES, dtype=np.uint8)
        self.packed = np.empty(_PIECE_BYTES + _TAG_BYTES + PADDING_BYTES, dtype=np.uint8)
        self.places = np.zeros(_PLACES, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PackedPage:
    """A page that can be divided by :func:`divide_pages`."""

    windows: Windows
    #: Its row in the array of pages.
    place: tuple[int, int, int, int, int]


def divide_packed(
    pages: Sequence[PackedPage],
    owners: np.ndarray,
    row: int,
    targets: Sequence[np.ndarray],
    passed: int = 0,
    left: int = 0,
) -> int:
    """Copy the texts of pages of one file to those of their consumers; see :func:`divide_pages`.

    ``passed``: rows of the first page before those that are wanted; ``left``: rows of the last one after them.
    """
    windows = pages[0].windows
    places = np.array([(*page.place, 0, page.place[_ROWS]) for page in pages], dtype=np.int64)
    places[0, _PASSED] += passed
    places[0, _WANTED] -= passed
    places[-1, _WANTED] -= left
    memory = windows.window, windows.packed, windows.places
    return int(divide_pages(windows.descriptor, places, *memory, owners, row, *targets))


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
    places[_VECTOR], places[_VECTOR + 1] = window.ctypes.data + places[_FILLED], count
    places[_VECTOR + 2], places[_VECTOR + 3] = packed.ctypes.data, more
    vector = places.ctypes.data + _VECTOR * places.itemsize
    read = _preadv(descriptor, vector, _VECTOR_PLACES, places[_FILE_AT])
    if read > 0:
        places[_FILE_AT] += read
        places[_FILE_LEFT] -= read
        places[_PIECE] = _SMALL_PIECE_BYTES
        places[_PACKED_AT], places[_PACKED_END] = 0, max(0, read - count)
    return min(count, read)


@byte_kernel_part
def _fill_literal(descriptor: int, window: np.ndarray, packed: np.ndarray, places: np.ndarray) -> bool:
    """Put some of a literal into the window."""
    filled = places[_FILLED]
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
    places[_FILLED] = filled + count
    return True


@byte_kernel_part
def _take_tag(window: np.ndarray, packed: np.ndarray, places: np.ndarray) -> bool:
    """What a tag says: a copy is made, a literal begins. False: it cannot be."""
    at, end, filled = places[_PACKED_AT], places[_PACKED_END], places[_FILLED]
    tag = byte_at(packed, at)
    kind, number = tag & 3, tag >> 2
    left = places[_SIZE] - places[_BEFORE] - (filled - _FRONT_BYTES)
    # The buffer goes on after the last byte that was read.
    word = int(load4(packed, at + 1))
    if kind == 0:
        extra = max(0, number - 59)
        if extra:
            number = word & ((1 << (8 * extra)) - 1)
        places[_PACKED_AT] = at + 1 + extra
        places[_LITERAL] = number + 1
        return bool(at + 1 + extra <= end and number + 1 <= left)
    if kind == 1:
        length, offset, extra = 4 + (number & 7), (tag >> 5 << 8) | (word & 0xFF), 1
    elif kind == 2:
        length, offset, extra = number + 1, word & 0xFFFF, 2
    else:
        length, offset, extra = number + 1, word, 4
    if at + 1 + extra > end or length > left or offset == 0 or offset > filled - _FRONT_BYTES:
        return False
    copy_within(window, filled, offset, length)
    places[_PACKED_AT] = at + 1 + extra
    places[_FILLED] = filled + length
    return True


@byte_kernel_part
def _fill(descriptor: int, window: np.ndarray, packed: np.ndarray, places: np.ndarray) -> bool:
    """Fill the window, up to the end of the page at most; False: the page is not as it says."""
    while places[_FILLED] < _STOP:
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
        if not _take_tag(window, packed, places):
            return False
    return True


@byte_kernel_part
def _begin(descriptor: int, pages: np.ndarray, number: int, packed: np.ndarray, places: np.ndarray) -> bool:
    """Set everything for a page; False: it is not as its header says."""
    places[_PACKED_AT] = places[_PACKED_END] = 0
    places[_FILE_AT], places[_FILE_LEFT], places[_SIZE] = pages[number, 0], pages[number, 1], pages[number, 2]
    places[_PIECE] = _SMALL_PIECE_BYTES
    places[_LITERAL] = places[_BEFORE] = places[_TEXT_LEFT] = 0
    places[_FILLED] = places[_AT] = _FRONT_BYTES
    if pages[number, 4] & IS_SNAPPY == 0:
        places[_LITERAL] = places[_SIZE]
        return bool(places[_FILE_LEFT] == places[_SIZE])
    if places[_FILE_LEFT] <= 0 or not _read_piece(descriptor, packed, places):
        return False
    size = shift = 0
    while places[_PACKED_AT] < places[_PACKED_END] and shift < 35:
        byte = byte_at(packed, places[_PACKED_AT])
        places[_PACKED_AT] += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return bool(size == places[_SIZE])
    return False


@byte_kernel_part
def _pass_levels(window: np.ndarray, places: np.ndarray, rows: int) -> bool:
    """Pass over the levels at the beginning of a page; False: a row has no value, or they do not end in the window."""
    at, filled = places[_AT], places[_FILLED]
    if filled - at < 4:
        return False
    stop = at + 4 + int(load4(window, at))
    places[_AT] = stop
    return stop <= filled and all_present(window, at + 4, stop, rows)


@byte_kernel_part
def _divide_window(
    window: np.ndarray,
    places: np.ndarray,
    rows: int,
    owners: np.ndarray,
    row: int,
    starts: np.ndarray,
    to: np.ndarray,
    stops: np.ndarray,
    offsets: np.ndarray,
    nexts: np.ndarray,
) -> int:
    """Copy texts, also the beginning of one that goes on in the next window; returns how many ended here, or -1."""
    at, filled, left = places[_AT], places[_FILLED], places[_TEXT_LEFT]
    safe = len(window) - PADDING_BYTES
    page_left = places[_SIZE] - places[_BEFORE] + _FRONT_BYTES
    number = 0
    while number < rows:
        owner = owners[row + number]
        address = to[owner]
        if left == 0:
            if filled - at < 4:
                break
            left = int(load4(window, at))
            at += 4
            if left > page_left - at or address + left > stops[owner]:
                return -1
        count = min(left, filled - at)
        copy_text_to(window, at, count, address, safe)
        at += count
        left -= count
        to[owner] = address + count
        if left > 0:
            break
        offsets[nexts[owner]] = address + count - starts[owner]
        nexts[owner] += 1
        number += 1
    places[_AT], places[_TEXT_LEFT] = at, left
    return number


@byte_kernel_part
def _pass_texts(window: np.ndarray, places: np.ndarray, rows: int) -> int:
    """As :func:`_divide_window`, of texts that are not wanted."""
    at, filled, left = places[_AT], places[_FILLED], places[_TEXT_LEFT]
    page_left = places[_SIZE] - places[_BEFORE] + _FRONT_BYTES
    number = 0
    while number < rows:
        if left == 0:
            if filled - at < 4:
                break
            left = int(load4(window, at))
            at += 4
            if left > page_left - at:
                return -1
        count = min(left, filled - at)
        at += count
        left -= count
        if left > 0:
            break
        number += 1
    places[_AT], places[_TEXT_LEFT] = at, left
    return number


@byte_kernel_part
def _next_window(window: np.ndarray, places: np.ndarray) -> None:
    """Begin again, after the bytes that were not taken: fewer than a text's length has."""
    at, filled = places[_AT], places[_FILLED]
    kept = filled - at
    for place in range(kept):
        window[_FRONT_BYTES - kept + place] = window[at + place]
    places[_AT] = _FRONT_BYTES - kept
    places[_BEFORE] += filled - _FRONT_BYTES
    places[_FILLED] = _FRONT_BYTES


@byte_kernel(INT(TYPES.int32, INTS_2D, BYTES, BYTES, INTS, OFFSETS, INT, INTS, INTS, INTS, OFFSETS, INTS))
def divide_pages(
    descriptor: int,
    pages: np.ndarray,
    window: np.ndarray,
    packed: np.ndarray,
    places: np.ndarray,
    owners: np.ndarray,
    row: int,
    starts: np.ndarray,
    to: np.ndarray,
    stops: np.ndarray,
    offsets: np.ndarray,
    nexts: np.ndarray,
) -> int:
    """Copy the texts of pages in a file to the texts of their consumers, as ``parquet_division.divide_plain``.

    Args:
        descriptor: of the file.
        pages: int64, shape (pages, 7): where each begins after its header, its bytes there and decompressed, its rows,
            ``IS_SNAPPY`` and ``HAS_LEVELS``, rows to pass over, and rows that are wanted after them. The end of a page
            is read by the next call, if that begins where this one ends.
        window: see :class:`Windows`, as the two that follow. They belong to the pages of one column.
        packed: see there.
        places: see there.
        owners: int32, the consumer of each row, at least of those of all pages from ``row`` on.
        row: number of the first row in ``owners``.
        starts: see ``divide_plain``, as all that follows.
        to: see there.
        stops: see there.
        offsets: see there.
        nexts: see there.

    Returns:
        The number of the row after them; -1: a page cannot be read, or in another way, or there is no room.
    """
    stood_page, stood_row = places[_PAGE], places[_ROW]
    places[_PAGE] = 0
    for number in range(len(pages)):
        passed, rows = pages[number, _PASSED], pages[number, _WANTED]
        is_begun = passed > 0 and stood_page == pages[number, 0] and stood_row == passed
        has_levels = not is_begun and pages[number, 4] & HAS_LEVELS != 0
        if is_begun:
            passed = 0
        elif not _begin(descriptor, pages, number, packed, places):
            return -1
        while passed + rows > 0:
            if not is_begun and (
                not _fill(descriptor, window, packed, places) or places[_FILLED] == _FRONT_BYTES
            ):
                return -1
            is_begun = False
            if has_levels and not _pass_levels(window, places, pages[number, _ROWS]):
                return -1
            has_levels = False
            count = 0
            if passed > 0:
                count = _pass_texts(window, places, passed)
                passed -= count
            if count >= 0 and passed == 0:
                count = _divide_window(window, places, rows, owners, row, starts, to, stops, offsets, nexts)
                rows -= count
                row += count
            if count < 0:
                return -1
            if passed + rows > 0:
                _next_window(window, places)
        places[_ROW] = pages[number, _PASSED] + pages[number, _WANTED]
    if len(pages):
        places[_PAGE] = pages[len(pages) - 1, 0]
    return row
