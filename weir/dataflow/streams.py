"""Streams of the dataflow API: the steps and exchanges a job author chains. See ``weir.dataflow.builder``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from weir.author.watermarks import WatermarkStrategy, checked_strategy
from weir.dataflow.frame import after_step, checked_callable, type_name
from weir.dataflow.function_steps import FunctionSteps
from weir.dataflow.missing_names import MissingNameError, methods_of, missing_name
from weir.errors import GraphError
from weir.plan.graph import Exchange, Input
from weir.plan.step_names import renamed_columns, renamed_step
from weir.specs import (
    AssignEventTimeSpec,
    BusySpec,
    FilterSpec,
    OperatorSpec,
    PassThroughSpec,
    SelectSpec,
    SinkSpec,
    UnionSpec,
    UserSinkSpec,
    WithColumnsSpec,
)
from weir.specs.columns import ExplodeSpec, RenameSpec, check_rename, remaining_columns
from weir.specs.expression_checks import as_names
from weir.specs.key_checks import check_key_columns

if TYPE_CHECKING:
    from weir.dataflow.all_rows_windows import AllRowsWindowedStream
    from weir.dataflow.keyed_streams import KeyedStream
    from weir.dataflow.windows import Duration
    from weir.specs.window_kinds import Window
    from weir.specs.window_updates import ResultMode, Trigger

#: Methods of keyed streams alone.
_NEEDS_KEY = frozenset(
    {
        "aggregate",
        "connect_broadcast",
        "count",
        "count_window",
        "deduplicate",
        "join",
        "join_all",
        "join_as_of",
        "process",
        "top",
        "triggered_window",
        "window",
    }
)
#: By how a name begins.
_MENDS = {
    "join": ", on both sides: a join is of rows with equal keys",
    "window": ", or window_all(...) for windows of all rows",
}


class Stream(FunctionSteps):
    """The output of a step, with the exchange that leads to the next one; several steps may read it.

    A method that adds a step returns the stream of that step's rows. All of them take:

    * ``name``: the step's name, unique in the job; state, metrics and dead letters are kept under it. None: the kind of
      the step and a number, such as ``filter_1``.
    * ``parallelism``: the number of the step's subtasks; None: as many as the step before it has.

    They raise ``weir.GraphError`` at once, naming the step, where it cannot work: a column that is not there, a type
    that does not fit, a name that is taken.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what is missing when a keyed stream's method is called without a key, or is called otherwise.

            Raises:
                AttributeError: always; of names that an author may have meant, with what to write.
            """
            node = self.__dict__.get("node")
            if name.startswith("_") or node is None:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            if name in _NEEDS_KEY:
                raise MissingNameError(
                    f"step {node.name!r}: {name} goes by key, and this stream has none; call "
                    f'key_by("column").{name}(...)' + _MENDS.get(name.partition("_")[0], "")
                )
            raise missing_name(f"step {node.name!r}: a stream", name, [*methods_of(type(self)), *_NEEDS_KEY])

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
        """Keep the rows for which a boolean Polars expression is true (null counts as false).

        Raises:
            GraphError: the result is no boolean for each row, or a column is absent.
        """
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
        return self._step(name, SelectSpec(as_names((*columns, *aliased), self.schema)), parallelism)

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

    def busy(self, name: str | None, load_ms: float, *, parallelism: int | None = None) -> Self:
        """Use ``load_ms`` milliseconds of CPU for each row, then pass it on: a stand-in for real work.

        Raises:
            GraphError: ``load_ms`` is no number from 0 on.
        """
        if (
            isinstance(load_ms, bool)
            or not isinstance(load_ms, int | float)
            or not 0 <= load_ms < float("inf")
        ):
            raise GraphError(f"step {name!r}: load_ms is {load_ms!r}; it must be a number from 0 on")
        return self._same_kind(name, BusySpec(float(load_ms)), parallelism)

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

        Raises:
            GraphError: ``event_time`` is no integer column or expression of one, or ``watermark`` is no strategy.
        """
        try:
            strategy = checked_strategy(watermark)
        except GraphError as error:
            raise GraphError(f"step {name!r}: {error}") from error
        expression = pl.col(event_time) if isinstance(event_time, str) else event_time
        return self._same_kind(name, AssignEventTimeSpec(expression, strategy), parallelism)

    def union(self, name: str | None, *others: Stream, parallelism: int | None = None) -> Stream:
        """Merge this stream with others that have the same columns; order is kept within each of them.

        Raises:
            GraphError: there is no other stream, one is of another ``Dataflow``, or the columns differ.
        """
        if not others:
            raise GraphError(f"step {name!r}: union needs at least one other stream")
        for other in others:
            if not isinstance(other, Stream) or other.flow is not self.flow:
                raise GraphError(f"step {name!r}: union takes streams of the same Dataflow")
        return self._step(name, UnionSpec(), parallelism, others)

    def sink(
        self,
        name: str | None,
        sink: OperatorSpec,
        *,
        parallelism: int | None = None,
        renamed_from: str | None = None,
    ) -> None:
        """End this branch with a sink: ``stream.sink("out", weir.JsonLinesSink("counts"))``.

        Raises:
            GraphError: ``sink`` is no sink, or cannot take these columns.
        """
        name = renamed_step(name, renamed_from)
        if not isinstance(sink, SinkSpec):
            raise GraphError(
                f"step {name!r}: expected a sink such as weir.Print(), got {type_name(sink)}; "
                "give the class of a sink of your own to weir.UserSink(...)"
            )
        if isinstance(sink, UserSinkSpec):
            checked_callable(name, sink.factory)
        self._step(name, sink, parallelism)

    # --- exchanges ---

    def key_by(
        self, *columns: str, own_stage: bool = False, renamed_from: Mapping[str, str] | None = None
    ) -> KeyedStream:
        """Bring all rows of a key to one subtask of the next step, in order (HASH).

        Rows that are there already, since an earlier ``key_by`` had the same columns, are not sent again: the next step
        joins the stage, unless it has another parallelism.

        Args:
            columns: the key.
            own_stage: the next step begins a stage in any case, for instance to be scaled alone.
            renamed_from: what key columns were called in the checkpoint that the job starts from, such as
                ``{"user": "k"}``: the state of the steps that go by this key goes on.

        Raises:
            GraphError: a column is absent or cannot be a key, or ``renamed_from`` tells of another one.
        """
        # The module needs this one.
        from weir.dataflow.keyed_streams import KeyedStream

        with after_step("key_by", self.node.name):
            check_key_columns(self.node.name, columns, self.schema)
            columns = renamed_columns(columns, renamed_from)
        exchange = replace(self._exchange(Exchange.HASH, columns), stage_boundary=bool(own_stage))
        return KeyedStream(self.flow, self.node, exchange, columns)

    def window_all(
        self,
        window: Window,
        *,
        allowed_lateness: Duration = 0,
        early: Trigger | None = None,
        results: ResultMode = "accumulating",
    ) -> AllRowsWindowedStream:
        """Divide all rows by time, without a key: ``window_all(weir.tumbling("60s")).aggregate("n", n=weir.count())``.

        Args:
            window: as for :meth:`weir.KeyedStream.window`, and so are the others.
            allowed_lateness: for how long a window takes late rows.
            early: when a window tells what it has before it is complete.
            results: what the results of a window have after the first one.

        Raises:
            GraphError: it cannot be used.
        """
        # The module needs this one.
        from weir.dataflow.all_rows_windows import AllRowsWindowedStream
        from weir.dataflow.windowed_streams import checked_updates

        with after_step("window_all", self.node.name):
            updates = checked_updates(self.node.name, window, allowed_lateness, early, results)
        return AllRowsWindowedStream(self, *updates)

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
