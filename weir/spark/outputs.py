"""Writes data frames by Spark's connectors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.rows.python_values import row_json
from weir.spark.arrow_maps import map_in_arrow
from weir.spark.types import cast_batch, ddl, quoted, wire_schema
from weir.spark.writers import Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write(frame: DataFrame, made: Writing, schema: pa.Schema) -> None:
    """Write the user columns of a frame; returns when all rows are there.

    A job that is run again adds to what is there, as elsewhere.
    """
    rows = _columns(frame, made, schema)
    if made.format == "print":
        _print(rows, made.rows_max, schema)
        return
    mode = "overwrite" if made.format == "noop" else "append"
    writer = rows.write.format(made.format).mode(mode).options(**dict(made.options))
    if made.partition_by:
        writer = writer.partitionBy(*made.partition_by)
    writer.save(made.path or None)


def stream_writer(frame: DataFrame, made: Writing, schema: pa.Schema) -> Any:
    """Return what writes the user columns of a stream: each trigger once."""
    writer = _columns(frame, made, schema).writeStream.format(made.format).options(**dict(made.options))
    if made.partition_by:
        writer = writer.partitionBy(*made.partition_by)
    return writer.option("path", made.path) if made.path else writer


def _columns(frame: DataFrame, made: Writing, schema: pa.Schema) -> DataFrame:
    """The columns that are written."""
    columns = made.columns or tuple((name, quoted(name)) for name in schema.names)
    rows = frame.selectExpr(*(f"{text} AS {quoted(name)}" for name, text in columns))
    return rows if made.texts is None else map_in_arrow(rows, made.texts, ddl(wire_schema(made.texts.made)))


def _print(rows: DataFrame, rows_max: int | None, schema: pa.Schema) -> None:
    """Rows as JSON lines on standard output, as ``weir.Print()`` has them; one partition at a time is here."""
    if rows_max is not None:
        rows = rows.limit(rows_max)
    lines = map_in_arrow(rows, _Lines(schema), "line STRING")
    for row in lines.toLocalIterator():
        sys.stdout.write(row[0] + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class _Lines:
    """What Spark calls in each task: rows become JSON lines.

    Attributes:
        schema: user columns.
    """

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the lines."""
        for batch in batches:
            whole = cast_batch(batch, self.schema)
            lines = [row_json(whole.slice(row, 1)).decode() for row in range(whole.num_rows)]
            yield pa.RecordBatch.from_pydict({"line": pa.array(lines, pa.string())})
