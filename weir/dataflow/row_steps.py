"""Steps of the dataflow API that look at one row at a time, sinks, and exchanges that need no key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import polars as pl

from weir.author.watermarks import WatermarkStrategy, checked_strategy
from weir.dataflow.frame import StreamT, checked_callable, type_name
from weir.dataflow.function_steps import FunctionSteps
from weir.errors import GraphError
from weir.plan.graph import Exchange, Input
from weir.plan.step_names import renamed_step
from weir.specs import (
    AssignEventTimeSpec,
    BusySpec,
    FilterSpec,
    OperatorSpec,
    PassThroughSpec,
    SelectSpec,
    SinkSpec,
    UserSinkSpec,
    WithColumnsSpec,
)
from weir.specs.columns import ExplodeSpec, RenameSpec, check_rename, remaining_columns
from weir.specs.expression_checks import as_names


class RowSteps(FunctionSteps[StreamT]):
    """Steps of any stream."""

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
    ) -> StreamT:
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

    def rebalance(self) -> StreamT:
        """Give batches to the subtasks of the next step in turn (ROUND_ROBIN)."""
        return self._spread(Exchange.ROUND_ROBIN)

    def broadcast(self) -> StreamT:
        """Give every row to every subtask of the next step."""
        return self._spread(Exchange.BROADCAST)

    def forward(self) -> Self:
        """Start a new stage at the next step without moving rows between subtasks."""
        self._refuse_second_exchange("forward()")
        boundary = Input(self.node.name, stage_boundary=True, output=self.input.output)
        return self._like(self.node, boundary)

    def _spread(self, exchange: Exchange) -> StreamT:
        spread: StreamT = self.flow.stream_of(self.node, self._exchange(exchange))
        return spread
