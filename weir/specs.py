"""Frozen descriptions of operators. The control plane sees these; only task managers load the logic.

A spec executes nothing and holds no resource. :meth:`OperatorSpec.describe` gives the canonical form that the job
fingerprint and ``/plan`` are made of, so it must not depend on the process (no ``id()``, no ``hash()``).
``weir.operators.registry`` maps each class here to its runtime class.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from weir.operators.base import Operator

#: What to do with a record that cannot be read.
OnBadRecord = Literal["dead_letter", "fail"]
#: When a keyed aggregation emits: one row per input row, or the last row of each key of a batch.
EmitMode = Literal["per_event", "per_batch"]
AggregateFunction = Literal["count", "sum", "min", "max", "mean"]


@dataclass(frozen=True)
class OperatorSpec:
    """Base of all specs; subclasses set ``kind``."""

    kind: ClassVar[str] = "abstract"

    def describe(self) -> dict[str, object]:
        """JSON-able, deterministic: the kind and every field."""
        # A field that came later is left out at its default: graphs without it keep their fingerprints.
        told = [
            f
            for f in dataclasses.fields(self)
            if not (f.metadata.get("came_later") and getattr(self, f.name) == f.default)
        ]
        fields = {f.name: _canonical(getattr(self, f.name)) for f in told}
        return {"kind": self.kind, **fields}


def _canonical(value: Any) -> object:
    if isinstance(value, pl.Expr):
        return str(value)
    if isinstance(value, pa.Schema):
        return [f"{field.name}: {field.type}" for field in value]
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    if isinstance(value, OperatorSpec):
        return value.describe()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _canonical(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, functools.partial):  # its settings make it another function
        settings = {name: _canonical(item) for name, item in sorted(value.keywords.items())}
        return [_canonical(value.func), _canonical(value.args), settings]
    if callable(value):
        return _describe_callable(value)
    return value if isinstance(value, str | int | float | bool | None) else str(type(value).__qualname__)


def _describe_callable(function: Callable[..., object]) -> str:
    """Module, qualified name and a digest of the source, so that two versions of a function differ."""
    if isinstance(function, type) or hasattr(function, "__qualname__"):
        target: Any = function
    else:
        target = type(function)
    try:
        digest = hashlib.sha256(inspect.getsource(target).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        digest = "no-source"
    return f"{target.__module__}:{target.__qualname__}@{digest}"


# --- sources -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceSpec(OperatorSpec):
    """Base of sources. ``schema`` has the user columns only; the reader appends the system columns."""

    #: "module:class" of the reader of a source that Weir does not have itself; its constructor takes the spec.
    reader: ClassVar[str] = ""

    schema: pa.Schema
    #: Column that holds the event time in ms since the epoch (integer); None: the ingest time.
    event_time_column: str | None = None
    #: Events per second over all subtasks; None: as fast as possible. Event k is due at start + k / rate.
    rate: float | None = None
    #: Stop after this many good rows over all subtasks; None: read everything.
    events_max: int | None = None


@dataclass(frozen=True)
class JsonLinesSpec(SourceSpec):
    """JSON objects, one a line: a file, a directory of parts, or a glob; ``.gz`` is read too."""

    kind: ClassVar[str] = "json_lines_source"
    path: str = ""
    on_bad_record: OnBadRecord = "dead_letter"
    #: A longer line goes to the dead letters without being parsed.
    line_bytes_max: int = 8 << 20
    #: Never end: take in files that turn up while the job runs.
    follow: bool = field(default=False, metadata={"came_later": True})
    #: One subtask reads all of a file.
    ordered: bool = field(default=False, metadata={"came_later": True})


@dataclass(frozen=True)
class ParquetSpec(SourceSpec):
    """Parquet: a file, a directory of parts, or a glob."""

    kind: ClassVar[str] = "parquet_source"
    path: str = ""
    on_bad_record: OnBadRecord = "dead_letter"
    #: Never end: take in files that turn up while the job runs.
    follow: bool = field(default=False, metadata={"came_later": True})
    #: One subtask reads all of a file.
    ordered: bool = field(default=False, metadata={"came_later": True})


@dataclass(frozen=True)
class UserSourceSpec(SourceSpec):
    """A user's source: ``factory()`` makes a ``weir.Source`` per subtask; or ``factory`` is a generator function."""

    kind: ClassVar[str] = "user_source"
    factory: Callable[..., Any] = lambda: None
    on_bad_record: OnBadRecord = "dead_letter"
    #: How often to ask for new splits; None: only at the start.
    discover_ms: float | None = None


# --- stateless operators -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterSpec(OperatorSpec):
    """Keep the rows for which a boolean Polars expression is true (null counts as false)."""

    kind: ClassVar[str] = "filter"
    predicate: pl.Expr


@dataclass(frozen=True)
class WithColumnsSpec(OperatorSpec):
    """Add or replace columns by named Polars expressions."""

    kind: ClassVar[str] = "with_columns"
    expressions: tuple[pl.Expr, ...]


@dataclass(frozen=True)
class MapBatchesSpec(OperatorSpec):
    """Call ``function(batch) -> batch``; both are record batches with the time columns."""

    kind: ClassVar[str] = "map_batches"
    function: Callable[[pa.RecordBatch], pa.RecordBatch]
    schema: pa.Schema


@dataclass(frozen=True)
class MapSpec(OperatorSpec):
    """Call ``function(row: dict) -> dict`` once per record: the slow path."""

    kind: ClassVar[str] = "map"
    function: Callable[[dict[str, Any]], dict[str, Any]]
    schema: pa.Schema


@dataclass(frozen=True)
class FlatMapSpec(OperatorSpec):
    """Call ``function(row: dict) -> iterable of dict`` once per record: the slow path."""

    kind: ClassVar[str] = "flat_map"
    function: Callable[[dict[str, Any]], Any]
    schema: pa.Schema


@dataclass(frozen=True)
class UnionSpec(OperatorSpec):
    """Merge inputs of the same schema; order is kept within each input."""

    kind: ClassVar[str] = "union"


@dataclass(frozen=True)
class PassThroughSpec(OperatorSpec):
    """Forward rows unchanged; the home of a bare ``key_by``, ``rebalance`` or ``broadcast``."""

    kind: ClassVar[str] = "pass_through"


@dataclass(frozen=True)
class BusySpec(OperatorSpec):
    """Use ``load_ms`` of CPU per event outside the GIL, then forward the rows."""

    kind: ClassVar[str] = "busy"
    load_ms: float


@dataclass(frozen=True)
class UserOperatorSpec(OperatorSpec):
    """A user's operator without keyed state: ``factory()`` makes a ``weir.Operator`` per subtask."""

    kind: ClassVar[str] = "user_operator"
    factory: Callable[[], Operator]
    schema: pa.Schema


# --- keyed operators ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aggregate:
    """One accumulator: ``function`` over ``column`` (None for count), written to column ``output``."""

    output: str
    function: AggregateFunction
    column: str | None = None


@dataclass(frozen=True)
class KeyedAggregateSpec(OperatorSpec):
    """Running aggregates per key, kept in keyed state."""

    kind: ClassVar[str] = "keyed_aggregate"
    key_columns: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    emit: EmitMode = "per_event"


@dataclass(frozen=True)
class DeclaredState:
    """A state that a user's keyed operator declares."""

    name: str
    #: "value", "list", "map", "reducing" or "aggregating".
    kind: str
    #: Its type, as text.
    dtype: str


@dataclass(frozen=True)
class KeyedProcessSpec(OperatorSpec):
    """A user's keyed operator: ``factory()`` makes a ``weir.KeyedProcess`` per subtask."""

    kind: ClassVar[str] = "keyed_process"
    key_columns: tuple[str, ...]
    factory: Callable[[], Operator]
    schema: pa.Schema
    #: By name; empty: it has one state without a name.
    states: tuple[DeclaredState, ...] = field(default=(), metadata={"came_later": True})


# --- sinks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlackholeSpec(OperatorSpec):
    """Count rows and drop them."""

    kind: ClassVar[str] = "blackhole_sink"


@dataclass(frozen=True)
class PrintSpec(OperatorSpec):
    """Print rows as JSON lines on standard output; at most ``rows_max`` (None: all)."""

    kind: ClassVar[str] = "print_sink"
    rows_max: int | None = None


@dataclass(frozen=True)
class JsonLinesSinkSpec(OperatorSpec):
    """Write user columns as JSON lines to ``path/part-<subtask>-<generation>-<sequence>.jsonl``."""

    kind: ClassVar[str] = "json_lines_sink"
    path: str


@dataclass(frozen=True)
class ParquetSinkSpec(OperatorSpec):
    """Write user columns as Parquet to ``path/part-<subtask>-<generation>-<sequence>.parquet``."""

    kind: ClassVar[str] = "parquet_sink"
    path: str


@dataclass(frozen=True)
class LatencySinkSpec(OperatorSpec):
    """Write one ``arrival_ms,latency_ms`` line per event, with a sidecar JSON, below ``directory``."""

    kind: ClassVar[str] = "latency_sink"
    directory: str
    name: str


@dataclass(frozen=True)
class UserSinkSpec(OperatorSpec):
    """A user's sink: ``factory()`` makes a ``weir.TwoPhaseSink`` (or another operator) per subtask."""

    kind: ClassVar[str] = "user_sink"
    factory: Callable[[], Operator]


@dataclass(frozen=True)
class CollectSpec(OperatorSpec):
    """Keep rows in this process: for ``weir.run`` and ``weir.testing``."""

    kind: ClassVar[str] = "collect_sink"


SINK_SPECS = (
    CollectSpec,
    BlackholeSpec,
    PrintSpec,
    JsonLinesSinkSpec,
    ParquetSinkSpec,
    LatencySinkSpec,
    UserSinkSpec,
)
KEYED_SPECS = (KeyedAggregateSpec, KeyedProcessSpec)
