"""Parquet files -> a transactional file sink, in one stage: the job of ``python -m benchmarks sinks``."""

from __future__ import annotations

from typing import Literal

import weir
from weir.specs import SinkSpec

COLUMNS = {"id": int, "server_name": str, "value": float, "count": int}


def build(
    input: str,
    output: str,
    sink: Literal["parquet", "csv", "json_lines", "delta"] = "parquet",
    roll_ms: float | None = None,
    parallelism: int = 2,
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: directory of Parquet files.
        output: directory of the results.
        sink: their format.
        roll_ms: of the sink; None: a file per checkpoint and subtask.
        parallelism: subtasks.
    """
    flow = weir.Dataflow("sinks")
    rows = flow.source("rows", weir.Parquet(input, schema=COLUMNS), parallelism=parallelism)
    specs: dict[str, SinkSpec] = {
        "parquet": weir.ParquetSink(output, roll_ms=roll_ms),
        "csv": weir.CsvSink(output, roll_ms=roll_ms),
        "json_lines": weir.JsonLinesSink(output, roll_ms=roll_ms),
        "delta": weir.DeltaSink(output, roll_ms=roll_ms or 0),
    }
    rows.sink("out", specs[sink])
    return flow
