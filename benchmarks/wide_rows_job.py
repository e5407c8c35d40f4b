"""The job of the wide-rows benchmark: whole rows through a HASH exchange, then a check of what is in each of them.

What reaches the sink is short, so that the benchmark can read it: the row's ``id`` and sums that its content must have.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

import weir

#: Of the result: ``check`` is a checksum of the payload, or the sum of the numbers; ``characters`` of all texts.
RESULT = {"id": pl.Int64, "check": pl.Int64, "characters": pl.Int64}


def schema_of(columns: int) -> dict[str, pl.DataType | type[pl.DataType]]:
    """``id``, ``key``, ``payload``, and so many columns, numbers and texts in turn."""
    wide = {f"c{number}": pl.Int64 if number % 2 else pl.String for number in range(columns)}
    return {"id": pl.Int64, "key": pl.String, "payload": pl.String, **wide}


def build(
    input: str, output: str, parallelism: int, columns: int = 0, bad: bool = False, rate: float = 0.0,
    sleep_ms: float = 0.0,
) -> weir.Dataflow:  # fmt: skip
    """The dataflow.

    Args:
        input: JSON lines of :func:`schema_of`.
        output: directory of the transactional sink.
        parallelism: subtasks of both stages.
        columns: beside ``id``, ``key`` and ``payload``.
        bad: let the step raise at every row with an odd ``id``.
        rate: rows per second of the source; 0: as fast as it can.
        sleep_ms: of the last step, for each row: a sink that is slower than the source.
    """
    flow = weir.Dataflow("wide_rows")
    source = weir.JsonLines(input, schema=schema_of(columns), line_bytes_max=64 << 20, rate=rate or None)
    rows: weir.Stream = flow.source("rows", source, parallelism=parallelism)
    if bad:
        rows = rows.map("raise_at_odd", _refuse_odd)
    checked = rows.key_by("key").map_batches(
        "check", _check(columns, sleep_ms), RESULT, parallelism=parallelism
    )
    checked.sink("out", weir.JsonLinesSink(output))
    return flow


def _refuse_odd(row: dict[str, object]) -> dict[str, object]:
    if int(str(row["id"])) % 2:
        raise ValueError("an odd id")
    return row


def _check(columns: int, sleep_ms: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    numbers = [f"c{number}" for number in range(1, columns, 2)]
    texts = [f"c{number}" for number in range(0, columns, 2)]

    def check(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(sleep_ms * batch.num_rows / 1e3)
        check = sum(batch.column(name).to_numpy() for name in numbers)
        if not numbers:
            check = np.array(
                [zlib.crc32(text.as_buffer()) for text in batch.column("payload")], dtype=np.int64
            )
        lengths = (pc.utf8_length(batch.column(name)).to_numpy() for name in ["payload", *texts])
        result = {"id": batch.column("id"), "check": check, "characters": sum(lengths).astype(np.int64)}
        return pa.RecordBatch.from_pydict(
            result | {n: batch.column(n) for n in ("_event_time_ms", "_ingest_time_us")}
        )

    return check
