"""A Numba kernel that copies each text of a page to its consumer while the page is read and decompressed.

A page of long texts is larger than the processor's cache: read, decompressed and divided as a whole, each of its bytes
goes to memory, or a cache far away, and comes back, twice. Here it goes through a window. Writers of Snappy compress
64 KiB at a time, each for itself, so that no byte before a window is needed again; a page that was written in another
way is read as a whole, as every page that is not as it says. What a compressor stored as it is, because it
does not repeat, is read from the file to its place in the window, and by the same call what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weir.kernels.bytes import PADDING_BYTES, load4
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BYTES, INT, INTS, INTS_2D, TYPES
from weir.operators.sources.parquet.parquet_division import TARGETS_TYPE, Targets, copy_text_to, end_text
from weir.operators.sources.parquet.parquet_kernels import all_present
from weir.operators.sources.parquet.parquet_window import (
    AT,
    BEFORE,
    FILLED,
    FRONT_BYTES,
    HAS_LEVELS,
    PAGE,
    ROW,
    SIZE,
    TEXT_LEFT,
    Windows,
    begin_page,
    fill_window,
)

#: Columns of the array of pages that follow what a :class:`PackedPage` has, and its rows.
_ROWS, _PASSED, _WANTED = 3, 5, 6


@dataclass(frozen=True, slots=True)
class PackedPage:
    """A page that can be divided by :func:`divide_pages`."""

    windows: Windows
    #: Its row in the array of pages.
    place: tuple[int, int, int, int, int]


def divide_packed(
    pages: Sequence[PackedPage], row: int, targets: Targets, passed: int = 0, left: int = 0
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
    return int(divide_pages(windows.descriptor, places, *memory, row, targets))


@byte_kernel_part
def _pass_levels(window: np.ndarray, places: np.ndarray, rows: int) -> bool:
    """Pass over the levels at the beginning of a page; False: a row has no value, or they do not end in the window."""
    at, filled = places[AT], places[FILLED]
    if filled - at < 4:
        return False
    stop = at + 4 + int(load4(window, at))
    places[AT] = stop
    return stop <= filled and all_present(window, at + 4, stop, rows)


@byte_kernel_part
def _divide_window(window: np.ndarray, places: np.ndarray, rows: int, row: int, targets: Targets) -> int:
    """Copy texts, also the beginning of one that goes on in the next window; returns how many ended here, or -1."""
    at, filled, left = places[AT], places[FILLED], places[TEXT_LEFT]
    safe = len(window) - PADDING_BYTES
    page_left = places[SIZE] - places[BEFORE] + FRONT_BYTES
    number = 0
    while number < rows:
        owner = targets.owners[row + number]
        address = targets.to[owner]
        if left == 0:
            if filled - at < 4:
                break
            left = int(load4(window, at))
            at += 4
            if left > page_left - at or address + left > targets.stops[owner]:
                return -1
        count = min(left, filled - at)
        copy_text_to(window, at, count, address, safe)
        at += count
        left -= count
        if left > 0:
            targets.to[owner] = address + count
            break
        end_text(targets, owner, address + count)
        number += 1
    places[AT], places[TEXT_LEFT] = at, left
    return number


@byte_kernel_part
def _pass_texts(window: np.ndarray, places: np.ndarray, rows: int) -> int:
    """As :func:`_divide_window`, of texts that are not wanted."""
    at, filled, left = places[AT], places[FILLED], places[TEXT_LEFT]
    page_left = places[SIZE] - places[BEFORE] + FRONT_BYTES
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
    places[AT], places[TEXT_LEFT] = at, left
    return number


@byte_kernel_part
def _next_window(window: np.ndarray, places: np.ndarray) -> None:
    """Begin again, after the bytes that were not taken: fewer than a text's length has."""
    at, filled = places[AT], places[FILLED]
    kept = filled - at
    for place in range(kept):
        window[FRONT_BYTES - kept + place] = window[at + place]
    places[AT] = FRONT_BYTES - kept
    places[BEFORE] += filled - FRONT_BYTES
    places[FILLED] = FRONT_BYTES


@byte_kernel(INT(TYPES.int32, INTS_2D, BYTES, BYTES, INTS, INT, TARGETS_TYPE))
def divide_pages(
    descriptor: int,
    pages: np.ndarray,
    window: np.ndarray,
    packed: np.ndarray,
    places: np.ndarray,
    row: int,
    targets: Targets,
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
        row: number of the first row among those of ``targets``.
        targets: of the rows of all pages from ``row`` on, at least; changed.

    Returns:
        The number of the row after them; -1: a page cannot be read, or in another way, or there is no room.
    """
    stood_page, stood_row = places[PAGE], places[ROW]
    places[PAGE] = 0
    for number in range(len(pages)):
        passed, rows = pages[number, _PASSED], pages[number, _WANTED]
        is_begun = passed > 0 and stood_page == pages[number, 0] and stood_row == passed
        has_levels = not is_begun and pages[number, 4] & HAS_LEVELS != 0
        if is_begun:
            passed = 0
        elif not begin_page(descriptor, pages, number, packed, places):
            return -1
        while passed + rows > 0:
            if not is_begun and (
                not fill_window(descriptor, window, packed, places) or places[FILLED] == FRONT_BYTES
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
                count = _divide_window(window, places, rows, row, targets)
                rows -= count
                row += count
            if count < 0:
                return -1
            if passed + rows > 0:
                _next_window(window, places)
        places[ROW] = pages[number, _PASSED] + pages[number, _WANTED]
    if len(pages):
        places[PAGE] = pages[len(pages) - 1, 0]
    return row
