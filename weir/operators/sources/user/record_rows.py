"""Turns columns of records into rows: those that are good, and why the others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no row: its place among those given, why, and its value."""

    number: int
    reason: str
    raw: bytes


def text_column(values: pa.Array, field: pa.Field, bad: dict[int, str]) -> pa.Array:
    """Bytes as they are, or as text that must be UTF-8.

    Args:
        values: binary.
        field: bytes, or text.
        bad: reasons by the number of the record; those found here are added, and their values are null.
    """
    if field.type == values.type:
        return values
    try:
        return values.cast(field.type)
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for number, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                bad.setdefault(number, f"field {field.name}: not UTF-8 at byte {error.start}")
                texts.append(None)
        return pa.array(texts, type=field.type)


def good_rows(
    schema: pa.Schema,
    columns: Mapping[str, pa.Array],
    values: pa.RecordBatch | None,
    rows: np.ndarray,
    bad: Mapping[int, str],
    count: int,
) -> pa.RecordBatch:
    """Put columns together, without the records that are bad.

    Args:
        schema: of the rows.
        columns: some of its columns, of all records.
        values: the others, of those that were decoded.
        rows: the number of each of these; int64, shape (rows of ``values``,); of all records where there are none.
        bad: by the number of the record.
        count: of records.
    """
    is_good = np.ones(count, dtype=np.bool_)
    is_good[list(bad)] = False
    kept = is_good[rows]
    if values is not None and not kept.all():
        values = values.filter(pa.array(kept))
    numbers = rows[kept]
    all_good = len(numbers) == count
    arrays = [
        values.column(field.name)
        if values is not None and field.name not in columns
        else columns[field.name]
        if all_good
        else columns[field.name].take(pa.array(numbers))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
