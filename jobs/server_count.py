"""The demo job: how often each server occurs, in five stages.

0 source -> 1 keep ``id % 4 != 0`` -> 2 CPU-heavy pass-through -> 3 count by ``server_name`` -> 4 latency sink

python -m control_plane --job jobs.server_count --param rate=10000 --param parallelism=2
"""

from __future__ import annotations

import functools

import polars as pl

import weir


def build(
    input: str,
    rate: float | None = None,
    interval_ms: float | None = None,
    source_parallelism: int = 1,
    parallelism: int = 1,
    load_ms: float = 0.0,
    junk: int = 0,
    count_load_ms: float = 0.0,
    output: str = "zout",
    events: int | None = None,
    *,
    max_parallelism: int,
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id`` and ``server_name``, as workgen.py makes them: file, directory or glob.
        rate: events per second over all subtasks; None: as fast as possible.
        interval_ms: instead of rate: time between two events.
        source_parallelism: subtasks of stage 0.
        parallelism: subtasks of the other stages.
        load_ms: CPU per event in stage 2.
        junk: entries of 6,890 characters that stage 3 rewrites in the key's state at every event.
        count_load_ms: CPU per event in stage 3.
        output: directory of the latency file.
        events: stop after this many events; None: read everything.
        max_parallelism: number of key groups; config.json's value unless given.
    """
    if junk < 0:
        raise weir.GraphError(f"junk is {junk}; it must be a whole number from 0 on")
    flow = weir.Dataflow("server_count", max_parallelism=max_parallelism)
    schema = {"id": pl.Int64, "server_name": pl.String}
    source = weir.JsonLines(input, schema=schema, rate=rate, interval_ms=interval_ms, events=events)
    kept = (
        flow.source("events", source, parallelism=source_parallelism)
        .rebalance()
        .filter("keep", pl.col("id") % 4 != 0, parallelism=parallelism)
    )
    loaded = kept.key_by("server_name").busy("load", load_ms)
    counts = loaded.key_by("server_name", own_stage=True).count("count")
    if junk:
        from jobs.junk import JunkRewriter

        counts = counts.process("junk", functools.partial(JunkRewriter, junk))
    if count_load_ms:
        counts = counts.busy("count_load", count_load_ms)
    counts.rebalance().sink("out", weir.LatencySink(output, "server_count"))
    return flow
