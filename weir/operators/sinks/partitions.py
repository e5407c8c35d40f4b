"""Partitions as Hive has them: which folder a row goes to, and its rows without the columns that the folder says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.operators.sinks.text_parts import odd_times

#: What Hive, Spark, Polars and DuckDB take for a null.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
#: Not escaped, beside letters, digits, ``_``, ``.``, ``-`` and ``~``.
_PLAIN = " !$&()+,;@"
#: A folder's name has at most 255 bytes. Some are left for a value whose column has a very long name.
_FOLDER_BYTES_MAX, _VALUE_BYTES_MIN = 255, 40
#: Of a hash that follows a cut value, with a mark before it.
_HASH_BYTES = 17


def folder_of(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """The folder of a partition, relative and with ``/`` at its end; "" without columns.

    Values are escaped as in a URL (``/`` is ``%2F``). A null and an empty text are Hive's default partition, because no
    folder has an empty value. A value that is too long for the name of a folder is cut, and its hash follows.
    """
    pairs = zip(columns, values, strict=True)
    return "".join(f"{quote(name, safe=_PLAIN)}={_escaped(name, value)[0]}/" for name, value in pairs)


def cut_column(columns: Sequence[str], values: Sequence[str | None]) -> str | None:
    """A column whose value is cut in the name of its folder, so that no reader finds it again; None: there is none."""
    pairs = zip(columns, values, strict=True)
    return next((name for name, value in pairs if _escaped(name, value)[1]), None)


def _escaped(name: str, value: str | None) -> tuple[str, bool]:
    """A value in the name of its folder, and whether it is cut."""
    if not value:
        return NULL_FOLDER, False
    if value == NULL_FOLDER:
        # It is a text, and no null: readers compare first, and unescape then.
        return f"%5F{value[1:]}", False
    room = max(_VALUE_BYTES_MIN, _FOLDER_BYTES_MAX - len(quote(name, safe=_PLAIN)) - 1)
    escaped = quote(value, safe=_PLAIN)
    if len(escaped) <= room:
        return escaped, False
    begin = escaped[: room - _HASH_BYTES]
    if "%" in begin[-2:]:
        # No escape is cut in two.
        begin = begin.rpartition("%")[0]
    return f"{begin}~{hashlib.sha256(value.encode()).hexdigest()[: _HASH_BYTES - 1]}", True


#: What a partition's rows have in its columns, as texts.
Values = tuple[str | None, ...]


def split(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """The rows of each partition, in their order: its values, and the other columns.

    Partitions come in the order of their first rows.
    """
    if not columns:
        yield (), table
        return
    names = [f"key_{number}" for number in range(len(columns))]
    keys = pl.DataFrame(
        [pl.Series(name, texts(table[column])) for name, column in zip(names, columns, strict=True)]
    )
    groups = keys.with_row_index("row").group_by(names, maintain_order=True).agg("row")
    rest = table.drop_columns(list(columns))
    for *values, rows in groups.iter_rows():
        yield tuple(values), rest if len(rows) == len(table) else rest.take(pa.array(rows))


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values as people write them: ``2026-11-22``, ``2026-11-22 01:02:03``, ``true``, ``7``; bytes as hex."""
    if pa.types.is_binary(column.type):
        values = [None if value is None else value.hex() for value in column.to_pylist()]
        return pa.chunked_array([pa.array(values, pa.string())])
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        odd = odd_times(pl.Series(column))
        if odd is not None:
            # Texts leave out seconds beside a minute, as zones had them before 1900. Others keep their folders.
            in_utc = pc.cast(column.cast(pa.timestamp(column.type.unit, "UTC")), pa.string())
            return pc.if_else(pa.chunked_array([odd.to_arrow()]), in_utc, pc.cast(column, pa.string()))
    return pc.cast(column, pa.string())
