"""A job that gets into the situations that the page is to name: a slow step, a hot key, a late source, bad records.

What goes wrong is said while it runs, by a file: with ``slow_us 3000`` in it each row of ``score`` takes 3 ms.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

import polars as pl
import pyarrow as pa

import weir

#: Subtasks of ``score``, the step that can be slow.
SCORE = 2


def slow_us(trouble: str) -> float:
    """Microseconds that a row takes now, as the file says; without it none."""
    try:
        words = Path(trouble).read_text().split()
    except FileNotFoundError:
        return 0.0
    return float(words[1]) if words[:1] == ["slow_us"] else 0.0


def score(trouble: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give each row a score, slowly if that is wanted."""
    time.sleep(batch.num_rows * slow_us(trouble) / 1e6)
    return batch.append_column("score", pa.array([1] * batch.num_rows, pa.int64()))


def build(input: str, output: str, trouble: str, rate: float = 200.0, late_ms: int = 0) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id``, ``server_name`` and ``time_ms``, or what is no such line.
        output: directory of the result.
        trouble: the file that says what goes wrong.
        rate: events per second of each of the two sources.
        late_ms: so far the event times of the second source are behind those of the first.
    """
    flow = weir.Dataflow("face")
    schema = {"id": pl.Int64, "server_name": pl.String, "time_ms": pl.Int64}
    views = flow.source("views", weir.JsonLines(input, schema=schema, rate=rate), event_time="time_ms")
    clicks = flow.source(
        "clicks", weir.JsonLines(input, schema=schema, rate=rate), event_time=pl.col("time_ms") - late_ms
    )
    both = views.rebalance().union("both", clicks.rebalance())
    columns = [
        ("id", pa.int64()),
        ("server_name", pa.string()),
        ("time_ms", pa.int64()),
        ("score", pa.int64()),
    ]
    fields = pa.schema([pa.field(name, kind) for name, kind in columns])
    scored = both.key_by("server_name").map_batches(
        "score", functools.partial(score, trouble), fields, parallelism=SCORE
    )
    counted = scored.key_by("server_name").count("count", parallelism=2)
    counted.rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
