"""The one list of what a job may not have on Spark: the reason, and what to do instead. docs/runners.md has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weir.nexmark.specs import NexmarkSpec
from weir.plan.graph import Node, PhysicalGraph
from weir.plan.reading_times import sources_by_reading_time
from weir.spark.modes import Mode
from weir.spark.streams import stream_refusal
from weir.specs import (
    ArrowIpcSpec,
    AssignEventTimeSpec,
    LatencySinkSpec,
    SourceSpec,
    UserOperatorSpec,
    UserSinkSpec,
    UserSourceSpec,
    WindowAggregateSpec,
)
from weir.specs.kafka import KafkaSpec
from weir.specs.log import LogSinkSpec, LogSpec

#: What may be refused, and why: told by a step, and listed in docs/runners.md.
REASONS: Mapping[str, str] = {
    "log": "Spark has no connector for the replicated log; read from Kafka or from files",
    "latency": "Spark's rows do not carry the moment at which each was read, from which latency counts; use another "
    "sink",
    "pace": "Spark does not pace rows; leave out rate and interval_ms",
    "limit": "which rows are the first ones is open where many tasks read; leave out events",
    "never_ends": "the source never ends, and a batch does; run it with --streaming, or leave out follow",
    "kafka_unbounded": "the source never ends, and a batch does; run it with --streaming, or set bounded=True",
    "grows": "Spark takes each file as it is when it finds it; leave out grows",
    "reading_time": "it goes by the time of reading, which is another one on Spark; give the source an event time",
    "clock": "it goes by the clock, so that its rows are others with each run; use event time",
    "watermarks": "a WatermarkGenerator sees the rows of one reader in their order, which Spark's tasks do not have; "
    "use weir.bounded_out_of_orderness",
    "two_phase": "the transactions of a TwoPhaseSink hang on Weir's checkpoints; use weir.Sink, or a sink of files",
    "all_rows": "a weir.Operator sees all rows of its subtask in order, and Spark divides them in other ways; write a "
    "weir.KeyedProcess, or set parallelism=1",
    "source_stream": "Spark's streams cannot read it, and Weir reads it once, to its end; run it as a batch, with "
    "--no-streaming",
}


def refusal(graph: PhysicalGraph, node: Node, mode: Mode) -> str | None:
    """Say why a step of a job does not run on Spark; None: it does.

    Args:
        graph: the job, as it runs elsewhere.
        node: one of its steps.
        mode: how its sources are read.
    """
    found = _of_source(node, mode) if isinstance(node.spec, SourceSpec) else _of_step(graph, node)
    if found is None and mode == "streaming":
        found = stream_refusal(node)
    return None if found is None else REASONS[found]


def _of_source(node: Node, mode: Mode) -> str | None:
    spec = node.spec
    assert isinstance(spec, SourceSpec)
    if isinstance(spec, LogSpec):
        return "log"
    if spec.rate is not None:
        return "pace"
    if spec.events_max is not None and not isinstance(spec, NexmarkSpec):
        return "limit"
    if spec.watermark is not None and spec.watermark.generator is not None:
        return "watermarks"
    if isinstance(spec, KafkaSpec):
        return "kafka_unbounded" if mode == "batch" and not spec.bounded else None
    if getattr(spec, "grows", False):
        return "grows"
    if mode == "batch" and (getattr(spec, "follow", False) or getattr(spec, "discover_ms", None) is not None):
        return "never_ends"
    is_read_once = isinstance(spec, UserSourceSpec | NexmarkSpec | ArrowIpcSpec)
    return "source_stream" if mode == "streaming" and is_read_once else None


def _of_step(graph: PhysicalGraph, node: Node) -> str | None:
    spec = node.spec
    if sources_by_reading_time(graph, node):
        return "reading_time"
    for kinds, reason in _KINDS.items():
        if isinstance(spec, kinds):
            return reason
    if isinstance(spec, AssignEventTimeSpec) and spec.watermark is not None and spec.watermark.generator:
        return "watermarks"
    if isinstance(spec, WindowAggregateSpec):
        early = spec.updates.early
        by_clock = early is not None and early.interval_ms is not None and early.time == "processing"
        return "clock" if by_clock or spec.window.time == "processing" else None
    if isinstance(spec, UserOperatorSpec) and node.parallelism > 1:
        return "all_rows"
    if isinstance(spec, UserSinkSpec) and _is_two_phase(spec.factory):
        return "two_phase"
    return None


_KINDS: Mapping[type, str] = {
    LogSinkSpec: "log",
    LatencySinkSpec: "latency",
}


def _is_two_phase(factory: Callable[[], object]) -> bool:
    from weir.operators.sinks.two_phase import TwoPhaseSink

    made: object = factory
    while hasattr(made, "func"):
        made = made.func
    return isinstance(made, type) and issubclass(made, TwoPhaseSink)
