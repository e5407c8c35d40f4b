"""The steps before the exchange of windows that send fewer rows of a batch: added up by key and pane, or chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from weir.errors import GraphError
from weir.specs.aggregate_functions import aggregate_parts, aggregated_columns
from weir.specs.base import OperatorSpec
from weir.specs.expression_checks import expression_columns
from weir.specs.row_order import OrderColumn
from weir.specs.window_kinds import Window
from weir.specs.window_updates import WindowUpdates
from weir.specs.windows import WINDOW_PART, WindowAggregate

#: The key of windows over all keys: 0 in every row.
ALL_ROWS_KEY = "window_all"


@dataclass(frozen=True)
class WindowPartSpec(OperatorSpec):
    """A step that makes one row of a batch's rows for a pane of a key, with accumulators, where that saves rows."""

    kind: ClassVar[str] = "window_part"
    runtime: ClassVar[str] = "weir.operators.windows.panes.window_part:WindowPartOperator"
    #: (): of windows over all keys.
    key_columns: tuple[str, ...]
    window: Window
    aggregates: tuple[WindowAggregate, ...]
    #: Columns of the input that it reads.
    input_schema: pa.Schema
    #: Batches with fewer rows pass as they are.
    rows_min: int = field(default=0, metadata={"came_later": True})
    #: How windows tell their results: their accumulators have cells for it.
    updates: WindowUpdates = field(default=WindowUpdates(), metadata={"came_later": True})
    #: Of windows over all keys: every row leaves as it came, with all of its columns, which ``input_schema`` then has.
    passes_rows: bool = field(default=False, metadata={"came_later": True})

    #: See :class:`WindowAggregateSpec`.
    own_cells_at: int | None = field(default=None, metadata={"derived": True})

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Key columns of its output."""
        return self.key_columns or (ALL_ROWS_KEY,)

    @property
    def time_words(self) -> str | None:
        """The windows, and what becomes of rows; see :class:`OperatorSpec`."""
        if self.can_combine:
            return f"{self.window.words}, adds up the rows of each batch"
        return f"{self.window.words}, sends every row on as it is" + (
            "" if self.key_columns else ", to one subtask"
        )

    @property
    def can_combine(self) -> bool:
        """Return whether accumulators are all that aggregates keep; otherwise rows leave as they came."""
        by_clock = self.window.kind == "session" and self.window.time == "processing"
        early = self.updates.early
        by_row = early is not None and (early.rows is not None or early.where is not None)
        return not (self.passes_rows or by_clock or by_row or aggregate_parts(self.aggregates))

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """What is read, null in rows that stand for several, and their accumulators; see :class:`OperatorSpec`."""
        for name in (WINDOW_PART, ALL_ROWS_KEY):
            if name in self.input_schema.names:
                raise GraphError(
                    f"step {step!r}: column {name!r} has a name that it needs itself; rename the column"
                )
        all_rows_key = pa.field(ALL_ROWS_KEY, pa.int8(), nullable=False)
        part = pa.field(WINDOW_PART, pa.binary())
        if self.passes_rows:
            return pa.schema([*self.input_schema, all_rows_key, part])
        fields = [
            column.with_nullable(column.nullable or column.name not in self.key_columns)
            for column in self.input_schema
        ]
        if not self.key_columns:
            fields.append(all_rows_key)
        return pa.schema([*fields, part])

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Keys, what is aggregated and what conditions look at; see :class:`OperatorSpec`."""
        if self.passes_rows:
            return frozenset(self.input_schema.names)
        read = aggregated_columns(self.aggregates, schema) | {*self.key_columns}
        early = self.updates.early
        return (
            read if early is None or early.where is None else read | expression_columns([early.where], schema)
        )

    def passed_on(self, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Key columns; see :class:`OperatorSpec`."""
        return names.intersection(self.key_columns)

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Key columns; see :class:`OperatorSpec`."""
        return self.passed_on(names, schema)


@dataclass(frozen=True)
class WindowRowsPartSpec(OperatorSpec):
    """A step that leaves out rows which so many others of the batch, key and pane are before in an order."""

    kind: ClassVar[str] = "window_rows_part"
    keeps_columns: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.windows.rows.rows_part:WindowRowsPartOperator"
    key_columns: tuple[str, ...]
    window: Window
    order: tuple[OrderColumn, ...]
    rows: int
    #: Batches with fewer rows pass as they are.
    rows_min: int = 0

    @property
    def time_words(self) -> str | None:
        """The windows, and what becomes of rows; see :class:`OperatorSpec`."""
        return f"{self.window.words}, leaves out rows that {self.rows:,} others of each batch are before"

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What those after it read, keys, and what rows go by; see :class:`OperatorSpec`."""
        return wanted | {*self.key_columns, *(each.name for each in self.order)}

    def carried(self, index: int, names: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """Key columns: without the rows of a key the same ones of others leave; see :class:`OperatorSpec`."""
        return names.intersection(self.key_columns)


def part_conflict(aggregates: tuple[WindowAggregate, ...], schema: pa.Schema) -> str | None:
    """Why rows of these aggregates cannot be added up before the exchange without changing results; None: they can.

    Sums of floats depend on the order in which they are added.
    """
    for aggregate in aggregates:
        if aggregate_parts((aggregate,)):
            return f"{aggregate.output} is a {aggregate.function}, which is not made of sums"
        if aggregate.function in ("variance", "stddev"):
            return f"{aggregate.output} is a {aggregate.function}, whose last digits depend on the order of additions"
        if aggregate.function in ("sum", "mean"):
            dtype = schema.field(str(aggregate.column)).type
            if not (pa.types.is_integer(dtype) or pa.types.is_decimal(dtype)):
                return f"{aggregate.output} adds {dtype}, whose sum depends on the order of additions"
    return None
