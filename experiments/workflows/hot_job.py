"""A sum by key, as fast as it goes: what a hot key costs is measured with it (``hot_keys.py``)."""

from __future__ import annotations

from typing import Literal

import polars as pl

import weir


def build(
    input: str, parallelism: int = 2, emit: Literal["per_event", "per_batch"] = "per_event", output: str = ""
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: directory of JSON lines with ``id`` and ``server_name``.
        parallelism: subtasks of both stages.
        emit: what leaves: the total after each row, or after each batch.
        output: directory for the totals; "": nothing is kept of them.
    """
    flow = weir.Dataflow("hot-keys")
    source = weir.JsonLines(input, schema={"id": pl.Int64, "server_name": pl.String})
    rows = flow.source("events", source, parallelism=parallelism)
    totals = rows.key_by("server_name").aggregate("totals", total=weir.sum("id"), emit=emit)
    totals.sink("out", weir.JsonLinesSink(output) if output else weir.Blackhole())
    return flow
