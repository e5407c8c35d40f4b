"""The JSON-lines sink: exactly once, a file per transaction; ``weir.operators.sinks.part_files`` has the files' names.

``cat part-*.jsonl`` prints everything.
"""

from __future__ import annotations

import io
from typing import BinaryIO, ClassVar

import polars as pl
import pyarrow as pa

from weir.operators.sinks.part_files import PartFilesSink
from weir.records import user_columns
from weir.specs import JsonLinesSinkSpec


class JsonLinesSink(PartFilesSink):
    """Writes user columns as JSON lines."""

    suffix: ClassVar[str] = "jsonl"

    def __init__(self, spec: JsonLinesSinkSpec) -> None:
        super().__init__(spec.path)

    def write_rows(self, file: BinaryIO, batch: pa.RecordBatch) -> None:
        """Append the rows."""
        file.write(json_lines(batch))


def json_lines(batch: pa.RecordBatch) -> bytes:
    """The user columns of a batch, one JSON object a line."""
    frame = pl.from_arrow(batch.select(user_columns(batch.schema)))
    assert isinstance(frame, pl.DataFrame)
    out = io.BytesIO()
    frame.write_ndjson(out)
    return out.getvalue()
