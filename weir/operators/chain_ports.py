"""What a chain of operators needs of the subtask that runs it: a way on for its rows, and what puts bad rows aside."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, runtime_checkable

import pyarrow as pa

from weir.author.operator import Operator, OperatorContext, SetAside
from weir.rows.records import Block, ControlElement, Idle, Watermark


class ChainOutput(Protocol):
    """Where a chain's rows go."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send a batch on; may wait."""

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        """Send a batch to those who read a side output (``step/output``); may wait."""


@runtime_checkable
class BlockOutput(Protocol):
    """An output that divides rows among consumers: what a filter before it keeps need not be copied before that."""

    def emit_block(self, block: Block, start: int, stop: int, rows: int) -> None:
        """Emit the rows of a block from number ``start`` on and before ``stop``.

        ``rows``: how many of them count; at least one.
        """


class RowIsolation(Protocol):
    """Puts rows aside that make a step raise."""

    def concerns(self, operator: Operator, step: str) -> bool:
        """Return whether rows of this operator, of a step, are looked at now."""

    def relax(self) -> None:
        """A checkpoint covers the rows that made steps raise."""

    def process(
        self, operator: Operator, context: OperatorContext, batch: pa.RecordBatch, input_index: int = 0
    ) -> Iterable[pa.RecordBatch]:
        """What the operator makes of the batch, without the rows that make it raise."""

    def timers_of(self, operator: Operator, context: OperatorContext) -> SetAside | None:
        """Takes timers that make the operator raise; None: they are not looked at now."""


class SubtaskOutput(ChainOutput, Protocol):
    """Where a subtask tells its consumers of more than rows."""

    def broadcast(self, element: ControlElement, but: Collection[str] = ()) -> None:
        """Send an element on every channel, after all rows; not on those of the side outputs ``but``."""

    def tell_sides(self, sides: Collection[str], element: Watermark | Idle) -> None:
        """Send an element on the channels of these side outputs only, after all rows."""
