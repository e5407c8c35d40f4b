"""Spec of the step that gives rows another event time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.watermarks import WatermarkStrategy
from weir.specs.base import OperatorSpec
from weir.specs.expression_checks import check_event_time, expression_columns
from weir.specs.words import watermark_words


@dataclass(frozen=True)
class AssignEventTimeSpec(OperatorSpec):
    """Take the event time from an expression, and make watermarks of it; rows whose time is bad are put aside."""

    kind: ClassVar[str] = "assign_event_time"
    keeps_columns: ClassVar[bool] = True
    runtime: ClassVar[str] = "weir.operators.stateless.assign_event_time:AssignEventTimeOperator"
    rejects_rows: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    event_time: pl.Expr
    #: None: as config.json says.
    watermark: WatermarkStrategy | None = None

    @property
    @override
    def event_time_words(self) -> str | None:
        return watermark_words(str(self.event_time), self.watermark)

    @property
    def makes_event_times(self) -> bool:
        """Always; see :class:`OperatorSpec`."""
        return True

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's; see :class:`OperatorSpec`."""
        check_event_time(step, self.event_time, inputs[0])
        return super().output_schema(step, inputs)

    def read_columns(self, wanted: frozenset[str], schema: pa.Schema) -> frozenset[str]:
        """What the event time is made of, and what is wanted; a generator sees every column."""
        if self.watermark is not None and self.watermark.generator is not None:
            return super().read_columns(wanted, schema)
        return wanted | expression_columns([self.event_time], schema)
