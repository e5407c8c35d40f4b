"""What a good JSON line is, and the parsers for lines that the scanner is not certain about.

A good line is one JSON object (RFC 8259, UTF-8, nested at most ``DEPTH_MAX`` deep) whose fields have the
schema's types exactly: no number for a string, no ``1.0`` or ``true`` for an integer, no integer out of
range; an integer is good for a float. A schema field may not occur twice. Other fields are ignored. Missing
and null are the same, and good only in a nullable field; children of nested fields are always nullable.

Many lines go through pyarrow.json, which takes some input that is not good; ``line_shapes`` and the checks
here keep that away from it. Single lines go through orjson.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from weir.operators.sources.json.json_places import PlacedValues
from weir.operators.sources.json.json_values import (
    BadLineError,
    Pairs,
    all_names,
    is_overflown,
    name_of,
    parsed_type,
    reject_duplicates,
    value_converter,
    wrong_type,
)
from weir.operators.sources.lines.line_shapes import (
    DEPTH_MAX,
    SHAPE_BLANK,
    SHAPE_DEEP,
    SHAPE_OBJECT,
    line_shapes,
)
from weir.rows.decimals import are_decimals_of, has_decimals, may_overflow
from weir.rows.nested_paths import Path, object_key, path_text, path_tree, tree_schema

#: Fewer lines than this are cheaper one by one: a call of pyarrow.json takes most of a millisecond.
_BULK_LINES_MIN = 512
#: So do fewer lines of so many bytes together.
_BULK_BYTES_MIN = 256 << 10
#: Lines that go to pyarrow at a time; one bad line among them sends all of them through the slow parser.
_BULK_LINES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Rejection:
    """A line that is not good: its half-open range in the buffer, and why."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedLines:
    """Good lines as rows: ``batch`` has ``len(line_indices)`` rows; the indices (int64) ascend."""

    batch: pa.RecordBatch
    line_indices: np.ndarray
    rejections: list[Rejection]


#: Of more columns, names that occur twice are looked for in another way.
_COUNTED_NAMES_MAX = 16
#: Strings of a line without escapes, and whether each is a key.
_STRINGS = re.compile(rb'"([^"]*)"[ \t\r\n]*(:?)')


class StrictDecoder:
    """Decodes any lines for one schema.

    Args:
        schema: the user columns.
        required: names of the columns that every line must have a value of.
        line_bytes_max: longer lines are rejected unparsed.
        paths: of columns that are not the lines' own fields, what leads to them.
    """

    def __init__(
        self,
        schema: pa.Schema,
        required: Sequence[str],
        line_bytes_max: int,
        paths: Mapping[str, Path] | None = None,
    ) -> None:
        self._schema = schema
        given = [(paths or {}).get(name, (name,)) for name in schema.names]
        has_paths = any(len(path) > 1 for path in given) or [path[0] for path in given] != schema.names
        #: What lines are parsed into; then columns are taken out of it.
        self._tree = tree_schema(schema, given) if has_paths else schema
        self._given = given
        self._paths = [tuple(map(object_key, path)) for path in given]
        self._required = [
            (keys, path_text(path))
            for name, keys, path in zip(schema.names, self._paths, given, strict=True)
            if name in set(required)
        ]
        in_lists = any(isinstance(key, int) for path in given for key in path)
        #: Of lines that have lists of which single values are wanted.
        self._placed = PlacedValues(path_tree(schema, given)) if in_lists else None
        self._line_bytes_max = line_bytes_max
        self._nullable = pa.schema([field.with_nullable(True) for field in self._tree])
        parsed = pa.schema([field.with_type(parsed_type(field.type)) for field in self._nullable])
        self._parse_options = pa_json.ParseOptions(explicit_schema=parsed, unexpected_field_behavior="ignore")
        self._converters = [(field.name, value_converter(field.type)) for field in self._tree]
        self._exotic = [name for name, converter in self._converters if converter is None]
        self._has_decimals = any(has_decimals(field.type) for field in self._tree)
        names = sorted(all_names(self._tree))
        self._names = frozenset(name.encode() for name in names)
        self._quoted_names = [json.dumps(name, ensure_ascii=False).encode() for name in names]

    def decode(self, data: np.ndarray, lines: np.ndarray, count: int) -> DecodedLines:
        """Decode the first ``count`` lines; blank ones are passed over.

        Args:
            data: uint8 bytes.
            lines: int64, shape (at least count, 3): start and end (after the newline) of each line.
            count: number of lines.
        """
        shapes = np.empty(count, dtype=np.uint8)
        line_shapes(data, lines, count, self._line_bytes_max, shapes)
        job = _DecodeJob(data, lines, shapes)
        objects = np.flatnonzero(shapes == SHAPE_OBJECT)
        for first in range(0, len(objects), _BULK_LINES_MAX):
            self._decode_many(job, objects[first : first + _BULK_LINES_MAX])
        self._decode_singly(job, np.flatnonzero((shapes != SHAPE_OBJECT) & (shapes != SHAPE_BLANK)))
        job.rejections.sort(key=lambda rejection: rejection.start)
        if not job.batches:
            return DecodedLines(self._rows([]), np.empty(0, dtype=np.int64), job.rejections)
        batch = job.batches[0] if len(job.batches) == 1 else pa.concat_batches(job.batches)
        indices = np.concatenate(job.indices)
        if len(indices) > 1 and not bool(np.all(indices[1:] > indices[:-1])):
            order = np.argsort(indices)
            batch, indices = batch.take(pa.array(order)), indices[order]
        return DecodedLines(batch, indices, job.rejections)

    def _decode_many(self, job: _DecodeJob, indices: np.ndarray) -> None:
        """Decode lines of shape OBJECT: in bulk if all are good, else one by one."""
        batch = None
        is_bulk = len(indices) >= _BULK_LINES_MIN or job.size_bytes(indices) >= _BULK_BYTES_MIN
        if is_bulk and self._placed is None:
            batch = self._bulk(job.joined(indices))
        if batch is None or batch.num_rows != len(indices):
            self._decode_singly(job, indices)
            return
        good = np.ones(len(indices), dtype=np.bool_)
        for keys, name in self._required:
            column = _inner_column(batch, keys)
            if column.null_count:
                missing = column.is_null().to_numpy(zero_copy_only=False)
                for index in indices[missing & good].tolist():
                    job.reject(index, _missing(name))
                good &= ~missing
        if not good.all():
            batch, indices = batch.filter(pa.array(good)), indices[good]
        job.accept(self._columns_of(batch), indices)

    def _columns_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The user columns of rows as they were parsed."""
        if self._tree is not self._schema:
            batch = pa.RecordBatch.from_arrays(
                [_inner_column(batch, path) for path in self._paths], names=self._schema.names
            )
        return batch.cast(self._schema) if batch.schema != self._schema else batch

    def _bulk(self, raw: bytes) -> pa.RecordBatch | None:
        """Parse lines of shape OBJECT with pyarrow; None if any of them is not good."""
        if not raw.isascii():
            try:
                raw.decode()
            except UnicodeDecodeError:
                return None
        is_unusual = self._has_decimals and may_overflow(raw)
        if is_unusual and raw.count(b"\n") > 1:
            return None
        options = pa_json.ReadOptions(use_threads=False, block_size=len(raw) + 1)
        try:
            table = pa_json.read_json(pa.BufferReader(raw), options, self._parse_options)
            batch = table.select(self._tree.names).combine_chunks().to_batches()[0].cast(self._nullable)
            if is_unusual and not are_decimals_of(raw, batch):
                return None
        except (pa.ArrowException, IndexError):
            return None
        return None if any(map(is_overflown, batch.columns)) else batch

    def _decode_singly(self, job: _DecodeJob, indices: np.ndarray) -> None:
        rows: list[dict[str, Any]] = []
        good: list[int] = []
        lines: list[bytes] = []
        for index in indices.tolist():
            try:
                if job.shapes[index] == SHAPE_DEEP:
                    raise BadLineError(f"nested deeper than {DEPTH_MAX} levels")
                line = self._checked(job.line(index))
                row = self._row(line)
            except BadLineError as error:
                job.reject(index, str(error))
                continue
            rows.append(row)
            good.append(index)
            if self._exotic:
                lines.append(line)
        if self._exotic:
            self._decode_exotic(job, good, lines)
        elif good:
            job.accept(self._rows(rows), np.array(good, dtype=np.int64))

    def _checked(self, raw: bytes) -> bytes:
        """A line that is an object, with objects in place of lists of which single values are wanted."""
        if len(raw) > self._line_bytes_max:
            raise BadLineError(too_long(self._line_bytes_max))
        raw = raw.strip(b" \t\r\n")
        if self._placed is None:
            return raw
        _parsed(raw)
        return self._placed.line(raw)

    def _row(self, raw: bytes) -> dict[str, Any]:
        value = _parsed(raw)
        if self._may_repeat(raw):
            reject_duplicates(self._tree, json.loads(raw, object_pairs_hook=Pairs, parse_int=str))
        row = {}
        for name, converter in self._converters:
            field = value.get(name)
            if field is not None and converter is not None:
                try:
                    field = converter(field)
                except BadLineError as error:
                    raise BadLineError(self._first_reason(value) or f"field {name} {error}") from None
            row[name] = field
        for keys, name in self._required:
            inner: Any = row
            for key in keys:
                # What pyarrow is to convert was not looked at.
                inner = inner.get(key) if isinstance(inner, dict) else None
            if inner is None:
                raise BadLineError(_missing(name))
        return row

    def _may_repeat(self, raw: bytes) -> bool:
        """Whether a field could occur twice, which orjson would hide."""
        if b"\\" in raw:
            return True
        if len(self._quoted_names) <= _COUNTED_NAMES_MAX:
            return any(raw.count(name) > 1 for name in self._quoted_names)
        # Each name is looked for in the whole line above; here the line is passed once.
        keys = [key for key, colon in _STRINGS.findall(raw) if colon]
        if len(set(keys)) == len(keys):
            return False
        wanted = [key for key in keys if key in self._names]
        return len(set(wanted)) < len(wanted)

    def _decode_exotic(self, job: _DecodeJob, indices: Sequence[int], lines: Sequence[bytes]) -> None:
        """Parse lines for a schema with types that only pyarrow converts.

        Many at once, because a call takes as long as many lines; those among which one is not good are halved.
        """
        waiting = [(0, len(lines))] if lines else []
        while waiting:
            first, stop = waiting.pop()
            batch = self._bulk(b"\n".join(lines[first:stop]) + b"\n")
            if batch is not None and batch.num_rows == stop - first:
                job.accept(self._columns_of(batch), np.array(indices[first:stop], dtype=np.int64))
            elif stop - first == 1:
                job.reject(indices[first], self._wrong_type(lines[first]))
            else:
                middle = (first + stop) // 2
                waiting += [(middle, stop), (first, middle)]

    def _wrong_type(self, raw: bytes) -> str:
        """Which field of a line is not what pyarrow takes for its type."""
        whole = orjson.loads(raw)
        reason = self._first_reason(whole)
        if reason:
            return reason
        # An object on the way to a column is none.
        for name in self._exotic:
            if whole.get(name) is not None:
                return f"field {name} is not of type {self._tree.field(name).type}"
        return "a field does not have the type of the schema"

    def _first_reason(self, whole: dict[str, Any]) -> str:
        """Of a parsed line the first value that is wrong, and why; empty: none of those that are wanted is."""
        for field, keys, path in zip(self._schema, self._paths, self._given, strict=True):
            value: Any = whole
            for key in keys:
                value = value.get(key) if isinstance(value, dict) else None
            reason = self._reason(path_text(path), value, field.type)
            if reason:
                return reason
        return ""

    def _reason(self, name: str, value: Any, data_type: pa.DataType) -> str:
        """What is wrong with a value, by the innermost part of it that is; empty: nothing."""
        if value is None:
            return ""
        parts: list[tuple[str, Any, pa.DataType]] = []
        if pa.types.is_struct(data_type) and isinstance(value, dict):
            parts = [(f"{name}.{field.name}", value.get(field.name), field.type) for field in data_type]
        elif pa.types.is_list(data_type) and isinstance(value, list):
            parts = [(name, item, data_type.value_type) for item in value]
        for part in parts:
            reason = self._reason(*part)
            if reason:
                return reason
        converter = value_converter(data_type)
        if converter is not None:
            try:
                converter(value)
            except BadLineError as error:
                return f"field {name} {error}"
            return ""
        alone = StrictDecoder(pa.schema([pa.field("it", data_type)]), [], self._line_bytes_max)
        is_right = alone._bulk(orjson.dumps({"it": value}) + b"\n") is not None
        return "" if is_right else f"field {name} {wrong_type(str(value), data_type)}"

    def _rows(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        arrays = [pa.array([row[field.name] for row in rows], type=field.type) for field in self._tree]
        return self._columns_of(pa.RecordBatch.from_arrays(arrays, schema=self._nullable))


class _DecodeJob:
    """Input and results so far of one call."""

    def __init__(self, data: np.ndarray, lines: np.ndarray, shapes: np.ndarray) -> None:
        count = len(shapes)
        self._base = int(lines[0, 0]) if count else 0
        self._raw = data[self._base : int(lines[count - 1, 1]) if count else 0].tobytes()
        self._starts = lines[:count, 0] - self._base
        self._stops = lines[:count, 1] - self._base
        self._start_list: list[int] = self._starts.tolist()
        self._stop_list: list[int] = self._stops.tolist()
        self.shapes: list[int] = shapes.tolist()
        self.batches: list[pa.RecordBatch] = []
        self.indices: list[np.ndarray] = []
        self.rejections: list[Rejection] = []

    def line(self, index: int) -> bytes:
        return self._raw[self._start_list[index] : self._stop_list[index]]

    def joined(self, indices: np.ndarray) -> bytes:
        """Lines one after the other; mostly they are so already."""
        if np.array_equal(self._starts[indices[1:]], self._stops[indices[:-1]]):
            return self._raw[self._start_list[indices[0]] : self._stop_list[indices[-1]]]
        return b"".join([self.line(index) for index in indices.tolist()])

    def size_bytes(self, indices: np.ndarray) -> int:
        """Bytes of these lines."""
        return int((self._stops[indices] - self._starts[indices]).sum())

    def accept(self, batch: pa.RecordBatch, indices: np.ndarray) -> None:
        if batch.num_rows:
            self.batches.append(batch)
            self.indices.append(indices)

    def reject(self, index: int, reason: str) -> None:
        start, stop = self._start_list[index], self._stop_list[index]
        self.rejections.append(Rejection(self._base + start, self._base + stop, reason))


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadLineError(f"not valid JSON: {error.msg}") from None
    if type(value) is not dict:
        raise BadLineError(f"not a JSON object but {name_of(value)}")
    return value


def _inner_column(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    """The values at the end of a path; null where an object on the way is."""
    column = batch.column(path[0])
    for key in path[1:]:
        column = pc.struct_field(column, [column.type.get_field_index(key)])
    return column


def too_long(line_bytes_max: int) -> str:
    """The reason for rejecting a long line."""
    return f"line longer than line_bytes_max ({line_bytes_max} bytes)"


def _missing(name: str) -> str:
    return f"field {name} is missing or null"
