"""The way from bytes of CSV to record batches: what ``csv_scan`` found, as Arrow columns, and why records are bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.csv.csv_format import CsvFormat
from weir.operators.sources.csv.csv_scan import (
    BAD_FIELD,
    BAD_START,
    BAD_STOP,
    BAD_WHY,
    COLUMN_KIND,
    COLUMN_NULLS,
    COLUMN_SLOT,
    COLUMN_TEXT,
    KIND_BOOL,
    KIND_FLOAT,
    KIND_INT,
    KIND_LATE,
    KIND_TEXT,
    Columns,
    Writing,
    scan_records,
)
from weir.operators.sources.csv.csv_tokens import (
    BAD_FIELDS,
    BAD_NULL,
    BAD_QUOTE,
    BAD_UTF8,
    BAD_VALUE,
    OPEN_QUOTE,
    OUT_OF_RANGE,
    TOO_LONG,
)
from weir.operators.sources.json.json_decode import Decoded
from weir.operators.sources.json.json_late import by_entry, gathered_texts
from weir.operators.sources.json.json_strict import Rejection, too_long
from weir.operators.sources.json.json_values import integer_range, wrong_type
from weir.rows.decimals import decimals_of_texts

_KINDS = {
    pa.float64(): KIND_FLOAT,
    pa.bool_(): KIND_BOOL,
    pa.string(): KIND_TEXT,
    pa.large_string(): KIND_TEXT,
    pa.binary(): KIND_TEXT,
}
#: Room for texts; a longer record than fits into it for each column has room of its own.
_TEXT_BYTES_MAX = 128 << 20
_MESSAGES = {
    BAD_QUOTE: "field {name} has a quote in the wrong place",
    OPEN_QUOTE: "field {name} has a quote that is not closed",
    BAD_UTF8: "field {name} is not UTF-8",
    BAD_NULL: "field {name} is null",
    BAD_VALUE: "field {name} is not of type {type}",
    OUT_OF_RANGE: "field {name} is out of range for {type}",
}


class CsvDecoder:
    """Decodes records of files that have the same fields.

    Not thread-safe: it keeps scratch arrays. The batches that it returns share no memory with them.

    Args:
        schema: the user columns, each one of ``fields``; strings, bytes, bools, and what pyarrow makes of a text.
        required: columns that may not be null besides those that are not nullable in the schema.
        fields: names of all fields of a record, in order.
        form: how the file is written.
        rows_max: records that one call reads at most.
    """

    def __init__(
        self,
        schema: pa.Schema,
        required: Sequence[str],
        fields: Sequence[str],
        form: CsvFormat,
        rows_max: int,
    ) -> None:
        self.fields = tuple(fields)
        self._schema = schema
        self._form = form
        self._rows_max = rows_max
        wanted = np.full(len(fields), -1, dtype=np.int64)
        self._table = np.zeros((len(schema), 8), dtype=np.int64)
        texts = numbers = late = 0
        for index, item in enumerate(schema):
            wanted[self.fields.index(item.name)] = index
            bounds = integer_range(item.type)
            # A number beyond 63 bits is not the scanner's.
            is_integer = bounds is not None and bounds[1] < 2**63
            kind = KIND_INT if is_integer else _KINDS.get(item.type, KIND_LATE)
            low, high = bounds if bounds is not None and is_integer else (0, 0)
            nullable = item.nullable and item.name not in required
            slot = texts * (rows_max + 1) if kind == KIND_TEXT else numbers
            texts += kind == KIND_TEXT
            numbers += kind in (KIND_INT, KIND_FLOAT, KIND_BOOL)
            late += kind in (KIND_FLOAT, KIND_LATE)
            self._table[index] = kind, slot, low, high, 0, nullable, 0, 0
        for place in range(len(fields) - 1, -1, -1):
            if wanted[place] < 0 and place + 1 < len(fields):
                wanted[place] = min(-1, wanted[place + 1] - 1)
        self._text_columns = texts
        self._region_bytes_max = _TEXT_BYTES_MAX // max(1, texts)
        self._text_bytes = 0
        self._numbers = np.empty(numbers * rows_max, dtype=np.int64)
        self._decimals = self._numbers.view(np.float64)
        self._offsets = np.zeros(texts * (rows_max + 1), dtype=np.int32)
        self._texts = np.empty(0, dtype=np.uint8)
        self._valid = np.ones(len(schema) * rows_max, dtype=np.uint8)
        self._late = np.empty((late * rows_max, 4), dtype=np.int64)
        self._bad = np.empty((rows_max, 5), dtype=np.int64)
        self._starts = np.empty(rows_max, dtype=np.int64)
        nulls = [value.encode() for value in form.null_values if value]
        self._writing = Writing(
            delimiter=ord(form.delimiter),
            quote=ord(form.quote) if form.quote else -1,
            escape=ord(form.escape) if form.escape else -1,
            one_line=form.one_line,
            record_bytes_max=form.record_bytes_max,
            columns=wanted,
            empty_is_null="" in form.null_values,
            nulls=np.frombuffer(b"".join(nulls) + bytes(PADDING_BYTES), dtype=np.uint8).copy(),
            null_offsets=np.cumsum([0] + [len(value) for value in nulls], dtype=np.int64),
        )

    def decode(self, data: np.ndarray, start: int, stop: int, may_be_more: bool) -> Decoded:
        """Decode at most ``rows_max`` records of ``data[start:stop]``.

        Args:
            data: uint8; readable for ``PADDING_BYTES`` after ``stop``; ``data[stop - 1]`` is a newline.
            start: position of the first record.
            stop: end of the last line.
            may_be_more: a record that is not whole is left; if it is the first one, ``next_start`` is ``start``.
        """
        if stop - start <= self._region_bytes_max or not self._text_columns:
            return self._decode(data, start, stop, may_be_more)
        # Each column of texts has room for a whole region.
        whole = data[start : start + self._region_bytes_max].tobytes().rfind(b"\n") + 1
        if whole:
            decoded = self._decode(data, start, start + whole, True)
            if decoded.next_start > start:
                return decoded
        return self._decode_one(data, start, stop, may_be_more)

    def _decode_one(self, data: np.ndarray, start: int, stop: int, may_be_more: bool) -> Decoded:
        """Decode one record, whose texts lie one after the other."""
        texts, offsets, table, rows_max = self._texts, self._offsets, self._table, self._rows_max
        self._texts = np.empty(stop - start + PADDING_BYTES, dtype=np.uint8)
        self._offsets = np.zeros(self._text_columns + 1, dtype=np.int32)
        self._table = table.copy()
        in_record = [column for column in self._writing.columns.tolist() if column >= 0]
        of_texts = [column for column in in_record if table[column, COLUMN_KIND] == KIND_TEXT]
        self._table[of_texts, COLUMN_SLOT] = np.arange(len(of_texts))
        self._table[of_texts, COLUMN_TEXT] = 0
        self._rows_max = 1
        try:
            return self._decode(data, start, stop, may_be_more, has_room=True)
        finally:
            self._texts, self._offsets, self._table, self._rows_max = texts, offsets, table, rows_max

    def _decode(
        self, data: np.ndarray, start: int, stop: int, may_be_more: bool, *, has_room: bool = False
    ) -> Decoded:
        if not has_room:
            self._reserve(stop - start)
        after, rows, bad_count, late_count = self._scan(data, start, stop, self._rows_max, may_be_more)
        good = np.ones(rows, dtype=np.bool_)
        rejections = [self._rejection(row, data) for row in self._bad[:bad_count].tolist()]
        starts = self._starts[:rows].copy()
        late, bounds = by_entry(self._late[:late_count], len(self._table))
        arrays = [
            self._array(index, data, rows, late[bounds[index] : bounds[index + 1]], good, rejections, starts)
            for index in range(len(self._table))
        ]
        if self._table[:, COLUMN_NULLS].any():
            for index in np.flatnonzero(self._table[:, COLUMN_NULLS]).tolist():
                self._valid[index * self._rows_max : index * self._rows_max + rows] = 1
            self._table[:, COLUMN_NULLS] = 0
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not good.all():
            batch, starts = batch.filter(pa.array(good)), starts[good]
            # Only now, as this scans again: where the records end.
            rejections = [self._whole(data, stop, rejection) for rejection in rejections]
            rejections.sort(key=lambda rejection: rejection.start)
        return Decoded(batch, rejections, after, starts)

    def all_bad(self, decoded: Decoded, data: np.ndarray, stop: int, reason: str) -> Decoded:
        """The same without rows: each record is rejected for the reason, if not for another."""
        assert decoded.starts is not None
        found = [Rejection(start, -1, reason) for start in decoded.starts.tolist()]
        rejections = [*decoded.rejections, *(self._whole(data, stop, rejection) for rejection in found)]
        rejections.sort(key=lambda rejection: rejection.start)
        return Decoded(decoded.batch[:0], rejections, decoded.next_start, decoded.starts[:0])

    def _scan(
        self, data: np.ndarray, start: int, stop: int, rows_max: int, may_be_more: bool
    ) -> tuple[int, int, int, int]:
        columns = Columns(
            rows_max,
            self._table,
            self._numbers,
            self._decimals,
            self._offsets,
            self._texts,
            self._valid,
            self._late,
        )
        result: tuple[int, int, int, int] = scan_records(
            data, start, stop, may_be_more, self._writing, columns, self._bad, self._starts
        )
        return result

    def _reserve(self, region_bytes: int) -> None:
        """Make room for the texts of a region."""
        needed = region_bytes + PADDING_BYTES
        if self._text_columns and needed > self._text_bytes:
            self._text_bytes = needed
            self._texts = np.empty(needed * self._text_columns, dtype=np.uint8)
            is_text = self._table[:, COLUMN_KIND] == KIND_TEXT
            self._table[is_text, COLUMN_TEXT] = np.arange(self._text_columns) * needed

    def _array(
        self,
        index: int,
        data: np.ndarray,
        rows: int,
        late: np.ndarray,
        good: np.ndarray,
        rejections: list[Rejection],
        starts: np.ndarray,
    ) -> pa.Array:
        """Copy a column out; rows whose values turn out to be bad are put into ``good`` and ``rejections``.

        ``late``: those of this column.
        """
        data_type = self._schema.field(index).type
        kind, slot = (int(self._table[index, column]) for column in (COLUMN_KIND, COLUMN_SLOT))
        if kind in (KIND_FLOAT, KIND_LATE) and len(late):
            texts = gathered_texts(data, late)
            values, failed = _cast(texts, data_type)
            for place in failed:
                row = int(late[place, 1])
                why = self._reason(BAD_VALUE if kind == KIND_LATE else OUT_OF_RANGE, index)
                if pa_types.is_timestamp(data_type):
                    why = f"field {self._schema.field(index).name} {wrong_type(str(texts[place]), data_type)}"
                if good[row]:
                    good[row] = False
                    rejections.append(Rejection(int(starts[row]), -1, why))
            if kind == KIND_FLOAT:
                self._decimals[slot * self._rows_max + late[:, 1]] = values.to_numpy(zero_copy_only=False)
        if kind == KIND_LATE:
            if not len(late):
                return pa.nulls(rows, data_type)
            if len(values) == rows:
                return values
            places = np.full(rows, -1, dtype=np.int64)
            places[late[:, 1]] = np.arange(len(late))
            return values.take(pa.array(places, mask=places < 0))
        nulls = int(self._table[index, COLUMN_NULLS])
        valid = self._valid[index * self._rows_max :][:rows]
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        if kind == KIND_TEXT:
            offsets = self._offsets[slot:][: rows + 1]
            first = int(offsets[0])
            wide = (offsets - first).astype(np.int64 if data_type == pa.large_string() else np.int32)
            base = int(self._table[index, COLUMN_TEXT]) + first
            text = self._texts[base : base + int(wide[-1])].copy()
            return pa.Array.from_buffers(
                data_type, rows, [bitmap, pa.py_buffer(wide), pa.py_buffer(text)], nulls
            )
        cells = (self._decimals if kind == KIND_FLOAT else self._numbers)[slot * self._rows_max :][:rows]
        if kind == KIND_BOOL:
            bits = pa.py_buffer(np.packbits(cells.astype(np.bool_), bitorder="little"))
            return pa.Array.from_buffers(data_type, rows, [bitmap, bits], nulls)
        plain = pa.py_buffer(cells.astype(data_type.to_pandas_dtype()))
        return pa.Array.from_buffers(data_type, rows, [bitmap, plain], nulls)

    def _rejection(self, bad: Sequence[int], data: np.ndarray) -> Rejection:
        why, about = bad[BAD_WHY], bad[BAD_FIELD]
        if why == TOO_LONG:
            reason = too_long(self._form.record_bytes_max)
        elif why == BAD_FIELDS:
            reason = f"the record has {about} field{'s' * (about != 1)}, not {len(self.fields)}"
        else:
            column = int(self._writing.columns[about]) if about < len(self.fields) else -1
            if column >= 0:
                reason = self._reason(why, column)
            else:
                name = self.fields[about] if about < len(self.fields) else about + 1
                reason = _MESSAGES[why].format(name=name, type="")
        start, stop = bad[BAD_START], bad[BAD_STOP]
        form = self._form
        if (
            why == BAD_QUOTE
            and not form.escape
            and ("\\" + form.quote).encode() in data[start:stop].tobytes()
        ):
            reason += f'; if \\{form.quote} is a quote in a field, give the source escape="\\\\"'
        return Rejection(start, stop, reason)

    def _reason(self, why: int, column: int) -> str:
        item = self._schema.field(column)
        return _MESSAGES[why].format(name=item.name, type=item.type)

    def _whole(self, data: np.ndarray, stop: int, rejection: Rejection) -> Rejection:
        if rejection.stop >= 0:
            return rejection
        after = self._scan(data, rejection.start, stop, 1, False)[0]
        return Rejection(rejection.start, after, rejection.reason)


def _cast(texts: pa.Array, data_type: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Texts as values of a type, null where that is not possible; and the indices of these."""
    if pa_types.is_integer(data_type):
        # Arrow reads hexadecimal numbers, too.
        texts = pc.if_else(pc.match_substring_regex(texts, r"^[0-9]+$"), texts, "no number")
    try:
        values = _values_of(texts, data_type)
    except pa.ArrowException:
        failed = list(_failing(texts, data_type, 0))
        mask = np.zeros(len(texts), dtype=np.bool_)
        mask[failed] = True
        values = _values_of(pc.if_else(pa.array(mask), pa.scalar(None, texts.type), texts), data_type)
        return values, failed
    if pa_types.is_floating(data_type):
        numbers = values.to_numpy(zero_copy_only=False)
        infinite = np.flatnonzero(np.isinf(numbers)).tolist()
        return values, [index for index in infinite if "n" not in texts[index].as_py().lower()]
    return values, []


def _values_of(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    if pa_types.is_decimal128(data_type):
        return decimals_of_texts(texts, data_type)
    return pc.cast(texts, data_type)


def _failing(texts: pa.Array, data_type: pa.DataType, first: int) -> Iterator[int]:
    """Indices of the texts that are not values of the type, counted from ``first``: by halves."""
    try:
        _values_of(texts, data_type)
    except pa.ArrowException:
        if len(texts) == 1:
            yield first
            return
        half = len(texts) // 2
        yield from _failing(texts[:half], data_type, first)
        yield from _failing(texts[half:], data_type, first + half)
