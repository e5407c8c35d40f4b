"""What a user's source yields, as a batch: rows that do not fit the schema are found and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.source import Rows
from weir.rows.decimals import are_floats, cast_exactly, has_decimals
from weir.rows.python_rows import NARROW_FLOATS, has_singles, rows_batch
from weir.rows.python_values import row_json
from weir.rows.schemas import is_list, with_innermost
from weir.rows.time_digits import differ_in_units, finer, lost_digits, lost_digits_of
from weir.rows.utf8 import wrong_texts

_WRONG_VALUE = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class CheckedRows:
    """Rows of a schema.

    Attributes:
        batch: the good ones, with the schema's columns.
        good: their numbers among all, ascending; int64, shape (rows of ``batch``,).
        bad: number, reason and text of the others.
        count: of all.
    """

    batch: pa.RecordBatch
    good: np.ndarray
    bad: list[tuple[int, str, bytes]]
    count: int


def checked_rows(rows: Rows, schema: pa.Schema, required: Sequence[str]) -> CheckedRows:
    """Bring rows to a schema.

    Args:
        rows: dicts, or a table of Arrow or Polars; columns that the schema does not have are dropped.
        schema: user columns.
        required: columns in which a null makes a row bad.

    Raises:
        TypeError: it is no rows, or a table without a column of the schema, or with another type.
    """
    nullable = pa.schema([field.with_nullable(True) for field in schema])
    bad: dict[int, str] = {}
    if isinstance(rows, pl.DataFrame | pa.Table | pa.RecordBatch):
        batch, bad = _of_table(rows, nullable)
    elif isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        batch, bad = _of_dicts(rows, nullable)
    else:
        raise TypeError(f"rows are a list of dicts, or a table of Arrow or Polars, not {type(rows).__name__}")
    for name in required:
        column = batch.column(name)
        if column.null_count:
            for number in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                bad.setdefault(number, f"field {name} is null")
    if isinstance(rows, pl.DataFrame | pa.Table | pa.RecordBatch):
        for number, name in wrong_texts(batch).items():
            bad.setdefault(number, f"field {name} is not UTF-8")
    numbers = np.arange(batch.num_rows)
    if not bad:
        return CheckedRows(
            pa.RecordBatch.from_arrays(batch.columns, schema=schema), numbers, [], batch.num_rows
        )
    good = np.delete(numbers, list(bad))
    texts = [(number, reason, _text(rows, batch, number)) for number, reason in sorted(bad.items())]
    kept = batch.take(pa.array(good))
    return CheckedRows(pa.RecordBatch.from_arrays(kept.columns, schema=schema), good, texts, batch.num_rows)


def _of_table(
    rows: pl.DataFrame | pa.Table | pa.RecordBatch, schema: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return all rows, and why some are bad: times have more digits than their column."""
    table = rows.to_arrow() if isinstance(rows, pl.DataFrame) else rows
    missing = [name for name in schema.names if name not in table.schema.names]
    if missing:
        raise TypeError(f"the rows have no column {missing[0]!r}, only {', '.join(table.schema.names)}")
    if isinstance(table, pa.RecordBatch):
        columns = [table.column(name) for name in schema.names]
        if [column.type for column in columns] == schema.types:
            # To make a table of it, and cast that to itself, would change nothing.
            return pa.RecordBatch.from_arrays(columns, schema=schema), {}
        table = pa.Table.from_batches([table])
    bad: dict[int, str] = {}
    try:
        given = _with_decimals(table.select(schema.names).combine_chunks(), schema)
        try:
            table = given.cast(schema)
        except pa.ArrowInvalid:
            table, bad = _without_lost_digits(given, schema)
        bad = _overflown(given, schema) | bad
    except _WRONG_VALUE as error:
        raise TypeError(f"the rows do not fit the source's schema: {error}") from error
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        # Texts of a batch have 32-bit offsets.
        raise TypeError("a column of the rows has more than 2 GiB of text; yield fewer rows at a time")
    return (batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)), bad


def _overflown(given: pa.Table, schema: pa.Schema) -> dict[int, str]:
    """Which rows have a finite number that a float of fewer bits has as infinite, also within lists and structs."""
    bad: dict[int, str] = {}
    for field, column in zip(schema, given.columns, strict=True):
        if column.type == field.type or not has_singles(field.type):
            continue
        # What else is cut off by this cast does not matter.
        doubles = column.cast(with_innermost(field.type, _double), safe=False)
        first = 0
        for before in doubles.chunks:
            for number in np.flatnonzero(became_infinite(before, before.cast(field.type))).tolist():
                bad.setdefault(first + number, f"field {field.name} is out of range for {field.type}")
            first += len(before)
    return bad


def _double(data_type: pa.DataType) -> pa.DataType:
    return pa.float64() if data_type in NARROW_FLOATS else data_type


def became_infinite(before: pa.Array, after: pa.Array) -> np.ndarray:
    """Bool, shape (values,): which have an infinite number that is finite as one of 64 bits."""
    data_type = after.type
    lost = np.zeros(len(after), dtype=np.bool_)
    if data_type in NARROW_FLOATS:
        both = pc.and_(pc.is_inf(after), pc.is_finite(before)).fill_null(False)
        lost = both.to_numpy(zero_copy_only=False)
    elif is_list(data_type):
        items = became_infinite(pc.list_flatten(before), pc.list_flatten(after))
        lost[pc.list_parent_indices(after).to_numpy()[items]] = True
    elif pa.types.is_struct(data_type):
        for index in range(data_type.num_fields):
            lost |= became_infinite(pc.struct_field(before, [index]), pc.struct_field(after, [index]))
    return lost


def _with_decimals(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with decimals as the schema has them.

    Raises:
        TypeError: they are floats.
    """
    for index, field in enumerate(schema):
        column = table.column(index)
        if has_decimals(field.type) and column.type != field.type:
            if are_floats(column.type, field.type):
                raise TypeError(
                    f"column {field.name!r} of the rows is {column.type}, and the source's schema says {field.type}: "
                    "floats would be rounded; round and cast them, or declare floats"
                )
            table = table.set_column(index, field.name, cast_exactly(column, field.type))
    return table


def _without_lost_digits(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """The table with nulls in place of times that have more digits than their column, and which rows these are.

    Raises:
        pa.ArrowInvalid: it does not fit otherwise.
    """
    bad: dict[int, str] = {}
    columns = []
    for field, column in zip(schema, table.combine_chunks().columns, strict=True):
        chunk = column.combine_chunks()
        lost = lost_digits(chunk, field.type, field.name) if differ_in_units(chunk.type, field.type) else {}
        if lost:
            kept = np.ones(len(chunk), dtype=np.bool_)
            kept[list(lost)] = False
            chunk = pc.if_else(pa.array(kept), chunk, pa.scalar(None, chunk.type))
            bad = lost | bad
        columns.append(chunk.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema), bad


def _of_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return all rows; those that do not fit are null, and told with the reason."""
    try:
        batch = rows_batch(rows, schema)
        return batch, _lost_digits(rows, schema)
    except (*_WRONG_VALUE, AttributeError):
        pass
    bad: dict[int, str] = {}
    kept: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        reason = _what_is_wrong(row, schema)
        if reason:
            bad[number] = reason
        kept.append({} if reason else row)
    return pa.RecordBatch.from_pylist(kept, schema=schema), bad


def _lost_digits(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> dict[int, str]:
    bad: dict[int, str] = {}
    for field in schema:
        if finer(field.type) != field.type:
            bad = lost_digits_of([row.get(field.name) for row in rows], field.type, field.name) | bad
    return bad


def _what_is_wrong(row: object, schema: pa.Schema) -> str:
    if not isinstance(row, Mapping):
        return f"it is {type(row).__name__}, not a dict"
    for field in schema:
        try:
            rows_batch([row], pa.schema([field]))
            lost = _lost_digits([row], pa.schema([field]))
            if lost:
                return lost[0]
        except _WRONG_VALUE as error:
            # The cause has the reason without the name of the column.
            return f"field {field.name}: {str(error.__cause__ or error).splitlines()[0]}"
    return ""


def _text(rows: Rows, batch: pa.RecordBatch, number: int) -> bytes:
    """A row as a person reads it."""
    if isinstance(rows, pl.DataFrame | pa.Table | pa.RecordBatch):
        return row_json(batch.slice(number, 1))
    row = rows[number]
    try:
        return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Integers of more than 64 bits, and texts that are no Unicode.
        return repr(row).encode(errors="backslashreplace")
