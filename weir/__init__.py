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

if TYPE_CHECKING:
    from weir.author.aggregator import Aggregator, WindowBounds
    from weir.author.broadcast_context import BroadcastContext
    from weir.author.broadcast_process import BroadcastProcess
    from weir.author.key_context import KeyContext
    from weir.author.keyed_process import KeyedProcess
    from weir.author.operator import Operator, OperatorContext, Poll, SourceReader
    from weir.author.sink import Sink
    from weir.author.source import Source
    from weir.author.states import AggregatingState, ListState, MapState, ReducingState, ValueState
    from weir.author.timed_states import SessionState, VersionedState, WindowState
    from weir.author.watermarks import (
        WatermarkAlignment,
        WatermarkGenerator,
        WatermarkStrategy,
        bounded_out_of_orderness,
        custom_watermarks,
        watermark_alignment,
    )
    from weir.dataflow.aggregates import (
        approx_distinct,
        count,
        count_distinct,
        first,
        largest,
        last,
        max,
        mean,
        min,
        quantile,
        stddev,
        sum,
        variance,
    )
    from weir.dataflow.builder import Dataflow
    from weir.dataflow.connectors import (
        ArrowIpc,
        Blackhole,
        Collect,
        Csv,
        CsvSink,
        DeadLetters,
        DeltaSink,
        JsonLines,
        JsonLinesSink,
        LatencySink,
        Parquet,
        ParquetSink,
        Print,
        UserSink,
        UserSource,
    )
    from weir.dataflow.kafka_connectors import Kafka, KafkaSink
    from weir.dataflow.kafka_values import Avro, Protobuf
    from weir.dataflow.streams import KeyedStream, Stream
    from weir.dataflow.triggers import every
    from weir.dataflow.windowed_streams import WindowedStream
    from weir.dataflow.windows import cumulative, global_window, session, sliding, tumbling
    from weir.errors import GraphError, WeirError
    from weir.local.running import run
    from weir.nexmark.specs import Nexmark
    from weir.operators.sinks.two_phase import TransactionId, TwoPhaseSink
    from weir.operators.windows.rows.window_trigger import WindowTrigger
    from weir.questions.client import connect
    from weir.rows.records import with_times
    from weir.rows.schemas import Nullable
    from weir.rows.side_outputs import side
    from weir.state.ttl import Ttl

__version__ = "0.1.0"

__all__ = [
    "AggregatingState",
    "Aggregator",
    "ArrowIpc",
    "Avro",
    "Blackhole",
    "BroadcastContext",
    "BroadcastProcess",
    "Collect",
    "Csv",
    "CsvSink",
    "Dataflow",
    "DeadLetters",
    "DeltaSink",
    "GraphError",
    "JsonLines",
    "JsonLinesSink",
    "Kafka",
    "KafkaSink",
    "KeyContext",
    "KeyedProcess",
    "KeyedStream",
    "LatencySink",
    "ListState",
    "MapState",
    "Nexmark",
    "Nullable",
    "Operator",
    "OperatorContext",
    "Parquet",
    "ParquetSink",
    "Poll",
    "Print",
    "Protobuf",
    "ReducingState",
    "SessionState",
    "Sink",
    "Source",
    "SourceReader",
    "Stream",
    "TransactionId",
    "Ttl",
    "TwoPhaseSink",
    "UserSink",
    "UserSource",
    "ValueState",
    "VersionedState",
    "WatermarkAlignment",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "WeirError",
    "WindowBounds",
    "WindowState",
    "WindowTrigger",
    "WindowedStream",
    "__version__",
    "approx_distinct",
    "bounded_out_of_orderness",
    "connect",
    "count",
    "count_distinct",
    "cumulative",
    "custom_watermarks",
    "every",
    "first",
    "global_window",
    "largest",
    "last",
    "max",
    "mean",
    "min",
    "quantile",
    "run",
    "session",
    "side",
    "sliding",
    "stddev",
    "sum",
    "tumbling",
    "variance",
    "watermark_alignment",
    "with_times",
]

#: Module -> names of it. They are loaded on first use: the console command must start processes before Arrow, Polars
#: and the compiled kernels are there. No module or package of ``weir`` may have one of these names: importing it would
#: put it in the name's place.
_MODULES = {
    "dataflow.aggregates": (
        "approx_distinct",
        "count",
        "count_distinct",
        "first",
        "largest",
        "last",
        "max",
        "mean",
        "min",
        "quantile",
        "stddev",
        "sum",
        "variance",
    ),
    "author.aggregator": ("Aggregator", "WindowBounds"),
    "author.broadcast_process": ("BroadcastProcess",),
    "dataflow.builder": ("Dataflow",),
    "questions.client": ("connect",),
    "dataflow.connectors": (
        "ArrowIpc",
        "Blackhole",
        "Collect",
        "Csv",
        "CsvSink",
        "DeadLetters",
        "DeltaSink",
        "JsonLines",
        "JsonLinesSink",
        "LatencySink",
        "Parquet",
        "ParquetSink",
        "Print",
        "UserSink",
        "UserSource",
    ),
    "errors": (
        "GraphError",
        "WeirError",
    ),
    "dataflow.kafka_connectors": (
        "Kafka",
        "KafkaSink",
    ),
    "dataflow.kafka_values": (
        "Avro",
        "Protobuf",
    ),
    "author.keyed_process": ("KeyedProcess",),
    "nexmark.specs": ("Nexmark",),
    "local.running": ("run",),
    "author.operator": (
        "Operator",
        "OperatorContext",
        "Poll",
        "SourceReader",
    ),
    "author.broadcast_context": ("BroadcastContext",),
    "author.key_context": ("KeyContext",),
    "author.sink": ("Sink",),
    "author.source": ("Source",),
    "operators.sinks.two_phase": (
        "TransactionId",
        "TwoPhaseSink",
    ),
    "rows.records": ("with_times",),
    "rows.schemas": ("Nullable",),
    "rows.side_outputs": ("side",),
    "author.states": (
        "AggregatingState",
        "ListState",
        "MapState",
        "ReducingState",
        "ValueState",
    ),
    "dataflow.streams": ("KeyedStream", "Stream"),
    "author.timed_states": (
        "SessionState",
        "VersionedState",
        "WindowState",
    ),
    "state.ttl": ("Ttl",),
    "author.watermarks": (
        "WatermarkGenerator",
        "WatermarkAlignment",
        "WatermarkStrategy",
        "bounded_out_of_orderness",
        "custom_watermarks",
        "watermark_alignment",
    ),
    "dataflow.windowed_streams": ("WindowedStream",),
    "dataflow.triggers": ("every",),
    "operators.windows.rows.window_trigger": ("WindowTrigger",),
    "dataflow.windows": (
        "cumulative",
        "global_window",
        "session",
        "sliding",
        "tumbling",
    ),
}
_LAZY = {name: f"weir.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a name on first use; afterwards it is there like any other."""
    if name not in _LAZY:
        raise AttributeError(
            f"module 'weir' has no attribute {name!r}", name=name, obj=import_module(__name__)
        )
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All names, those not loaded yet included."""
    return sorted({*globals(), *__all__})
