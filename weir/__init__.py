"""Weir: a stream processor in Python whose keyed state is disaggregated from compute.

The names here are all that a job needs::

    import polars as pl
    import weir

    def build(input: str, parallelism: int = 1) -> weir.Dataflow:
        flow = weir.Dataflow("server_count")
        events = flow.source("events", weir.JsonLines(input, schema={"id": int, "server_name": str}))
        kept = events.filter("keep", pl.col("id") % 4 != 0)
        kept.key_by("server_name").count("count", parallelism=parallelism).sink("out", weir.Print())
        return flow
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from weir.aggregates import count, max, mean, min, sum
from weir.builder import Dataflow
from weir.connectors import (
    Blackhole,
    Collect,
    JsonLines,
    JsonLinesSink,
    LatencySink,
    Parquet,
    ParquetSink,
    Print,
    UserSink,
    UserSource,
)
from weir.errors import GraphError, WeirError
from weir.records import with_times
from weir.schemas import Nullable
from weir.streams import KeyedStream, Stream

if TYPE_CHECKING:
    from weir.local.running import run
    from weir.operators.base import Operator, OperatorContext, Poll, SourceReader
    from weir.operators.keyed_process import KeyedProcess, KeyedState
    from weir.operators.sink import Sink
    from weir.operators.source import Source
    from weir.operators.two_phase import TransactionId, TwoPhaseSink

__version__ = "0.1.0"

__all__ = [
    "Blackhole",
    "Collect",
    "Dataflow",
    "GraphError",
    "JsonLines",
    "JsonLinesSink",
    "KeyedProcess",
    "KeyedState",
    "KeyedStream",
    "LatencySink",
    "Nullable",
    "Operator",
    "OperatorContext",
    "Parquet",
    "ParquetSink",
    "Poll",
    "Print",
    "Sink",
    "Source",
    "SourceReader",
    "Stream",
    "TransactionId",
    "TwoPhaseSink",
    "UserSink",
    "UserSource",
    "WeirError",
    "__version__",
    "count",
    "max",
    "mean",
    "min",
    "run",
    "sum",
    "with_times",
]

#: Names whose modules are loaded on first use, because they need compiled kernels.
_LAZY = {
    "KeyedProcess": "weir.operators.keyed_process",
    "KeyedState": "weir.operators.keyed_process",
    "Operator": "weir.operators.base",
    "OperatorContext": "weir.operators.base",
    "Poll": "weir.operators.base",
    "Sink": "weir.operators.sink",
    "Source": "weir.operators.source",
    "SourceReader": "weir.operators.base",
    "TransactionId": "weir.operators.two_phase",
    "TwoPhaseSink": "weir.operators.two_phase",
    "run": "weir.local.running",
}


def __getattr__(name: str) -> object:
    """Load a lazy name."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
