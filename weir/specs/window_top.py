"""Specs of the first rows of each window in an order: some of each batch, then of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
from typing_extensions import override

from weir.author.states import DeclaredState
from weir.author.timer_hooks import EVENT_TIMERS, PROCESSING_TIMERS
from weir.errors import GraphError
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.base import OperatorSpec
from weir.specs.keyed import KeyedSpec
from weir.specs.row_order import OrderColumn, check_row_order
from weir.specs.windows import WINDOW_BOUNDS


@dataclass(frozen=True)
class WindowTopPartSpec(OperatorSpec):
    """A step that passes on a batch's rows that may be among the largest of their windows."""

    kind: ClassVar[str] = "window_top_part"
    keeps_columns: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.windows.rows.window_top:WindowTopPartOperator"
    by: str
    rows: int
    ties: bool
    #: Columns of any type in place of ``by``, which is the first of them then; and what divides a window's rows.
    order: tuple[OrderColumn, ...] = field(default=(), metadata={"came_later": True})
    key: tuple[str, ...] = field(default=(), metadata={"came_later": True})

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's; see :class:`OperatorSpec`."""
        schema = inputs[0]
        if self.order:
            check_row_order(step, self.order, schema)
        ordered = {self.by, *(each.name for each in self.order)}
        for column in schema:
            is_other = column.name not in ordered
            if (self.ties and is_other) or not _is_nested(column.type):
                continue
            what = "equal rows go by column" if is_other else "it goes by column"
            raise GraphError(
                f"step {step!r}: {what} {column.name!r}, which is {column.type} and has no order; "
                + ("drop it before, or set ties=True" if is_other else "go by a number, a time or text")
            )
        return schema


@dataclass(frozen=True)
class WindowTopSpec(KeyedSpec):
    """The first rows of each window, over all keys, or of each value of some columns."""

    kind: ClassVar[str] = "window_top"
    runtime: ClassVar[str] = "weir.operators.windows.rows.window_top:make_window_top"
    asked_by: ClassVar[str] = "weir.operators.queries.rows:window_top_format"
    by: str
    rows: int
    ties: bool
    schema: pa.Schema
    order: tuple[OrderColumn, ...] = field(default=(), metadata={"came_later": True})
    key: tuple[str, ...] = field(default=(), metadata={"came_later": True})
    #: Column of the place of a row, from 1 on; None: it is not told.
    rank: str | None = field(default=None, metadata={"came_later": True})

    @override
    def minds_versions(self, index: int, schema: pa.Schema) -> bool:
        return True

    @property
    def states(self) -> tuple[DeclaredState, ...]:
        """What its process declares."""
        timers = (DeclaredState(name, "timers", "") for name in (EVENT_TIMERS, PROCESSING_TIMERS))
        return (DeclaredState("rows", "value", "bytes"), *timers)

    @property
    def key_schema(self) -> pa.Schema:
        """Bounds of a window, and what divides its rows."""
        return pa.schema([self.schema.field(name) for name in (*WINDOW_BOUNDS, *self.key)])

    @property
    def told_schema(self) -> pa.Schema:
        """User columns of what leaves."""
        if self.rank is None:
            return self.schema
        return self.schema.append(pa.field(self.rank, pa.int64(), nullable=False))

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return tuple(state.name for state in self.states)

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's columns, and the place; see :class:`OperatorSpec`."""
        if self.rank is not None:
            if not isinstance(self.rank, str) or self.rank in SYSTEM_COLUMNS:
                raise GraphError(f"step {step!r}: rank is {self.rank!r}; it must be the name of a new column")
            if self.rank in inputs[0].names:
                raise GraphError(
                    f"step {step!r}: output column {self.rank!r} exists already; choose another name"
                )
        return self.told_schema


def _is_nested(dtype: pa.DataType) -> bool:
    """Return whether values of a type are no single ones, and so have no order."""
    return bool(pa.types.is_nested(dtype) or pa.types.is_dictionary(dtype) or pa.types.is_null(dtype))
