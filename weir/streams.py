"""Streams of the dataflow API: the steps and exchanges a job author chains. See ``weir.builder``."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

import polars as pl
import pyarrow as pa

from weir.aggregates import AggregateCall
from weir.broadcast_process import check_broadcast_factory
from weir.changes import check_takes_changes, is_changelog
from weir.errors import GraphError
from weir.graph import Exchange, Input, Node
from weir.graph_checks import check_name
from weir.join_arguments import join_bounds
from weir.keyed_process import process_form
from weir.schemas import to_schema
from weir.specs import (
    Aggregate,
    AsOfJoinSpec,
    AssignEventTimeSpec,
    BusySpec,
    DeclaredState,
    DeduplicateSpec,
    EmitMode,
    FilterSpec,
    FlatMapSpec,
    JoinSpec,
    JoinType,
    KeyedAggregateSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    MapSpec,
    OperatorSpec,
    PassThroughSpec,
    SelectSpec,
    SideOutput,
    SinkSpec,
    TopSpec,
    UnionSpec,
    UserOperatorSpec,
    UserSinkSpec,
    WithColumnsSpec,
)
from weir.specs.async_map import MapAsyncSpec, check_is_async
from weir.specs.broadcast import BroadcastProcessSpec
from weir.specs.columns import ExplodeSpec, RenameSpec, check_rename, remaining_columns
from weir.specs.joins import JoinedColumns, joined_columns
from weir.specs.key_checks import check_key_columns
from weir.specs.lookups import LookupFunction, LookupSpec, LookupType
from weir.state_types import describe
from weir.states import declared_states
from weir.timer_hooks import timer_states
from weir.ttl import duration_ms
from weir.watermarks import WatermarkStrategy, checked_strategy

if TYPE_CHECKING:
    from weir.specs.windows import Window
    from weir.windowed_streams import WindowedStream
    from weir.windows import Duration

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


class Stream:
    """The output of a step, with the exchange that leads to the next one; several steps may read it."""

    def __init__(self, flow: GraphUnderConstruction, node: Node, exchange: Input | None = None) -> None:
        self.flow = flow
        self.node = node
        self.input = exchange or Input(node.name)

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
            name, MapBatchesSpec(_callable(name, function), self._schema(name, schema)), parallelism
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
        return self._step(name, MapSpec(_callable(name, function), self._schema(name, schema)), parallelism)

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
        check_is_async(name, _callable(name, function))
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
            name, FlatMapSpec(_callable(name, function), self._schema(name, schema)), parallelism
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
        spec = UserOperatorSpec(_callable(name, factory), self._schema(name, schema), sides)
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
            _callable(name, function), columns, found, how, in_flight_max, timeout_ms, cache_rows, ttl_ms
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
            _callable(name, sink.factory)
        self._step(name, sink, parallelism)

    # --- exchanges ---

    def key_by(self, *columns: str) -> KeyedStream:
        """Bring all rows of a key to one subtask of the next step, in order (HASH)."""
        check_key_columns(self.node.name, columns, self.schema)
        return KeyedStream(self.flow, self.node, self._exchange(Exchange.HASH, columns), columns)

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


class KeyedStream(Stream):
    """A stream whose rows of one key are all on one subtask, so that state can be kept for the key."""

    def __init__(
        self,
        flow: GraphUnderConstruction,
        node: Node,
        exchange: Input | None = None,
        key_columns: tuple[str, ...] = (),
    ) -> None:
        super().__init__(flow, node, exchange)
        self.key_columns = key_columns

    def count(
        self,
        name: str | None,
        output: str | None = None,
        *,
        emit: EmitMode = "per_event",
        parallelism: int | None = None,
    ) -> Self:
        """Running number of rows of the key (int64), in column ``output``: the step's name unless given.

        A step without a name writes column "count".
        """
        return self._aggregate(name, {output or name or "count": AggregateCall("count")}, emit, parallelism)

    def aggregate(
        self,
        name: str | None,
        *,
        emit: EmitMode = "per_event",
        parallelism: int | None = None,
        **aggregates: AggregateCall,
    ) -> Self:
        """Running aggregates of the key: ``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``.

        Args:
            name: the step's name; its state belongs to it.
            emit: "per_event": each row, values after it; "per_batch": each key's last row of a batch.
            parallelism: subtasks; None: as many as the producer has.
            aggregates: output column -> function; the columns are appended to the input's.
        """
        return self._aggregate(name, aggregates, emit, parallelism)

    def _aggregate(
        self,
        name: str | None,
        aggregates: Mapping[str, AggregateCall],
        emit: EmitMode,
        parallelism: int | None,
    ) -> Self:
        if emit not in ("per_event", "per_batch"):
            raise GraphError(f"step {name!r}: emit is {emit!r}; it is 'per_event' or 'per_batch'")
        for output, call in aggregates.items():
            if not isinstance(call, AggregateCall):
                raise GraphError(
                    f"step {name!r}: {output} needs an aggregate such as weir.sum('x'), got {type_name(call)}"
                )
            if call.condition is not None:
                raise GraphError(
                    f"step {name!r}: {output}: where(...) goes only with windows; filter the stream before key_by"
                )
        listed = tuple(Aggregate(output, call.function, call.column) for output, call in aggregates.items())
        return self._same_kind(name, KeyedAggregateSpec(self.key_columns, listed, emit), parallelism)

    def deduplicate(
        self,
        name: str | None,
        *,
        keep: Literal["first", "last"] = "first",
        within: str | dt.timedelta | None = None,
        parallelism: int | None = None,
    ) -> Self:
        """Keep one row of each key.

        Args:
            name: the step's name; its state belongs to it.
            keep: "first": the row that comes first is passed on at once, all others are dropped. "last": the row with
                the highest event time, of equals the one that comes last; the result is a changelog.
            within: with "first": a row is passed on again if its event time is so much, such as "10m", above that of
                the key's row that was passed on before, which is forgotten when the watermark has come so far. None:
                each key is passed on once, and remembered for ever.
            parallelism: subtasks; None: as many as the producer has.
        """
        if keep not in ("first", "last"):
            raise GraphError(f"step {name!r}: keep is {keep!r}; it is 'first' or 'last'")
        if keep == "last":
            if within is not None:
                raise GraphError(f"step {name!r}: within goes only with keep='first'")
            last = TopSpec(self.key_columns, None, 1, prefers_later=True)
            return self._same_kind(name, last, parallelism)
        try:
            within_ms = None if within is None else duration_ms(within)
        except GraphError as error:
            raise GraphError(f"step {name!r}: within: {error}") from error
        return self._same_kind(name, DeduplicateSpec(self.key_columns, within_ms), parallelism)

    def top(
        self,
        name: str | None,
        *,
        by: str,
        rows: int,
        ascending: bool = False,
        rank: str | None = None,
        parallelism: int | None = None,
    ) -> Self:
        """The first rows of each key in the order of a column, as a changelog (see ``weir.changes``).

        Of rows that are equal in the column, those that came first go first. Nulls and NaN go last.

        Args:
            name: the step's name; its state belongs to it.
            by: column of numbers, dates or times; the highest go first.
            rows: how many rows of each key.
            ascending: the lowest go first.
            rank: name of a column with the row's place, from 1 on. Then a row that enters changes all places after its
                own; without it, it takes the place of one other row. None: no such column.
            parallelism: subtasks; None: as many as the producer has.
        """
        return self._same_kind(name, TopSpec(self.key_columns, by, rows, bool(ascending), rank), parallelism)

    def connect_broadcast(
        self,
        name: str | None,
        rules: Stream,
        factory: Callable[[], Any],
        schema: Columns | None = None,
        *,
        parallelism: int | None = None,
    ) -> Stream:
        """Run a :class:`weir.BroadcastProcess` of your own over this stream and a stream that every subtask gets whole.

        Args:
            name: the step's name; its state belongs to it.
            rules: few rows; each one goes to ``on_broadcast`` of every subtask.
            factory: makes one process per subtask.
            schema: user columns of the result; None: those of this stream.
            parallelism: subtasks; None: as many as this stream's step has.
        """
        if self.input.exchange is not Exchange.HASH:
            raise GraphError(f"step {name!r}: call key_by right before connect_broadcast")
        if not isinstance(rules, Stream) or rules.flow is not self.flow:
            raise GraphError(f"step {name!r}: connect_broadcast takes a stream of the same Dataflow")
        if rules.input.exchange is not Exchange.BROADCAST:
            rules = rules.broadcast()
        check_broadcast_factory(name, _callable(name, factory))
        spec = BroadcastProcessSpec(self.key_columns, factory, self._schema(name, schema))
        return self._step(name, spec, parallelism, (rules,))

    def process(
        self,
        name: str | None,
        factory: Callable[[], Any],
        schema: Columns | None = None,
        *,
        side_outputs: Mapping[str, Columns | None] | None = None,
        parallelism: int | None = None,
    ) -> Self:
        """Run a :class:`weir.KeyedProcess` of your own; ``factory()`` makes one per subtask.

        It must leave the key columns as they are. ``schema`` has the user columns of its result (None:
        the input's). For a process with settings pass ``functools.partial(MyProcess, setting=1)``; another function is
        called once when the job is built, to see which states the process declares.

        ``side_outputs``: as for :meth:`apply`; ``process`` and ``on_timer`` send dicts to them:
        ``yield weir.side(output, row)``.
        """
        made = _callable(name, factory)
        states = process_states(str(name), made)
        has_timers = any(state.kind == "timers" for state in states)
        key_schema = pa.schema([self.schema.field(column) for column in self.key_columns])
        spec = KeyedProcessSpec(
            self.key_columns,
            made,
            self._schema(name, schema),
            states,
            key_schema if has_timers else None,
            self._side_outputs(name, side_outputs),
        )
        absent = [column for column in self.key_columns if column not in spec.schema.names]
        if absent:
            raise GraphError(
                f"step {name!r}: its declared result lacks key column {absent[0]!r}, which it must pass on; add it to "
                "the schema"
            )
        check_key_columns(str(name), self.key_columns, spec.schema)
        return self._same_kind(name, spec, parallelism)

    def join(
        self,
        name: str | None,
        right: KeyedStream,
        *,
        within: tuple[Any, Any] | None = None,
        between: tuple[str, str] | None = None,
        window: Window | None = None,
        ttl: str | dt.timedelta | None = None,
        how: JoinType = "inner",
        suffix: str = "_right",
        parallelism: int | None = None,
    ) -> KeyedStream:
        """Pair rows of this stream (left) with those of another (right) that have the same key; see docs/joins.md.

        The result has the key columns as they are called here, the other columns of the left side, and those of the
        right side; its event time is the later one of the pair.

        Args:
            name: the step's name; the rows that it keeps belong to it.
            right: a keyed stream; its key columns may have other names.
            within: only if the right row's event time is from the left's plus the first to the left's plus the second,
                both included: ``("-10s", "0s")``.
            between: only if the event time of the row of one side is between these two columns of the other.
            window: only if the two are in the same tumbling window: ``weir.tumbling("10s")``.
            ttl: only if the two event times are not farther apart than this.
            how: "inner"; "left", "right" and "full" also give rows without a partner; "semi" gives left rows with one,
                once each, and "anti" those without.
            suffix: is added to names of right columns that are there on the left.
            parallelism: subtasks; None: as many as the left side's producer has.

        Raises:
            GraphError: the two cannot be joined.
        """
        self._check_right(name, right)
        bounds = join_bounds(str(name), self.schema, right.schema, within, between, window, ttl)
        columns = self._joined_columns(name, right, how, suffix)
        spec = JoinSpec(self.key_columns, right.key_columns, how, bounds, *columns)
        return self._joined(name, spec, right, parallelism)

    def join_as_of(
        self,
        name: str | None,
        right: KeyedStream,
        *,
        how: Literal["left", "inner"] = "left",
        suffix: str = "_right",
        parallelism: int | None = None,
    ) -> KeyedStream:
        """Give each row the latest row of another stream (right) with the same key that is not after it, by event time.

        The right stream is a table that changes: each of its rows replaces the one before. A row leaves when the
        watermark has passed it, with its own event time; see docs/joins.md.

        Args:
            name: the step's name; versions and rows that wait belong to it.
            right: a keyed stream; its key columns may have other names.
            how: "left": rows before the first version leave too, right columns null; "inner": they do not.
            suffix: is added to names of right columns that are there on the left.
            parallelism: subtasks; None: as many as the left side's producer has.

        Raises:
            GraphError: the two cannot be joined.
        """
        self._check_right(name, right)
        columns = self._joined_columns(name, right, how, suffix)
        spec = AsOfJoinSpec(self.key_columns, right.key_columns, how, None, *columns)
        return self._joined(name, spec, right, parallelism)

    def _check_right(self, name: str | None, right: KeyedStream) -> None:
        if not isinstance(right, KeyedStream) or right.flow is not self.flow:
            raise GraphError(
                f"step {name!r}: join takes a stream of the same Dataflow after key_by(...): "
                "join(name, other.key_by(...))"
            )

    def _joined_columns(self, name: str | None, right: KeyedStream, how: str, suffix: str) -> JoinedColumns:
        return joined_columns(
            str(name), self.schema, right.schema, self.key_columns, right.key_columns, how, suffix
        )

    def _joined(
        self, name: str | None, spec: JoinSpec, right: KeyedStream, parallelism: int | None
    ) -> KeyedStream:
        left: KeyedStream = self._partitioned()
        node = left._node(name, spec, parallelism, (right._partitioned(),))
        return KeyedStream(self.flow, node, None, self.key_columns)

    def _partitioned(self) -> KeyedStream:
        """This stream, whose rows go to the next step by HASH."""
        if self.input.exchange is Exchange.HASH:
            return self
        return self.key_by(*self.key_columns)

    def window(self, window: Window, *, allowed_lateness: Duration = 0) -> WindowedStream:
        """Divide the rows of each key by time: ``window(weir.tumbling("60s")).aggregate("n", n=weir.count())``.

        Args:
            window: ``weir.tumbling``, ``weir.sliding``, ``weir.cumulative`` or ``weir.session``.
            allowed_lateness: how long after its end a window takes late rows; see docs/windows.md.

        Raises:
            GraphError: one of them cannot be used.
        """
        # The module needs this one.
        from weir.windowed_streams import WindowedStream

        return WindowedStream(self, window, allowed_lateness)

    def keyed_step(self, name: str | None, spec: OperatorSpec, parallelism: int | None) -> KeyedStream:
        """Add a step whose result keeps the key columns, perhaps not the others."""
        node = self._node(name, spec, parallelism)
        return KeyedStream(self.flow, node, None, self.key_columns)

    def _like(self, node: Node, exchange: Input | None = None) -> Self:
        return type(self)(self.flow, node, exchange, self.key_columns)

    def _same_kind(self, name: str | None, spec: OperatorSpec, parallelism: int | None) -> Self:
        written = spec.written_columns(str(name), self.schema)
        replaced = [column for column in self.key_columns if column in written]
        if replaced:
            raise GraphError(f"step {name!r}: it replaces key column {replaced[0]!r}; do that before key_by")
        made = super()._same_kind(name, spec, parallelism)
        absent = [column for column in self.key_columns if column not in made.schema.names]
        if absent:
            raise GraphError(f"step {name!r}: it leaves out key column {absent[0]!r}; do that before key_by")
        return made


def _callable(step: str | None, function: Any) -> Any:
    if not callable(function):
        raise GraphError(f"step {step!r}: expected a function or a class, got {type_name(function)}")
    return function


def process_states(step: str, factory: Any) -> tuple[DeclaredState, ...]:
    """The states that a user's keyed operator declares, by name.

    Raises:
        GraphError: the operator or a name cannot be used; the message names the step.
    """
    made = factory
    while isinstance(made, functools.partial):
        made = made.func
    if not isinstance(made, type):
        try:
            made = type(factory())
        except Exception:
            # It raises in a subtask, too, where it is told what a factory has to be.
            return ()
    try:
        process_form(made)
        states = declared_states(made)
        timers = timer_states(made)
    except GraphError as error:
        raise GraphError(f"step {step!r}: {error}") from error
    return (*(DeclaredState(state.name, state.kind, describe(state.form)) for state in states), *timers)


def type_name(value: object) -> str:
    """The name of a value's class, for messages."""
    return type(value).__name__
