"""Specs of the rows with the largest values of each window: some of each batch, then of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from typing_extensions import override

from weir.author.states import DeclaredState
from weir.author.timer_hooks import EVENT_TIMERS, PROCESSING_TIMERS
from weir.errors import GraphError
from weir.specs.base import OperatorSpec
from weir.specs.keyed import KeyedSpec
from weir.specs.windows import WINDOW_BOUNDS


@dataclass(frozen=True)
class WindowTopPartSpec(OperatorSpec):
    """Of each batch the rows that may be among the largest of their windows."""

    kind: ClassVar[str] = "window_top_part"
    keeps_columns: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.windows.rows.window_top:WindowTopPartOperator"
    by: str
    rows: int
    ties: bool

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's; see :class:`OperatorSpec`."""
        schema = inputs[0]
        for column in schema:
            is_other = column.name != self.by
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
    """The rows with the largest values of each window, over all keys."""

    kind: ClassVar[str] = "window_top"
    runtime: ClassVar[str] = "weir.operators.windows.rows.window_top:make_window_top"
    asked_by: ClassVar[str] = "weir.operators.queries.rows:window_top_format"
    by: str
    rows: int
    ties: bool
    schema: pa.Schema

    @property
    def states(self) -> tuple[DeclaredState, ...]:
        """What its process declares."""
        timers = (DeclaredState(name, "timers", "") for name in (EVENT_TIMERS, PROCESSING_TIMERS))
        return (DeclaredState("rows", "value", "bytes"), *timers)

    @property
    def key_schema(self) -> pa.Schema:
        """Bounds of a window."""
        return pa.schema([self.schema.field(name) for name in WINDOW_BOUNDS])

    @property
    @override
    def state_names(self) -> tuple[str, ...]:
        return tuple(state.name for state in self.states)

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's columns; see :class:`OperatorSpec`."""
        return inputs[0]


def _is_nested(dtype: pa.DataType) -> bool:
    """Whether values of a type are no single ones, and so have no order."""
    return bool(pa.types.is_nested(dtype) or pa.types.is_dictionary(dtype) or pa.types.is_null(dtype))
