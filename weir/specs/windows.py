"""Specs of windows: which window a row belongs to, and what is made of the rows of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.protocol.checkpoints.aggregate_layout import OWN_CELLS, Layout
from weir.rows.changes import changelog_schema
from weir.rows.records import SYSTEM_COLUMNS
from weir.rows.row_watermarks import RowWatermarks
from weir.specs.aggregate_functions import (
    AggregateFunction,
    aggregate_parts,
    aggregate_type,
    aggregated_columns,
    has_coded_texts,
    in_order,
)
from weir.specs.base import SideOutput
from weir.specs.expression_checks import check_predicate, expression_columns
from weir.specs.keyed import KeyedSpec
from weir.specs.stored_order import in_layout, layout_of
from weir.specs.window_kinds import Window, WindowTime
from weir.specs.window_updates import WindowUpdates

#: What rows have that stand for several: their accumulators. Null: it is a row as it came.
WINDOW_PART = "window_part"
#: State of late rows that wait for the watermark of their split to become that of all.
LATE_STATE = "_late"
#: State of the texts whose codes aggregates have.
TEXTS_STATE = "texts"
#: Columns that every result of a window has, after the key columns: int64, ms since 1970, never null.
WINDOW_BOUNDS = (WINDOW_START, WINDOW_END) = ("window_start", "window_end")


@dataclass(frozen=True)
class WindowAggregate:
    """An aggregate of a window: ``function`` over ``column`` of rows that meet ``condition``, named ``output``."""

    output: str
    function: AggregateFunction
    column: str | None = None
    condition: pl.Expr | None = None
    parameters: tuple[float, ...] = field(default=(), metadata={"came_later": True})


@dataclass(frozen=True)
class WindowAggregateSpec(KeyedSpec):
    """Aggregates of the rows of each key in each window."""

    kind: ClassVar[str] = "window_aggregate"
    runtime: ClassVar[str] = "weir.operators.windows.panes.making:make_window_operator"
    asked_by: ClassVar[str] = "weir.operators.queries.formats:window_format"
    is_by_key: ClassVar[bool] = True
    window: Window
    #: In the order in which state has them; those of the function "dropped" have no column.
    aggregates: tuple[WindowAggregate, ...]
    #: Key columns and what is aggregated, as they come in: a window may fire before any row has come.
    input_schema: pa.Schema
    updates: WindowUpdates = field(default=WindowUpdates(), metadata={"came_later": True})
    #: Rows come that stand for several: ``weir.specs.window_parts``.
    takes_parts: bool = field(default=False, metadata={"came_later": True})
    #: The windows are over all keys: the key is none of the author's columns.
    is_keyless: bool = field(default=False, metadata={"came_later": True})
    #: Rows may be added up before they are sent here, where that changes no result:
    #: ``weir.plan.rules.pre_aggregation``.
    adds_up: bool = field(default=True, metadata={"came_later": True})

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        return True

    @property
    def row_watermarks(self) -> RowWatermarks:
        """Return what rows meet between them: a trigger tells between rows, and so do ends of windows then."""
        if self.window.time == "processing":
            return RowWatermarks.NONE
        early = self.updates.early
        if early is None:
            return RowWatermarks.LATE
        by_rows = early.interval_ms is None and self.window.kind != "global"
        is_timed = early.interval_ms is not None and early.time == "event"
        return RowWatermarks.ALL if by_rows or is_timed else RowWatermarks.LATE

    #: Of aggregates of texts: makes of them, and their columns, what computes them of rows that state of before has.
    of_rows: Callable[..., Any] | None = field(default=None, metadata={"derived": True})

    #: Of windows over all keys: the rows as they come to the step before, and so those that are late.
    late_schema: pa.Schema | None = field(default=None, metadata={"derived": True})

    #: Names of the aggregates' columns, in order; (): as the aggregates are.
    shown: tuple[str, ...] = field(default=(), metadata={"derived": True})

    #: So many aggregates come before the cells that the step has besides; None: all. Those that came later come after.
    own_cells_at: int | None = field(default=None, metadata={"derived": True})

    @property
    def results(self) -> tuple[WindowAggregate, ...]:
        """The aggregates that have columns, in the order of these."""
        return in_order(self.aggregates, self.shown)

    @property
    def shown_keys(self) -> tuple[str, ...]:
        """Key columns of results."""
        return () if self.is_keyless else self.key_columns

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        texts = (TEXTS_STATE,) if has_coded_texts(self.aggregates, self.input_schema) else ()
        return ("", *(part.name for part in aggregate_parts(self.aggregates)), *texts, *self.late_states)

    @property
    def asked_names(self) -> tuple[str, ...]:
        """The aggregates; see :class:`OperatorSpec`."""
        return tuple(aggregate.output for aggregate in self.aggregates)

    @property
    def time_words(self) -> str | None:
        """The windows, and how they are told; see :class:`OperatorSpec`."""
        return self.window.words + self.updates.words

    @property
    @override
    def window_time(self) -> WindowTime:
        return self.window.time

    @property
    def goes_by_event_time(self) -> bool:
        """Unless they go by the clock or never end; see :class:`OperatorSpec`."""
        return self.window.time == "event" and self.window.kind != "global"

    @property
    def takes_back_at_time(self) -> bool:
        """Return whether each result of a window has its last ms, also when replaced; see :class:`OperatorSpec`."""
        return self.window.kind == "tumbling"

    @property
    def late_states(self) -> tuple[str, ...]:
        """Where a late row may find some done of what it has a part in, and some not: it waits for that."""
        shares = self.window.kind in ("sliding", "cumulative", "session")
        return (LATE_STATE,) if shares and self.window.time == "event" else ()

    @property
    @override
    def has_own_cells(self) -> bool:
        return self.window.kind in ("session", "global") or self.updates.keeps_told

    @override
    def stored_layout(self, given: pa.Schema) -> Layout:
        return layout_of(self.aggregates, self.input_schema, self.own_cells_at)

    @override
    def laid_out(self, layout: Layout) -> WindowAggregateSpec:
        return replace(
            self,
            aggregates=in_layout(self.aggregates, layout, WindowAggregate),
            shown=tuple(each.output for each in self.results),
            own_cells_at=layout.index(OWN_CELLS) if OWN_CELLS in layout else None,
        )

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """Key columns, start and end of the window, one column for each aggregate; see :class:`OperatorSpec`."""
        schema = window_schema(step, self.shown_keys, self.results, inputs[0], takes_texts=True)
        early = self.updates.early
        if early is not None and early.where is not None:
            check_predicate(f"{step}: where of early", early.where, inputs[0])
        parts = aggregate_parts(self.aggregates)
        if parts and self.updates.results != "accumulating":
            raise GraphError(
                f"step {step!r}: counts of different values and quantiles cannot be told with "
                f"results={self.updates.results!r}; use results='accumulating'"
            )
        return changelog_schema(step, list(schema)) if self.updates.results == "changelog" else schema

    def sides(self, step: str, inputs: tuple[pa.Schema, ...]) -> tuple[SideOutput, ...]:
        """Late rows, as they come in."""
        if self.window.time != "event" or self.window.kind == "global":
            return ()
        if self.is_keyless:
            # The planner lets all rows come as they are if somebody reads the late ones.
            return () if self.late_schema is None else (SideOutput("late", self.late_schema),)
        # Of rows that were added up there is only the sum.
        return () if self.takes_parts else (SideOutput("late", inputs[0]),)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, what is aggregated and what conditions look at; see :class:`OperatorSpec`."""
        parts = {WINDOW_PART} if self.takes_parts else set()
        read = aggregated_columns(self.aggregates, schema) | {*self.key_columns, *parts}
        early = self.updates.early
        if early is None or early.where is None:
            return read
        return read | expression_columns([early.where], schema)

    def read_for_side(self, output: str, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Return all columns; see :class:`OperatorSpec`."""
        return frozenset(schema.names) - ({WINDOW_PART} if self.is_keyless else set())


def window_schema(
    step: str,
    keys: tuple[str, ...],
    aggregates: tuple[WindowAggregate, ...],
    schema: pa.Schema,
    *,
    takes_texts: bool = False,
) -> pa.Schema:
    """User columns of the results of a window; ``takes_texts`` as for ``aggregate_type``.

    Raises:
        GraphError: no aggregate, an unknown or unfit column, a wrong condition, or an output name that is taken.
    """
    if not aggregates:
        raise GraphError(f"step {step!r}: give at least one aggregate, such as n=weir.count()")
    fields = [schema.field(name) for name in keys]
    for name in (WINDOW_START, WINDOW_END):
        if name in keys:
            raise GraphError(
                f"step {step!r}: key column {name!r} has the name of a column that every window adds; rename it before "
                "key_by"
            )
        fields.append(pa.field(name, pa.int64(), nullable=False))
    taken = {*keys, WINDOW_START, WINDOW_END, *SYSTEM_COLUMNS}
    for aggregate in aggregates:
        if aggregate.output in taken:
            raise GraphError(
                f"step {step!r}: output column {aggregate.output!r} exists already; choose another name"
            )
        taken.add(aggregate.output)
        if aggregate.condition is not None:
            check_predicate(f"{step}: where of {aggregate.output}", aggregate.condition, schema)
        dtype = aggregate_type(step, aggregate.function, aggregate.column, schema, takes_texts=takes_texts)
        fields.append(pa.field(aggregate.output, dtype))
    return pa.schema(fields)


def checked_window(step: str | None, window: object) -> Window:
    """What ``window`` was given.

    Raises:
        GraphError: it is no window.
    """
    if not isinstance(window, Window):
        raise GraphError(
            f"step {step!r}: expected a window such as weir.tumbling('60s'), got {type(window).__name__}"
        )
    return window
