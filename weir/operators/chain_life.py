"""What becomes of the operators of one stage besides rows: opened, flushed, captured for checkpoints, closed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from weir.author.operator import (
    AheadFilter,
    DividedOperator,
    Json,
    LateDelivery,
    LateSync,
    Operator,
    OperatorContext,
)
from weir.operators.step_errors import as_kept, naming_step
from weir.state.tables.capture import Capture
from weir.state.tables.opened import StateTables
from weir.state.tables.table import IsOver, never


class ChainLife:
    """The operators of a chain with their state; all methods but :meth:`sync` are called by the subtask's thread."""

    def __init__(self, operators: Sequence[tuple[Operator, OperatorContext]], tables: StateTables) -> None:
        self._operators = [
            (each, context)
            for operator, context in operators
            for each in (operator, operator.second if isinstance(operator, DividedOperator) else None)
            if each is not None
        ]
        #: What the operators keep by key.
        self.tables = tables
        self._opened: list[Operator] = []
        self._is_flushing = False

    @property
    def steps(self) -> list[tuple[Operator, OperatorContext]]:
        """The operators with what they were given."""
        return self._operators

    @property
    def operators(self) -> list[Operator]:
        """The operators, in the order in which rows pass them."""
        return [operator for operator, _ in self._operators]

    @property
    def tells_inputs_apart(self) -> bool:
        """Return whether the first operator must get the rows of one input at a time."""
        return bool(self._operators) and self._operators[0][0].tells_inputs_apart

    @property
    def only_filters(self) -> bool:
        """Return whether it does nothing but drop rows, so that they may lack a column."""
        return all(isinstance(operator, AheadFilter) for operator, _ in self._operators)

    def on_input_watermark(self, input_index: int, time_ms: int) -> None:
        """Tell the first operator of the watermark of one of its inputs alone."""
        operator, context = self._operators[0]
        with self._naming(context):
            operator.on_input_watermark(input_index, time_ms)

    def open(self) -> None:
        """Open all operators, the last one first, so that each finds its successor ready."""
        for operator, context in reversed(self._operators):
            self._opened.append(operator)
            with self._naming(context):
                operator.open(context)

    def flush(self) -> None:
        """Make dirty state durable, and write what operators buffer."""
        self.flush_operators()
        self.tables.flush()

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Write a share of the state that is dirty at the first call, less once it is over; True: all of it."""
        if not self._is_flushing:
            self.flush_operators()
            self._is_flushing = True
        self._is_flushing = not self.tables.flush_part(share, is_over)
        return not self._is_flushing

    def flush_operators(self) -> None:
        """Let operators write what they buffer outside; not their state."""
        for operator, context in self._operators:
            with self._naming(context):
                operator.flush()

    def settle_operators(self) -> None:
        """Key groups are about to move: what operators have written outside comes before what others write."""
        self.flush_operators()
        for operator, context in self._operators:
            if isinstance(operator, LateDelivery):
                with self._naming(context):
                    operator.settle()

    def snapshot(self, checkpoint_id: int) -> tuple[dict[str, Json], list[Capture]]:
        """Note dirty state, and collect what operators need besides, by their names; :meth:`sync` must follow.

        The captures are to be written, or abandoned; after an error none is left.
        """
        self._is_flushing = False
        self.flush_operators()
        snapshots: dict[str, Json] = {}
        captures = self.tables.capture()
        try:
            for operator, context in self._operators:
                with self._naming(context):
                    value = operator.snapshot(checkpoint_id)
                if value is not None:
                    snapshots[context.operator_name] = as_kept(value, context.operator_name)
        except BaseException:
            for capture in captures:
                capture.abandon()
            raise
        return snapshots, captures

    def sync(self) -> None:
        """Bring to the disk what the last snapshot tells of and is not there yet; another thread may call it."""
        for operator, context in self._operators:
            if isinstance(operator, LateSync):
                with self._naming(context):
                    operator.sync()

    @property
    def minds_commits(self) -> bool:
        """Return whether an operator does anything when a checkpoint is complete."""
        return any(type(operator).commit is not Operator.commit for operator, _ in self._operators)

    def commit(self, checkpoint_id: int, *, waits: bool = True) -> None:
        """A checkpoint is complete: sinks deliver what belongs to it; ``waits``: they have when this returns."""
        for operator, context in self._operators:
            with self._naming(context):
                operator.commit(checkpoint_id)
                if waits and isinstance(operator, LateDelivery):
                    operator.await_commit()

    @staticmethod
    def _naming(context: OperatorContext) -> AbstractContextManager[None]:
        return naming_step(context.operator_name, is_sink=context.is_sink)

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
