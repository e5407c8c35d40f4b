"""What a user's source yields, as a batch: rows that do not fit the schema are found and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from weir.operators.sources.source import Rows
from weir.python_rows import rows_batch
from weir.utf8 import row_json, wrong_texts

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
        batch = _of_table(rows, nullable)
    elif isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        batch, bad = _of_dicts(rows, nullable)
    else:
        raise TypeError(f"rows are a list of dicts, or a table of Arrow or Polars, not {type(rows).__name__}")
    for name in required:
        column = batch.column(name)
        if column.null_count:
            for number in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                bad.setdefault(number, f"field {name} is null")
    if not isinstance(rows, Sequence):
        for number, name in wrong_texts(batch).items():
            bad.setdefault(number, f"field {name} is not UTF-8")
    good = np.ones(batch.num_rows, dtype=np.bool_)
    good[list(bad)] = False
    texts = [(number, reason, _text(rows, batch, number)) for number, reason in sorted(bad.items())]
    kept = batch if not bad else batch.filter(pa.array(good))
    return CheckedRows(
        pa.RecordBatch.from_arrays(kept.columns, schema=schema), np.flatnonzero(good), texts, batch.num_rows
    )


def _of_table(rows: pl.DataFrame | pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    table = rows.to_arrow() if isinstance(rows, pl.DataFrame) else rows
    missing = [name for name in schema.names if name not in table.schema.names]
    if missing:
        raise TypeError(f"the rows have no column {missing[0]!r}, only {', '.join(table.schema.names)}")
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    try:
        table = table.select(schema.names).cast(schema)
    except _WRONG_VALUE as error:
        raise TypeError(f"the rows do not fit the source's schema: {error}") from error
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        # Texts of a batch have 32-bit offsets.
        raise TypeError("a column of the rows has more than 2 GiB of text; yield fewer rows at a time")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)


def _of_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """All rows; those that do not fit are null, and told with the reason."""
    try:
        return rows_batch(rows, schema), {}
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


def _what_is_wrong(row: object, schema: pa.Schema) -> str:
    if not isinstance(row, Mapping):
        return f"it is {type(row).__name__}, not a dict"
    for field in schema:
        try:
            rows_batch([row], pa.schema([field]))
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
