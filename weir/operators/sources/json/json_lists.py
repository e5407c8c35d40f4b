"""Columns of JSON lines that are lists: a kernel reads the values in them as ``json_scan`` reads those of a line.

Of a list that is wanted whole the scanner of lines notes the place only. The values of all lists of a call go one after
the other into columns of their own; lists within lists are again noted by their places. A list with a value that is not
certain is left to the strict parser, with its line.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from weir.kernels.bytes import byte_at
from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import BYTES, INT, INTS, TYPES
from weir.operators.sources.json.json_scan import (
    CELLS_TYPE,
    ENTRIES_TYPE,
    ENTRY_KIND,
    ENTRY_NULLS,
    KIND_OBJECT,
    Cells,
    Entries,
    put_nulls,
    scan_object,
    scan_value,
)
from weir.operators.sources.json.json_tokens import literal, skip_space

#: Length of a list that is left to the strict parser.
_UNSURE = -1


@byte_kernel_part
def _values_max(data: np.ndarray, start: int, stop: int, room: int) -> int:
    """How many values the list there has at most; looked at only as far as needed to see that they have ``room``."""
    found = (stop - start) >> 1
    if found <= room:
        return found
    found = 1
    for at in range(start, stop):
        found += byte_at(data, at) == 0x2C
    return found


@byte_kernel_part
def _take_back(table: np.ndarray, cells: Cells, first: int, stop: int) -> None:
    """Forget which values of these rows were null."""
    valid, rows_max = cells.valid, cells.rows_max
    for entry in range(len(table)):
        for row in range(first, stop):
            cell = entry * rows_max + row
            table[entry, ENTRY_NULLS] -= 1 - np.int64(valid[cell])
            valid[cell] = 1


@byte_kernel(TYPES.UniTuple(INT, 3)(BYTES, INTS, INTS, INT, INT, INTS, ENTRIES_TYPE, CELLS_TYPE))
def scan_lists(
    data: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    first: int,
    bytes_max: int,
    lengths: np.ndarray,
    entries: Entries,
    cells: Cells,
) -> tuple[int, int, int]:
    """Read the values of lists into columns, as many lists as these have room for; each value is a row.

    Args:
        data: uint8, as :func:`scan_lines` takes it, which has found these lists to be JSON.
        starts: int64, where each list begins.
        stops: int64, where it ends.
        first: the list to begin with.
        bytes_max: of lists to read, unless it is one; the columns of texts have so much room.
        lengths: int64, of each list; filled, -1 for one that is not certain.
        entries: what is wanted; entry 0 is the value itself.
        cells: where values go.

    Returns:
        The list to go on with, rows, late values.
    """
    row = 0
    late_count = 0
    table, marks, rows_max = entries.table, entries.marks, cells.rows_max
    words = len(marks) >> 2
    number = first
    read = 0
    while number < len(starts):
        at, stop = starts[number], stops[number]
        read += stop - at
        if number > first and read > bytes_max:
            break
        if byte_at(data, at) != 0x5B:
            # A value of another type: the strict parser says which.
            lengths[number] = _UNSURE
            number += 1
            continue
        if row + _values_max(data, at, stop, rows_max - row) > rows_max:
            if row > 0:
                break
            lengths[number] = _UNSURE
            number += 1
            continue
        first_row, first_late = row, late_count
        at = skip_space(data, at + 1)
        is_open = byte_at(data, at) != 0x5D
        while is_open:
            for word in range(2 * words):
                marks[word] = 0
            if byte_at(data, at) == 0x6E:
                at, _ = literal(data, at)
            elif table[0, ENTRY_KIND] == KIND_OBJECT:
                at, late_count = scan_object(data, at, 1, row, entries, cells, late_count)
                marks[words] |= 1
            else:
                at, late_count = scan_value(data, at, 0, row, table, cells, late_count)
                marks[words] = 1
            if at < 0:
                break
            is_whole = True
            for word in range(words):
                is_whole = is_whole and marks[words + word] == marks[3 * words + word]
            if not is_whole:
                put_nulls(entries, cells, row)
            row += 1
            at = skip_space(data, at)
            is_open = byte_at(data, at) == 0x2C
            at = skip_space(data, at + 1)
        lengths[number] = row - first_row
        if at < 0:
            _take_back(table, cells, first_row, row)
            row, late_count = first_row, first_late
            lengths[number] = _UNSURE
        number += 1
    return number, row, late_count


class Scratch(Protocol):
    """What the values of lists are scanned into: ``json_decode`` makes it, and describes the arrays."""

    entries: Entries
    cells: Cells

    def fitting_bytes(self, longest: int, total: int) -> int:
        """Of values that lie apart, how many bytes to read at a time: those of the longest one at least."""

    def reserve(self, region_bytes: int) -> None:
        """Make room for the strings of a region."""

    def batch(self, data: np.ndarray, rows: int, late_count: int) -> tuple[pa.RecordBatch, np.ndarray]:
        """Copy the first rows out; with bool, shape (rows,): which of them are good."""


class ListValues:
    """Decodes lists of one entry whose values the scanner can read.

    Args:
        data_type: of the lists.
        columns: of their values, one column.
    """

    def __init__(self, data_type: pa.ListType, columns: Scratch) -> None:
        self.type = data_type
        self._columns = columns

    def decode(self, data: np.ndarray, late: np.ndarray, rows: int, good: np.ndarray) -> pa.Array:
        """The column; null where there is no list.

        Args:
            data: uint8, what was scanned.
            late: int64, shape (lists, 4): entry, row, start, end.
            rows: length of the column.
            good: bool, shape (rows,); False is put where a list is not of the type, or may not be.
        """
        if not len(late):
            return pa.nulls(rows, self.type)
        lengths, values = self._values(
            data, np.ascontiguousarray(late[:, 2]), np.ascontiguousarray(late[:, 3])
        )
        array, good_values = values
        unsure = lengths == _UNSURE
        lengths[unsure] = 0
        offsets = np.zeros(rows + 1, dtype=np.int32)
        offsets[late[:, 1] + 1] = lengths
        np.cumsum(offsets, out=offsets)
        good[late[unsure, 1]] = False
        bad_values = np.flatnonzero(~good_values)
        good[np.searchsorted(offsets, bad_values, side="right") - 1] = False
        bitmap = None
        if len(late) < rows:
            is_list = np.zeros(rows, dtype=np.bool_)
            is_list[late[:, 1]] = True
            bitmap = pa.py_buffer(np.packbits(is_list, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.type, rows, buffers, rows - len(late), children=[array])

    def _values(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, tuple[pa.Array, np.ndarray]]:
        """Of lists that are there: their lengths; and their values, with bool which of them are good."""
        columns = self._columns
        bytes_max = columns.fitting_bytes(int((stops - starts).max()), int((stops - starts).sum()))
        columns.reserve(bytes_max)
        lengths = np.empty(len(starts), dtype=np.int64)
        arrays: list[pa.Array] = []
        good: list[np.ndarray] = []
        done = 0
        while done < len(starts):
            done, values, late_count = scan_lists(
                data, starts, stops, done, bytes_max, lengths, columns.entries, columns.cells
            )
            batch, are_good = columns.batch(data, values, late_count)
            arrays.append(batch.column(0))
            good.append(are_good)
        if len(arrays) == 1:
            return lengths, (arrays[0], good[0])
        return lengths, (pa.concat_arrays(arrays), np.concatenate(good))
