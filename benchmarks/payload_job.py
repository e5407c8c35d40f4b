"""Rows with a payload from Parquet to the subtask of their key, where they are dropped: the cost of carrying them."""

from __future__ import annotations

import polars as pl

import weir


def build(input: str, parallelism: int = 2, *, max_parallelism: int) -> weir.Dataflow:
    """Source -> HASH -> blackhole; ``input``: files with ``id``, ``server_name`` and ``payload``."""
    flow = weir.Dataflow("payload", max_parallelism=max_parallelism)
    schema = {"id": pl.Int64, "server_name": pl.String, "payload": pl.String}
    rows = flow.source("rows", weir.Parquet(input, schema=schema), parallelism=parallelism)
    # Sinks read all that they are given, so the payload travels.
    rows.key_by("server_name").sink("out", weir.Blackhole())
    return flow
