"""From bytes of JSON lines to record batches: the scanner first, the strict parsers for what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.byte_access import PADDING_BYTES
from weir.operators.sources.json_scan import (
    FIELDS_MAX,
    KIND_BOOL,
    KIND_FLOAT,
    KIND_INT,
    KIND_STRING,
    scan_lines,
)
from weir.operators.sources.json_strict import DecodedLines, Rejection, StrictDecoder, integer_range
from weir.operators.sources.line_shapes import cut_lines

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Decoded:
    """Result of one call: rows in line order, rejected lines in line order, and where to go on."""

    batch: pa.RecordBatch
    rejections: list[Rejection]
    next_start: int


class JsonDecoder:
    """Decodes JSON lines for one schema; ``weir.operators.sources.json_strict`` defines which lines are good.

    Not thread-safe: it keeps scratch arrays. The batches that it gives share no memory with them.

    Args:
        schema: the user columns.
        required: fields that may not be null besides those that are not nullable in the schema.
        line_bytes_max: longer lines are rejected.
        lines_max: lines that one call reads at most.
        use_scanner: False leaves all lines to the strict parsers (for tests and comparisons).
    """

    def __init__(
        self,
        schema: pa.Schema,
        required: Sequence[str] = (),
        line_bytes_max: int = 8 << 20,
        lines_max: int = 32_768,
        use_scanner: bool = True,
    ) -> None:
        needed = [f.name for f in schema if not f.nullable or f.name in required]
        self._schema = schema
        self._line_bytes_max = line_bytes_max
        self._lines_max = lines_max
        self._strict = StrictDecoder(schema, needed, line_bytes_max)
        self._lines = np.empty((lines_max, 3), dtype=np.int64)
        kinds = [_kind(field) for field in schema]
        self._columns = _ScanColumns(schema, [k for k in kinds if k is not None], lines_max)
        self._scans = use_scanner and None not in kinds and 0 < len(kinds) <= FIELDS_MAX

    def decode(self, data: np.ndarray, start: int, stop: int) -> Decoded:
        """Decode at most ``lines_max`` lines of ``data[start:stop]``.

        Args:
            data: uint8; readable for ``PADDING_BYTES`` behind ``stop``; ``data[stop - 1]`` is a newline.
            start: position of the first line.
            stop: end of the last line.
        """
        if not self._scans:
            after, count = cut_lines(data, start, stop, self._lines_max, self._lines)
            slow = self._strict.decode(data, self._lines, count)
            return Decoded(slow.batch, slow.rejections, after)
        columns = self._columns
        columns.reserve(stop - start)
        after, rows, unsure = scan_lines(
            data,
            start,
            stop,
            self._lines_max,
            self._line_bytes_max,
            columns.keys,
            columns.key_offsets,
            columns.table,
            columns.numbers,
            columns.decimals,
            columns.offsets,
            columns.texts,
            self._lines,
        )
        fast = columns.batch(rows)
        if not unsure:
            return Decoded(fast, [], after)
        slow = self._strict.decode(data, self._lines, unsure)
        return Decoded(self._merge(fast, slow), slow.rejections, after)

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


def _kind(field: pa.Field) -> int | None:
    """The scanner's kind of a field; None: it does not know the type, or the key needs escapes."""
    if not field.name.isprintable() or '"' in field.name or "\\" in field.name:
        return None
    if integer_range(field.type) is not None:
        return KIND_INT
    kinds = {
        pa.float64(): KIND_FLOAT,
        pa.bool_(): KIND_BOOL,
        pa.string(): KIND_STRING,
        pa.large_string(): KIND_STRING,
    }
    return kinds.get(field.type)


class _ScanColumns:
    """The scanner's field table and its scratch columns, in the form of ``scan_lines``."""

    def __init__(self, schema: pa.Schema, kinds: list[int], rows_max: int) -> None:
        quoted = [f'{name}"'.encode() for name in schema.names]
        self._schema = schema
        self._kinds = kinds
        self._rows_max = rows_max
        self._text_bytes = 0
        self.keys = np.frombuffer(b"".join(quoted) + bytes(PADDING_BYTES), dtype=np.uint8).copy()
        self.key_offsets = np.cumsum([0] + [len(key) for key in quoted], dtype=np.int64)
        self.table = np.zeros((len(kinds), 5), dtype=np.int64)
        strings = numbers = 0
        for index, (field, kind) in enumerate(zip(schema, kinds, strict=False)):
            low, high = integer_range(field.type) or (0, 0)
            slot = strings if kind == KIND_STRING else numbers
            strings, numbers = strings + (kind == KIND_STRING), numbers + (kind != KIND_STRING)
            self.table[index] = (kind, slot, low, min(high, _INT64_MAX), 0)
        self._string_count = strings
        self.numbers = np.empty(numbers * rows_max, dtype=np.int64)
        self.decimals = self.numbers.view(np.float64)
        self.offsets = np.zeros(strings * (rows_max + 1), dtype=np.int32)
        self.texts = np.empty(0, dtype=np.uint8)

    def reserve(self, region_bytes: int) -> None:
        """Make room for the strings of a region."""
        needed = region_bytes + PADDING_BYTES
        if self._string_count and needed > self._text_bytes:
            self._text_bytes = needed
            self.texts = np.empty(needed * self._string_count, dtype=np.uint8)
            is_string = self.table[:, 0] == KIND_STRING
            self.table[is_string, 4] = self.table[is_string, 1] * needed

    def batch(self, rows: int) -> pa.RecordBatch:
        """Copy the first rows out."""
        arrays = []
        for index, field in enumerate(self._schema):
            kind, slot, _, _, text_base = self.table[index].tolist()
            if kind == KIND_STRING:
                begin = slot * (self._rows_max + 1)
                arrays.append(self._strings(field.type, rows, begin, text_base))
                continue
            begin = slot * self._rows_max
            source = self.decimals if kind == KIND_FLOAT else self.numbers
            cells = source[begin : begin + rows]
            arrays.append(pa.array(cells.astype(field.type.to_pandas_dtype()), type=field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _strings(self, data_type: pa.DataType, rows: int, begin: int, text_base: int) -> pa.Array:
        offsets = self.offsets[begin : begin + rows + 1]
        wide = offsets.astype(np.int64 if data_type == pa.large_string() else np.int32)
        text = self.texts[text_base : text_base + int(offsets[-1])].copy()
        return pa.Array.from_buffers(data_type, rows, [None, pa.py_buffer(wide), pa.py_buffer(text)])
