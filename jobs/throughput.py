"""The benchmark job: source and filter -> HASH -> running count per event and sink. Two stages.

python -m control_plane --job jobs.throughput --param input=data/events --param parallelism=2
"""

from __future__ import annotations

from typing import Literal

import polars as pl

import weir


def build(
    input: str,
    parallelism: int = 2,
    rate: float | None = None,
    events: int | None = None,
    sink: Literal["blackhole", "latency", "json_lines", "print"] = "blackhole",
    output: str = "zout",
    id_path: str = "id",
    key_path: str = "server_name",
    form: Literal["json_lines", "csv"] = "json_lines",
    *,
    max_parallelism: int,
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines or CSV with ``id`` and ``server_name``, as workgen.py makes them: file, directory or glob.
        parallelism: subtasks of both stages.
        rate: events per second over all subtasks; None: as fast as possible.
        events: stop after this many events; None: read everything.
        sink: where the counts go.
        output: directory of the latency and the json_lines sink.
        id_path: where ``id`` is in a line, with dots between the keys of nested objects.
        key_path: the same of ``server_name``.
        form: what the input is; CSV has a header with both names.
        max_parallelism: number of key groups; config.json's value unless given.
    """
    flow = weir.Dataflow("throughput", max_parallelism=max_parallelism)
    schema = {"id": pl.Int64, "server_name": pl.String}
    paths = {"id": id_path, "server_name": key_path}
    source: weir.Csv | weir.JsonLines = weir.JsonLines(
        input, schema=schema, rate=rate, events=events, paths=paths
    )
    if form == "csv":
        source = weir.Csv(input, schema=schema, rate=rate, events=events)
    kept = flow.source("events", source, parallelism=parallelism).filter("keep", pl.col("id") % 4 != 0)
    counts = kept.key_by("server_name").count("count")
    if sink == "latency":
        counts.sink("out", weir.LatencySink(output, "throughput"))
    elif sink == "json_lines":
        counts.sink("out", weir.JsonLinesSink(output))
    else:
        counts.sink("out", weir.Print() if sink == "print" else weir.Blackhole())
    return flow
