"""Streams of the dataflow API: the steps and exchanges a job author chains. See ``weir.builder``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import polars as pl
import pyarrow as pa

from weir.changes import check_takes_changes, is_changelog
from weir.errors import GraphError
from weir.graph import Exchange, Input, Node
from weir.graph_checks import check_name
from weir.schemas import to_schema
from weir.specs import (
    AssignEventTimeSpec,
    BusySpec,
    FilterSpec,
    FlatMapSpec,
    MapBatchesSpec,
    MapSpec,
    OperatorSpec,
    PassThroughSpec,
    SelectSpec,
    SideOutput,
    SinkSpec,
    UnionSpec,
    UserOperatorSpec,
    UserSinkSpec,
    WithColumnsSpec,
)
from weir.specs.async_map import MapAsyncSpec, check_is_async
from weir.specs.columns import ExplodeSpec, RenameSpec, check_rename, remaining_columns
from weir.specs.key_checks import check_key_columns
from weir.specs.lookups import LookupFunction, LookupSpec, LookupType
from weir.ttl import duration_ms
from weir.watermarks import WatermarkStrategy, checked_strategy

if TYPE_CHECKING:
    from weir.keyed_streams import KeyedStream
    from weir.specs.windows import Window
    from weir.windowed_streams import AllRowsWindowedStream

#: Column name -> type, or an Arrow schema; see ``weir.schemas.to_schema``.
Columns: TypeAlias = Mapping[str, object] | pa.Schema


class GraphUnderConstruction(Protocol):
    """What a stream needs of ``weir.Dataflow``."""

    def new_name(self, name: str | None, kind: str) -> str:
        """The given name, or one derived from the kind."""
        ...

    def add(self, node: Node) -> Node:
        """Take in a node."""
        ...


#: Methods of keyed streams alone.
_NEEDS_KEY = frozenset({"join", "join_as_of", "join_all", "deduplicate", "top", "connect_broadcast"})


class Stream:
    """The output of a step, with the exchange that leads to the next one; several steps may read it."""

    def __init__(self, flow: GraphUnderConstruction, node: Node, exchange: Input | None = None) -> None:
        self.flow = flow
        self.node = node
        self.input = exchange or Input(node.name)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what is missing when a keyed stream's method is called without a key."""
            if name in _NEEDS_KEY:
                raise GraphError(
                    f"step {self.node.name!r}: {name} goes by key, and this stream has none; call "
                    f'key_by("column").{name}(...)'
                    + (
                        ", on both sides: a join is of rows with equal keys"
                        if name.startswith("join")
                        else ""
                    )
                )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )

    @property
    def schema(self) -> pa.Schema:
        """User columns."""
        return self.node.schema_of(self.input.output)

    @property
    def is_changelog(self) -> bool:
        """Whether its rows say what is added to a table and what is taken away (``weir.changes``)."""
        return is_changelog(self.schema)

    def side_output(self, name: str) -> Stream:
        """What the step yields with ``weir.side(name, ...)``, or says to be its side output, such as ``late``.

        The stream begins at the same step as this one, and has the columns that are declared for it. Watermarks,
        barriers and the end go to both.

        Raises:
            GraphError: the step has no such side output.
        """
        self.node.schema_of(name)
        self._refuse_second_exchange("side_output()")
        return Stream(self.flow, self.node, Input(self.node.name, output=name))

    # --- steps ---

    def filter(self, name: str | None, predicate: pl.Expr, *, parallelism: int | None = None) -> Self:
        """Keep the rows for which a boolean Polars expression is true (null counts as false)."""
        return self._same_kind(name, FilterSpec(predicate), parallelism)

    def with_columns(
        self, name: str | None, *expressions: pl.Expr, parallelism: int | None = None, **named: pl.Expr
    ) -> Self:
        """Add or replace columns by Polars expressions, which see one row at a time.

        They see the columns as they are before this step. The time columns ``_event_time_ms`` and
        ``_ingest_time_us`` can be read, not replaced; after ``key_by`` the key columns cannot be replaced.
        """
        aliased = tuple(e.alias(column) if isinstance(e, pl.Expr) else e for column, e in named.items())
        return self._same_kind(name, WithColumnsSpec((*expressions, *aliased)), parallelism)

    def select(
        self,
        name: str | None,
        *columns: str | pl.Expr,
        parallelism: int | None = None,
        **named: pl.Expr,
    ) -> Stream:
        """Keep only these columns, in this order; a Polars expression computes one, as in :meth:`with_columns`.

        What no step reads any more is not even decoded by files' sources, nor sent between processes. Functions and
        sinks count as reading all that they are given. The result is no keyed stream: ``select`` before ``key_by``.
        """
        aliased = tuple(e.alias(column) if isinstance(e, pl.Expr) else e for column, e in named.items())
        return self._step(name, SelectSpec((*columns, *aliased)), parallelism)

    def drop(self, name: str | None, *columns: str, parallelism: int | None = None) -> Self:
        """Leave these columns out; after ``key_by`` not the key columns."""
        left = remaining_columns(name, columns, self.schema)
        return self._same_kind(name, SelectSpec(left), parallelism)

    def rename(self, name: str | None, names: Mapping[str, str], *, parallelism: int | None = None) -> Self:
        """Give columns other names: ``rename("named", {"old": "new"})``; after ``key_by`` not the key columns."""
        check_rename(name, names, self.schema)
        return self._same_kind(name, RenameSpec(tuple(names.items())), parallelism)

    def explode(
        self, name: str | None, column: str, *, keep_empty: bool = False, parallelism: int | None = None
    ) -> Self:
        """Make a row of each element of a column of lists; the other columns and the times are repeated.

        ``keep_empty``: a row whose list is empty or null is kept, with null in the column; else it is dropped.
        """
        return self._same_kind(name, ExplodeSpec(column, bool(keep_empty)), parallelism)

    def map_batches(
        self,
        name: str | None,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: Columns | None = None,
        *,
        parallelism: int | None = None,
    ) -> Stream:
        """Call ``function(batch) -> batch`` with record batches: user columns, then both time columns.

        ``schema`` has the user columns of the result (None: the same as the input's). A result without time
        columns gets those of the input if it has as many rows. What the function remembers does not survive a restart.
        """
        return self._step(
            name, MapBatchesSpec(checked_callable(name, function), self._schema(name, schema)), parallelism
        )

    def map(
        self,
        name: str | None,
        function: Callable[[dict[str, Any]], dict[str, Any]],
        schema: Columns | None = None,
        *,
        parallelism: int | None = None,
    ) -> Stream:
        """Call ``function(row) -> row`` for each record: the slow path, Python for every event.

        A row is a dict of the user columns; the result has the times of its record.
        """
        return self._step(
            name, MapSpec(checked_callable(name, function), self._schema(name, schema)), parallelism
        )

    def map_async(
        self,
        name: str | None,
        function: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
        schema: Columns | None = None,
        *,
        in_flight_max: int = 100,
        timeout: str | dt.timedelta = "5s",
        ordered: bool = True,
        parallelism: int | None = None,
    ) -> Stream:
        """Call ``await function(row) -> row`` for each record, for many at a time: a look-up over the network.

        As :meth:`map` otherwise, errors included. Calls run in an event loop of each subtask; what has been called and
        not answered at a failure is called again after the restart.

        Args:
            name: the step's name.
            function: an ``async def`` that takes a dict of the user columns and returns one of the declared columns.
            schema: user columns of the result; None: the same as the input's.
            in_flight_max: rows of a subtask that are under way, or wait for those before them.
            timeout: of each call, such as "500ms"; one that takes longer is cancelled, and counts as having raised.
            ordered: rows leave in the order in which they came; False: in that of the answers, though never past a
                watermark or a checkpoint.
            parallelism: subtasks; None: as many as the producer has.
        """
        check_is_async(name, checked_callable(name, function))
        try:
            timeout_ms = duration_ms(timeout)
        except GraphError as error:
            raise GraphError(f"step {name!r}: timeout: {error}") from error
        spec = MapAsyncSpec(function, self._schema(name, schema), in_flight_max, timeout_ms, bool(ordered))
        return self._step(name, spec, parallelism)

    def flat_map(
        self,
        name: str | None,
        function: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
        schema: Columns | None = None,
        *,
        parallelism: int | None = None,
    ) -> Stream:
        """Call ``function(row) -> rows`` for each record; they have the times of that record. A slow path."""
        return self._step(
            name, FlatMapSpec(checked_callable(name, function), self._schema(name, schema)), parallelism
        )

    def apply(
        self,
        name: str | None,
        factory: Callable[[], Any],
        schema: Columns | None = None,
        *,
        side_outputs: Mapping[str, Columns | None] | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Run a :class:`weir.Operator` of your own; ``factory()`` makes one per subtask.

        Batches in, batches out: user columns, then both time columns. ``schema`` has the user columns of the result
        (None: the same as the input's). With settings pass ``functools.partial(MyOperator, setting=1)``. Keyed state
        needs :meth:`KeyedStream.process`.

        ``side_outputs``: further outputs by name, with their columns (None: the input's); the operator sends batches to
        them with ``yield weir.side(output, batch)``, and :meth:`side_output` reads them.
        """
        sides = self._side_outputs(name, side_outputs)
        spec = UserOperatorSpec(checked_callable(name, factory), self._schema(name, schema), sides)
        return self._step(name, spec, parallelism)

    def busy(self, name: str | None, load_ms: float, *, parallelism: int | None = None) -> Self:
        """Use ``load_ms`` of CPU for each event, then pass it on: a stand-in for real work."""
        if (
            isinstance(load_ms, bool)
            or not isinstance(load_ms, int | float)
            or not 0 <= load_ms < float("inf")
        ):
            raise GraphError(f"step {name!r}: load_ms is {load_ms!r}; it must be a number from 0 on")
        return self._same_kind(name, BusySpec(float(load_ms)), parallelism)

    def lookup(
        self,
        name: str | None,
        function: LookupFunction,
        on: str | Iterable[str],
        schema: Columns,
        *,
        how: LookupType = "left",
        in_flight_max: int = 100,
        timeout: str | dt.timedelta = "5s",
        cache_rows: int = 100_000,
        cache_ttl: str | dt.timedelta = "1m",
        parallelism: int | None = None,
    ) -> Self:
        """Add columns that ``await function(*key)`` finds for the values of columns: a join with an external store.

        Args:
            name: the step's name.
            function: an ``async def`` that takes the values of ``on`` and returns a dict of the columns of ``schema``,
                or None: there is nothing. It is not called for nulls. What it raises fails the job as errors of
                functions do.
            on: a column, or several.
            schema: columns that are added.
            how: "left": rows for which there is nothing have nulls; "inner": they are left out.
            in_flight_max: requests of a subtask that are under way at a time.
            timeout: of each request; one that takes longer counts as having raised.
            cache_rows: keys of a subtask whose answer is remembered; 0: none.
            cache_ttl: how long an answer counts.
            parallelism: subtasks; None: as many as the producer has.
        """
        try:
            timeout_ms, ttl_ms = duration_ms(timeout), duration_ms(cache_ttl)
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error
        columns = (on,) if isinstance(on, str) else tuple(on)
        found = self._schema(name, schema)
        spec = LookupSpec(
            checked_callable(name, function),
            columns,
            found,
            how,
            in_flight_max,
            timeout_ms,
            cache_rows,
            ttl_ms,
        )
        return self._same_kind(name, spec, parallelism)

    def pass_through(self, name: str | None, *, parallelism: int | None = None) -> Self:
        """Forward rows unchanged, for instance to change the parallelism."""
        return self._same_kind(name, PassThroughSpec(), parallelism)

    def assign_event_time(
        self,
        name: str | None,
        event_time: str | pl.Expr,
        *,
        watermark: WatermarkStrategy | None = None,
        parallelism: int | None = None,
    ) -> Self:
        """Give rows another event time, and make the watermarks of what follows.

        Rows whose event time is null, or too far ahead of the clock, go to the step's dead letters. Watermarks from
        before this step end here. A subtask without rows for ``idle_timeout_ms`` does not hold the others back.

        Args:
            name: the step's name.
            event_time: integer column with ms since 1970, or a Polars expression that gives it.
            watermark: such as ``weir.bounded_out_of_orderness("2s")``; None: it follows the highest event time at
                ``out_of_order_grace_period`` of config.json.
            parallelism: subtasks; None: as many as the producer has.
        """
        try:
            strategy = checked_strategy(watermark)
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error
        expression = pl.col(event_time) if isinstance(event_time, str) else event_time
        return self._same_kind(name, AssignEventTimeSpec(expression, strategy), parallelism)

    def union(self, name: str | None, *others: Stream, parallelism: int | None = None) -> Stream:
        """Merge streams that have the same columns; order is kept within each of them."""
        if not others:
            raise GraphError(f"step {name!r}: union needs at least one other stream")
        for other in others:
            if not isinstance(other, Stream) or other.flow is not self.flow:
                raise GraphError(f"step {name!r}: union takes streams of the same Dataflow")
        return self._step(name, UnionSpec(), parallelism, others)

    def sink(self, name: str | None, sink: OperatorSpec, *, parallelism: int | None = None) -> None:
        """End this branch."""
        if not isinstance(sink, SinkSpec):
            raise GraphError(
                f"step {name!r}: expected a sink such as weir.Print(), got {type_name(sink)}; "
                "give the class of a sink of your own to weir.UserSink(...)"
            )
        if isinstance(sink, UserSinkSpec):
            checked_callable(name, sink.factory)
        self._step(name, sink, parallelism)

    # --- exchanges ---

    def key_by(self, *columns: str, own_stage: bool = False) -> KeyedStream:
        """Bring all rows of a key to one subtask of the next step, in order (HASH).

        Rows that are there already, since an earlier ``key_by`` had the same columns, are not sent again: the next step
        joins the stage, unless it has another parallelism.

        Args:
            columns: the key.
            own_stage: the next step begins a stage in any case, for instance to be scaled alone.
        """
        # The module needs this one.
        from weir.keyed_streams import KeyedStream

        check_key_columns(self.node.name, columns, self.schema)
        exchange = replace(self._exchange(Exchange.HASH, columns), stage_boundary=bool(own_stage))
        return KeyedStream(self.flow, self.node, exchange, columns)

    def window_all(self, window: Window) -> AllRowsWindowedStream:
        """Divide all rows by time, without a key: ``window_all(weir.tumbling("60s")).aggregate("n", n=weir.count())``.

        Args:
            window: ``weir.tumbling``, ``weir.sliding``, ``weir.cumulative`` or ``weir.session``.

        Raises:
            GraphError: it cannot be used.
        """
        # The module needs this one.
        from weir.windowed_streams import AllRowsWindowedStream

        return AllRowsWindowedStream(self, window)

    def rebalance(self) -> Stream:
        """Give batches to the subtasks of the next step in turn (ROUND_ROBIN)."""
        return Stream(self.flow, self.node, self._exchange(Exchange.ROUND_ROBIN))

    def broadcast(self) -> Stream:
        """Give every row to every subtask of the next step."""
        return Stream(self.flow, self.node, self._exchange(Exchange.BROADCAST))

    def forward(self) -> Self:
        """Start a new stage at the next step without moving rows between subtasks."""
        self._refuse_second_exchange("forward()")
        boundary = Input(self.node.name, stage_boundary=True, output=self.input.output)
        return self._like(self.node, boundary)

    # --- internals ---

    def _exchange(self, exchange: Exchange, columns: tuple[str, ...] = ()) -> Input:
        self._refuse_second_exchange(exchange.name)
        return Input(self.node.name, exchange, columns, output=self.input.output)

    def _side_outputs(
        self, name: str | None, declared: Mapping[str, Columns | None] | None
    ) -> tuple[SideOutput, ...]:
        found = []
        for output, schema in (declared or {}).items():
            check_name(f"step {name!r}: side output", output)
            found.append(SideOutput(output, self._schema(name, schema)))
        return tuple(found)

    def _refuse_second_exchange(self, what: str) -> None:
        if self.input != Input(self.node.name, output=self.input.output):
            raise GraphError(
                f"step {self.node.name!r}: {what} follows another exchange with no step between; "
                "drop one of the two"
            )

    def _schema(self, name: str | None, schema: Columns | None) -> pa.Schema:
        try:
            return self.schema if schema is None else to_schema(schema)
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error

    def _like(self, node: Node, exchange: Input | None = None) -> Self:
        return type(self)(self.flow, node, exchange)

    def _same_kind(self, name: str | None, spec: OperatorSpec, parallelism: int | None) -> Self:
        """Add a step that leaves rows where they are, so that a keyed stream stays one."""
        return self._like(self._node(name, spec, parallelism))

    def added_step(self, name: str | None, spec: OperatorSpec, parallelism: int | None = None) -> Stream:
        """Add a step; for modules that make one of several."""
        return self._step(name, spec, parallelism)

    def _step(
        self, name: str | None, spec: OperatorSpec, parallelism: int | None, others: tuple[Stream, ...] = ()
    ) -> Stream:
        return Stream(self.flow, self._node(name, spec, parallelism, others))

    def _node(
        self, name: str | None, spec: OperatorSpec, parallelism: int | None, others: tuple[Stream, ...] = ()
    ) -> Node:
        name = self.flow.new_name(name, spec.kind)
        streams = (self, *others)
        schemas = tuple(stream.schema for stream in streams)
        check_takes_changes(name, spec, schemas)
        schema = spec.output_schema(name, schemas)
        sides = spec.sides(name, schemas)
        inputs = tuple(stream.input for stream in streams)
        wanted = self.node.parallelism if parallelism is None else parallelism
        return self.flow.add(Node(name, spec, inputs, wanted, schema, sides))


def checked_callable(step: str | None, function: Any) -> Any:
    """The function, if it is one.

    Raises:
        GraphError: it cannot be called.
    """
    if not callable(function):
        raise GraphError(f"step {step!r}: expected a function or a class, got {type_name(function)}")
    return function


def type_name(value: object) -> str:
    """The name of a value's class, for messages."""
    return type(value).__name__
