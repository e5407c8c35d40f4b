"""Rows as the texts that Weir's sinks write, for Spark to bring into files: values that Spark writes in other forms."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.operators.sinks.partitions import texts
from weir.operators.sinks.text_parts import json_lines, naming_years, with_whole_minutes
from weir.spark.types import cast_batch, has_plain_text

#: The column of lines, as Spark's writer of texts has it.
LINE_COLUMN = "value"


@dataclass(frozen=True)
class AsTexts:
    """What Spark calls in each task before it writes.

    Attributes:
        schema: user columns.
        partition_by: those that name folders.
        lines: a row becomes a line of JSON; else each value that Spark writes otherwise becomes a text of CSV.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...]
    lines: bool

    @property
    def made(self) -> pa.Schema:
        """The columns that are written."""
        folders = [pa.field(name, self._type(name)) for name in self.partition_by]
        if self.lines:
            return pa.schema([pa.field(LINE_COLUMN, pa.string()), *folders])
        others = (name for name in self.schema.names if name not in self.partition_by)
        return pa.schema([*(pa.field(name, self._type(name)) for name in others), *folders])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows as texts."""
        for each in batches:
            if each.num_rows:
                yield self._batch(cast_batch(each.select(self.schema.names), self.schema))

    def _type(self, name: str) -> pa.DataType:
        kind = self.schema.field(name).type
        return kind if has_plain_text(kind) else pa.string()

    def _batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        rest = rows.drop_columns(list(self.partition_by))
        if self.lines:
            # What ends a line stands at the end of the last one, too.
            columns.append(pa.array(json_lines(rest).split(b"\n")[:-1], pa.binary()).cast(pa.string()))
        else:
            columns += [
                _csv_texts(name, column) for name, column in zip(rest.schema.names, rest.columns, strict=True)
            ]
        for name in self.partition_by:
            column = rows.column(name)
            is_plain = has_plain_text(column.type)
            columns.append(column if is_plain else texts(pa.chunked_array([column])).combine_chunks())
        return pa.RecordBatch.from_arrays(columns, schema=self.made)


def _csv_texts(name: str, column: pa.Array) -> pa.Array:
    """The values as Weir's CSV has them; null stays null."""
    if has_plain_text(column.type):
        return column
    out = io.BytesIO()
    with naming_years():
        frame = with_whole_minutes(pl.DataFrame({name: column}))
        frame.write_csv(out, include_header=False, quote_style="never")
    written = pa.array(out.getvalue().split(b"\n")[:-1], pa.binary()).cast(pa.string())
    return pc.if_else(column.is_valid(), written, pa.scalar(None, pa.string()))
