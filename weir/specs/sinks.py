"""Specs of sinks: where rows go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from weir.specs.base import OperatorSpec

if TYPE_CHECKING:
    from weir.operators.base import Operator


@dataclass(frozen=True)
class SinkSpec(OperatorSpec):
    """Base of sinks: nothing leaves them, and a branch ends in one."""


@dataclass(frozen=True)
class BlackholeSpec(SinkSpec):
    """Count rows and drop them."""

    kind: ClassVar[str] = "blackhole_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.trial_sinks:BlackholeSink"


@dataclass(frozen=True)
class PrintSpec(SinkSpec):
    """Print rows as JSON lines on standard output; at most ``rows_max`` (None: all)."""

    kind: ClassVar[str] = "print_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.trial_sinks:PrintSink"
    rows_max: int | None = None


@dataclass(frozen=True)
class JsonLinesSinkSpec(SinkSpec):
    """Write user columns as JSON lines to ``path/part-<subtask>-<generation>-<sequence>.jsonl``."""

    kind: ClassVar[str] = "json_lines_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.json_lines_sink:JsonLinesSink"
    path: str


@dataclass(frozen=True)
class ParquetSinkSpec(SinkSpec):
    """Write user columns as Parquet to ``path/part-<subtask>-<generation>-<sequence>.parquet``."""

    kind: ClassVar[str] = "parquet_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.parquet_sink:ParquetSink"
    path: str


@dataclass(frozen=True)
class LatencySinkSpec(SinkSpec):
    """Write one ``arrival_ms,latency_ms`` line per event, with a sidecar JSON, below ``directory``."""

    kind: ClassVar[str] = "latency_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.latency_sink:LatencySink"
    directory: str
    name: str


@dataclass(frozen=True)
class UserSinkSpec(SinkSpec):
    """A user's sink: ``factory()`` makes a ``weir.TwoPhaseSink`` (or another operator) per subtask."""

    kind: ClassVar[str] = "user_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.two_phase:create_user_sink"
    factory_kind: ClassVar[str] = (
        "a class (or a function without arguments) that makes a weir.Sink or weir.TwoPhaseSink"
    )
    factory: Callable[[], Operator]


@dataclass(frozen=True)
class CollectSpec(SinkSpec):
    """Keep rows in this process: for ``weir.run`` and ``weir.testing``."""

    kind: ClassVar[str] = "collect_sink"
