"""The way from bytes of JSON lines to record batches: the scanner, then the strict parsers for what it leaves.

The scanner fills flat arrays, by tables that are made for a schema (:class:`ScanColumns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from weir.kernels.behind import KernelBehind
from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.json.json_entries import (
    CELLS_MAX,
    UnscannableError,
    Wanted,
    give_slots,
    limits_of,
    numbered,
    rows_at_a_time,
    sets_of,
    want,
)
from weir.operators.sources.json.json_late import RawValues, by_entry, put_late_numbers
from weir.operators.sources.json.json_lists import ListValues
from weir.operators.sources.json.json_scan import (
    ENTRY_COLUMNS,
    ENTRY_KIND,
    ENTRY_NULLS,
    ENTRY_SLOT,
    ENTRY_TEXT,
    KIND_BOOL,
    KIND_DATE,
    KIND_DECIMAL,
    KIND_FLOAT,
    KIND_INT,
    KIND_OBJECT,
    KIND_RAW,
    KIND_STRING,
    KIND_TIME,
    KIND_UNSIGNED,
    Cells,
    Entries,
    fill_slots,
    scan_lines,
)
from weir.operators.sources.json.json_strict import DecodedLines, Rejection, StrictDecoder
from weir.operators.sources.lines.line_shapes import cut_lines
from weir.rows.nested_paths import Path

_INT64_MAX = 2**63 - 1
#: Of more, the hash tables are not worth their memory.
_ENTRIES_MAX = 4096
#: Values of one call: of many columns it reads fewer bytes.
_TEXT_BYTES_MAX = 64 << 20
#: Values of lists that are read at a time: fewer of many columns. A list that has more is left to the strict parser.
_VALUES_MAX, _VALUES_MIN = 1 << 15, 1 << 10
#: Columns of texts, at most: each has room for all bytes of a call, and of more calls would be too small.
_STRINGS_MAX = 160
#: Texts with offsets of 64 bits.
_WIDE_TEXTS = (pa.large_string(), pa.large_binary())
#: Kinds whose values are in cells of ``numbers``.
_IN_CELLS = (KIND_INT, KIND_FLOAT, KIND_BOOL, KIND_TIME, KIND_DATE, KIND_DECIMAL, KIND_UNSIGNED)
#: Least and greatest size of numbers that are certain to be in the range of float32, with all of its bits.
_SINGLE_MIN, _SINGLE_MAX = 2.0**-125, 2.0**127
#: Compiling it takes as long as all other kernels of a small job; the strict parsers give the same rows meanwhile.
_SCANNER = KernelBehind(scan_lines)


class ScanColumns:
    """Scratch arrays in the form of ``scan_lines``; one for each decoder."""

    @classmethod
    def make(
        cls, schema: pa.Schema, required: Sequence[str], paths: Mapping[str, Path], rows_max: int
    ) -> ScanColumns | None:
        """Make the columns; None: the scanner cannot read such a schema.

        Args:
            schema: the columns, in their order.
            required: names of columns that may not be null.
            paths: of columns that are not the line's own fields, what leads to them.
            rows_max: lines that are scanned at a time at most, see ``rows_max`` of the result.
        """
        root: dict[str | int, Wanted] = {}
        try:
            columns = []
            for item in schema:
                path = tuple(paths.get(item.name, (item.name,)))
                columns.append(want(root, path, item.type, nullable=item.name not in required))
            return cls(schema, root, columns, rows_at_a_time(root, rows_max))
        except UnscannableError:
            return None

    def __init__(
        self, schema: pa.Schema, root: dict[str | int, Wanted], columns: Sequence[Wanted], rows_max: int
    ) -> None:
        self.schema = schema
        self._columns = columns
        self._text_bytes = 0
        entries, tables = numbered(root)
        if len(entries) > _ENTRIES_MAX:
            raise UnscannableError
        quoted = [b"" if isinstance(wanted.key, int) else f'{wanted.key}"'.encode() for wanted in entries]
        keys = np.frombuffer(b"".join(quoted) + bytes(PADDING_BYTES), dtype=np.uint8).copy()
        key_offsets = np.cumsum([0] + [len(key) for key in quoted], dtype=np.int64)
        slot_count = give_slots(tables)
        slots = np.full(max(1, slot_count), -1, dtype=np.int64)
        if slot_count:
            fill_slots(keys, key_offsets, tables, slots)
        self._table = np.zeros((len(entries), ENTRY_COLUMNS), dtype=np.int64)
        self.entries = Entries(keys, key_offsets, self._table, tables, slots, sets_of(entries))
        strings = numbers = late = objects = 0
        for wanted in entries:
            low, high = limits_of(wanted.type)
            slot = strings if wanted.kind == KIND_STRING else numbers
            strings += wanted.kind == KIND_STRING
            numbers += wanted.kind in _IN_CELLS
            late += wanted.kind in (KIND_FLOAT, KIND_RAW)
            objects += wanted.kind == KIND_OBJECT
            number = objects if wanted.kind == KIND_OBJECT else 0
            place = wanted.key if isinstance(wanted.key, int) else -1
            self._table[wanted.entry] = (
                wanted.kind, slot, low, min(high, _INT64_MAX), 0, wanted.nullable, number, 0, place
            )  # fmt: skip
        if strings > _STRINGS_MAX:
            raise UnscannableError
        self._string_count = strings
        cells = np.empty(numbers * rows_max, dtype=np.int64)
        self.cells = Cells(
            rows_max,
            numbers=cells,
            decimals=cells.view(np.float64),
            offsets=np.zeros(strings * (rows_max + 1), dtype=np.int32),
            texts=np.empty(0, dtype=np.uint8),
            valid=np.ones(len(entries) * rows_max, dtype=np.uint8),
            late=np.empty((late * rows_max, 4), dtype=np.int64),
        )
        self.starts = np.empty(rows_max, dtype=np.int64)
        raw = [wanted for wanted in entries if wanted.kind == KIND_RAW and wanted.type]
        values_max = min(_VALUES_MAX, max(_VALUES_MIN, CELLS_MAX // max(1, len(raw))))
        self._raw = {wanted.entry: _raw_values(wanted.type, values_max) for wanted in raw}

    def fitting(self, data: np.ndarray, start: int, stop: int) -> int:
        """Where to end with a region of whole lines, so that there is room for the strings: at least one line."""
        limit = start + _TEXT_BYTES_MAX // max(1, self._string_count)
        if stop <= limit:
            return stop
        last = data[start:limit].tobytes().rfind(b"\n")
        if last < 0:
            start, last = limit, data[limit:stop].tobytes().find(b"\n")
        return start + last + 1

    def fitting_bytes(self, longest: int, total: int) -> int:
        """Return how many bytes of values that lie apart to read at a time: those of the longest one at least."""
        return max(longest, min(total, _TEXT_BYTES_MAX // max(1, self._string_count)))

    def reserve(self, region_bytes: int) -> None:
        """Make room for the strings of a region."""
        needed = region_bytes + PADDING_BYTES
        if self._string_count and needed > self._text_bytes:
            self._text_bytes = needed
            texts = np.empty(needed * self._string_count, dtype=np.uint8)
            self.cells = self.cells._replace(texts=texts)
            is_string = self._table[:, ENTRY_KIND] == KIND_STRING
            self._table[is_string, ENTRY_TEXT] = self._table[is_string, ENTRY_SLOT] * needed

    def batch(self, data: np.ndarray, rows: int, late_count: int) -> tuple[pa.RecordBatch, np.ndarray]:
        """Copy the first rows out, and make the scratch arrays ready for the next call.

        Returns:
            The rows; and which of them (bool, shape (rows,)) are good: a raw value may turn out not to be.
        """
        good = np.ones(rows, dtype=np.bool_)
        late = self.cells.late[:late_count]
        raw: dict[int, pa.Array] = {}
        if late_count:
            put_late_numbers(data, late, self._table, self.cells.rows_max, self.cells.decimals)
            late, bounds = by_entry(late, len(self._table))
            for entry, values in self._raw.items():
                first, stop = bounds[entry], bounds[entry + 1]
                raw[entry] = values.decode(data, late[first:stop], rows, good)
        for entry, values in self._raw.items():
            raw.setdefault(entry, pa.nulls(rows, values.type))
        arrays = [self._array(wanted, rows, raw, good) for wanted in self._columns]
        if self._table[:, ENTRY_NULLS].any():
            for entry in np.flatnonzero(self._table[:, ENTRY_NULLS]).tolist():
                self.cells.valid[entry * self.cells.rows_max : entry * self.cells.rows_max + rows] = 1
            self._table[:, ENTRY_NULLS] = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), good

    def _array(self, wanted: Wanted, rows: int, raw: Mapping[int, pa.Array], good: np.ndarray) -> pa.Array:
        entry, data_type = wanted.entry, wanted.type
        assert data_type is not None
        if wanted.kind == KIND_RAW:
            return raw[entry]
        nulls = int(self._table[entry, ENTRY_NULLS])
        valid = (
            self.cells.valid[entry * self.cells.rows_max : entry * self.cells.rows_max + rows]
            if nulls
            else None
        )
        if wanted.kind == KIND_OBJECT:
            children = [self._array(wanted.children[item.name], rows, raw, good) for item in data_type]
            mask = None if valid is None else pa.array(valid == 0)
            return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)
        bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        slot = int(self._table[entry, ENTRY_SLOT])
        if wanted.kind == KIND_STRING:
            offsets = self.cells.offsets[slot * (self.cells.rows_max + 1) :][: rows + 1]
            wide = offsets.astype(np.int64 if data_type in _WIDE_TEXTS else np.int32)
            base = int(self._table[entry, ENTRY_TEXT])
            text = self.cells.texts[base : base + int(offsets[-1])].copy()
            buffers = [bitmap, pa.py_buffer(wide), pa.py_buffer(text)]
            return pa.Array.from_buffers(data_type, rows, buffers, nulls)
        source = self.cells.decimals if wanted.kind == KIND_FLOAT else self.cells.numbers
        cells = source[slot * self.cells.rows_max :][:rows]
        if wanted.kind == KIND_BOOL:
            bits = pa.py_buffer(np.packbits(cells.astype(np.bool_), bitorder="little"))
            return pa.Array.from_buffers(data_type, rows, [bitmap, bits], nulls)
        if data_type == pa.float32():
            are_single = _are_single(cells)
            good &= are_single
            cells = np.where(are_single, cells, 0.0)
        plain = pa.py_buffer(_plain(wanted.kind, cells, data_type))
        return pa.Array.from_buffers(data_type, rows, [bitmap, plain], nulls)


def _raw_values(data_type: pa.DataType, values_max: int) -> RawValues | ListValues:
    """What decodes values of which the scanner notes the place; ``values_max``: of lists, read at a time."""
    if pa_types.is_list(data_type):
        schema = pa.schema([pa.field("v", data_type.value_type)])
        columns = ScanColumns.make(schema, [], {}, values_max)
        if columns is not None:
            return ListValues(data_type, columns)
    return RawValues(data_type)


def _are_single(cells: np.ndarray) -> np.ndarray:
    """Which floats (float64) are certain to be, as float32, the nearest ones to the digits they were made of.

    A float that is just between two narrower ones may have become that by rounding. Small ones have fewer bits, and of
    others there is no narrower one.
    """
    size = np.abs(cells)
    between = cells.view(np.int64) & 0x1FFFFFFF == 0x10000000
    are_single: np.ndarray = (size == 0) | ((size >= _SINGLE_MIN) & (size < _SINGLE_MAX) & ~between)
    return are_single


def _plain(kind: int, cells: np.ndarray, data_type: pa.DataType) -> np.ndarray:
    """Cells (int64 or float64) as Arrow has values of the type."""
    if kind in (KIND_TIME, KIND_UNSIGNED):
        return cells.copy()
    if kind == KIND_DATE:
        return cells.astype(np.int32)
    if kind == KIND_DECIMAL:
        # Two words, the lower one first; the upper one is all sign.
        return np.stack([cells, cells >> 63], axis=1)
    return cells.astype(data_type.to_pandas_dtype())


@dataclass(frozen=True, slots=True)
class Decoded:
    """Result of one call: rows in line order, rejected lines in line order, and where to go on."""

    batch: pa.RecordBatch
    rejections: list[Rejection]
    next_start: int
    #: int64, shape (rows,): where the record of each row begins; None: the decoder does not note it.
    starts: np.ndarray | None = None


class JsonDecoder:
    """Decodes JSON lines for one schema; ``weir.operators.sources.json.json_strict`` defines which lines are good.

    Not thread-safe: it keeps scratch arrays. The batches that it returns share no memory with them.

    Args:
        schema: the user columns.
        required: fields that may not be null besides those that are not nullable in the schema.
        line_bytes_max: longer lines are rejected.
        lines_max: lines that one call reads at most.
        use_scanner: False leaves all lines to the strict parsers (for tests and comparisons).
        paths: of columns that are not the lines' own fields, what leads to them.
    """

    def __init__(
        self,
        schema: pa.Schema,
        required: Sequence[str] = (),
        line_bytes_max: int = 8 << 20,
        lines_max: int = 32_768,
        use_scanner: bool = True,
        paths: Mapping[str, Path] | None = None,
    ) -> None:
        needed = [f.name for f in schema if not f.nullable or f.name in required]
        self._schema = schema
        self._line_bytes_max = line_bytes_max
        self._lines_max = lines_max
        self._strict = StrictDecoder(schema, needed, line_bytes_max, paths or {})
        self._lines = np.empty((lines_max, 3), dtype=np.int64)
        self._columns = ScanColumns.make(schema, needed, paths or {}, lines_max) if use_scanner else None

    def decode(self, data: np.ndarray, start: int, stop: int, wanted: int | None = None) -> Decoded:
        """Decode at most ``lines_max`` lines of ``data[start:stop]``.

        Args:
            data: uint8; readable for ``PADDING_BYTES`` after ``stop``; ``data[stop - 1]`` is a newline.
            start: position of the first line.
            stop: end of the last line.
            wanted: decode no more lines than this.
        """
        lines_max = self._lines_max if wanted is None else min(wanted, self._lines_max)
        columns = self._columns
        if columns is None or not (_SCANNER.is_ready or _SCANNER.look()):
            return self._decode_strictly(data, start, stop, lines_max)
        stop = columns.fitting(data, start, stop)
        columns.reserve(stop - start)
        after, rows, unsure, late = scan_lines(
            data,
            start,
            stop,
            min(lines_max, columns.cells.rows_max),
            self._line_bytes_max,
            columns.entries,
            columns.cells,
            self._lines,
            columns.starts,
        )
        fast, good = columns.batch(data, rows, late)
        if not good.all():
            fast = fast.filter(pa.array(good))
            unsure = self._leave_to_strict(data, start, after, columns.starts[:rows], good, unsure)
        if not unsure:
            return Decoded(fast, [], after)
        slow = self._strict.decode(data, self._lines, unsure)
        return Decoded(self._merge(fast, slow), slow.rejections, after)

    def _decode_strictly(self, data: np.ndarray, start: int, stop: int, lines_max: int) -> Decoded:
        """Decode lines without the scanner."""
        after, count = cut_lines(data, start, stop, lines_max, self._lines)
        slow = self._strict.decode(data, self._lines, count)
        if self._columns is not None:
            _SCANNER.did_without(count)
        return Decoded(slow.batch, slow.rejections, after)

    def _leave_to_strict(
        self, data: np.ndarray, start: int, stop: int, starts: np.ndarray, good: np.ndarray, unsure: int
    ) -> int:
        """Add the lines of rows that turned out not to be good to those that are not certain; returns their number."""
        lines = np.empty((self._lines_max, 3), dtype=np.int64)
        _, count = cut_lines(data, start, stop, self._lines_max, lines)
        not_certain = np.union1d(self._lines[:unsure, 0], starts[~good])
        chosen = lines[:count][np.isin(lines[:count, 0], not_certain)]
        chosen[:, 2] = np.searchsorted(starts[good], chosen[:, 0])
        self._lines[: len(chosen)] = chosen
        return len(chosen)

    def _merge(self, fast: pa.RecordBatch, slow: DecodedLines) -> pa.RecordBatch:
        """Put the rows of unsure lines back where their lines were."""
        slow_rows = slow.batch.num_rows
        if slow_rows == 0:
            return fast
        rows = fast.num_rows + slow_rows
        places = self._lines[slow.line_indices, 2] + np.arange(slow_rows)
        order = np.empty(rows, dtype=np.int64)
        from_fast = np.ones(rows, dtype=np.bool_)
        from_fast[places] = False
        order[from_fast] = np.arange(fast.num_rows)
        order[places] = np.arange(fast.num_rows, rows)
        return pa.concat_batches([fast, slow.batch]).take(pa.array(order))
