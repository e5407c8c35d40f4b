"""The operators of one stage, called in turn; what leaves the last one goes to the output.

Used by the subtasks of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from weir.errors import WeirError
from weir.operators.base import Json, Operator, OperatorContext
from weir.state.capture import Capture
from weir.state.tables.opened import StateTables


class ChainOutput(Protocol):
    """Where a chain's rows go."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send a batch on; may wait."""
        ...


class RowIsolation(Protocol):
    """Puts rows aside that make a step raise."""

    def concerns(self, step: str) -> bool:
        """Whether rows of this step are looked at."""
        ...

    def process(
        self, operator: Operator, context: OperatorContext, batch: pa.RecordBatch
    ) -> Iterable[pa.RecordBatch]:
        """What the operator makes of the batch, without the rows that make it raise."""
        ...


OutputT = TypeVar("OutputT", bound=ChainOutput)


class StepError(Exception):
    """A step of the job raised; the message names the step and what was raised."""

    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__(f"step {step!r} failed: {type(error).__name__}: {error}")


@contextmanager
def naming_step(step: str) -> Iterator[None]:
    """Turn what user code raises into a :class:`StepError`; our own errors already say what to do."""
    try:
        yield
    except (WeirError, StepError):
        raise
    except Exception as error:
        raise StepError(step, error) from error


class OperatorChain(Generic[OutputT]):
    """Runs one subtask's operators; all methods are called by the subtask's thread."""

    def __init__(
        self,
        operators: Sequence[tuple[Operator, OperatorContext]],
        output: OutputT,
        check_cancelled: Callable[[], None],
        tables: StateTables,
        isolation: RowIsolation | None = None,
    ) -> None:
        """``check_cancelled`` raises CancelledError when the subtask is to stop; called between outputs.

        ``isolation``: puts rows aside that make steps raise, until it is taken away.
        """
        self._operators = list(operators)
        self._opened: list[Operator] = []
        #: What the operators keep by key.
        self.tables = tables
        self._is_flushing = False
        self.output = output
        #: Rows that entered the last operator: what a sink received.
        self.rows_into_last = 0
        self._last = len(self._operators) - 1
        self._check_cancelled = check_cancelled
        self.isolation = isolation

    @property
    def operators(self) -> list[Operator]:
        """In the order in which rows pass them."""
        return [operator for operator, _ in self._operators]

    def open(self) -> None:
        """Open all operators, the last one first, so that each finds its successor ready."""
        for operator, context in reversed(self._operators):
            self._opened.append(operator)
            with naming_step(context.operator_name):
                operator.open(context)

    def process(self, batch: pa.RecordBatch, start: int = 0) -> None:
        """Send one batch through the operators from index ``start`` on; may wait for credit."""
        if start == len(self._operators):
            self.output.emit(batch)
            return
        operator, context = self._operators[start]
        if start == self._last:
            self.rows_into_last += batch.num_rows
        # naming_step by hand: a context manager is a dozen calls, for every operator and batch.
        try:
            isolation = self.isolation
            outputs = (
                operator.process(batch)
                if isolation is None or not isolation.concerns(context.operator_name)
                else isolation.process(operator, context, batch)
            )
            for out in outputs:
                self._check_cancelled()
                if out.num_rows:
                    self.process(out, start + 1)
        except (WeirError, StepError):
            raise
        except Exception as error:
            raise StepError(context.operator_name, error) from error

    def on_watermark(self, time_ms: int) -> None:
        """Tell every operator of a new watermark, in order."""
        for index, (operator, context) in enumerate(self._operators):
            with naming_step(context.operator_name):
                for out in operator.on_watermark(time_ms):
                    self.process(out, index + 1)

    def flush(self) -> None:
        """Make dirty state durable, and write what operators buffer."""
        self._flush_operators()
        self.tables.flush()

    def flush_part(self, share: float) -> bool:
        """Make a share of the state that is dirty at the first call durable; True: all of it is."""
        if not self._is_flushing:
            self._flush_operators()
            self._is_flushing = True
        self._is_flushing = not self.tables.flush_part(share)
        return not self._is_flushing

    def _flush_operators(self) -> None:
        for operator, context in self._operators:
            with naming_step(context.operator_name):
                operator.flush()

    def snapshot(self, checkpoint_id: int) -> tuple[dict[str, Json], list[Capture]]:
        """Note dirty state, and collect what operators need besides, by their names.

        The captures are to be written, or abandoned; after an error none is left.
        """
        self._is_flushing = False
        self._flush_operators()
        snapshots: dict[str, Json] = {}
        captures = self.tables.capture()
        try:
            for operator, context in self._operators:
                with naming_step(context.operator_name):
                    value = operator.snapshot(checkpoint_id)
                if value is not None:
                    snapshots[context.operator_name] = value
        except BaseException:
            for capture in captures:
                capture.abandon()
            raise
        return snapshots, captures

    def commit(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: sinks deliver what belongs to it."""
        for operator, context in self._operators:
            with naming_step(context.operator_name):
                operator.commit(checkpoint_id)

    def finish(self) -> None:
        """The input has ended: let operators emit what they hold, and flush."""
        for index, (operator, context) in enumerate(self._operators):
            with naming_step(context.operator_name):
                for out in operator.finish():
                    self.process(out, index + 1)
        self.flush()

    def close(self) -> None:
        """Close what was opened, whatever fails on the way; the first error is raised at the end."""
        first: Exception | None = None
        while self._opened:
            try:
                self._opened.pop().close()
            except Exception as error:
                first = first or error
        self.tables.close()
        if first is not None:
            raise first
