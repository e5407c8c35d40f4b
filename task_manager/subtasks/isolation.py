"""Puts rows aside that make a step raise, so that they do not restart the job for ever.

Used after several restarts for the same step. Steps without state stay under it as long as the job runs: its cost is
nothing but the ``try``. Others get row by row, which is slow, so that ends with the next checkpoint: see
docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import orjson
import pyarrow as pa

from task_manager.exchange.credits import CancelledError
from weir.errors import FailureKind, kind_in_step
from weir.operators.base import Operator, OperatorContext, SetAside
from weir.operators.chain import process
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.stateless.expressions import FilterOperator, WithColumnsOperator
from weir.operators.stateless.functions import FunctionOperator
from weir.operators.user_errors import UserErrors
from weir.records import user_columns

#: What keeps nothing of a batch that it could not take. Any other operator may remember it, also one without tables.
_STATELESS = (FunctionOperator, FilterOperator, WithColumnsOperator)


class Isolation:
    """Of one subtask; called by its thread."""

    def __init__(
        self, steps: Collection[str], open_file: Callable[[str], DeadLetterFile], errors: UserErrors
    ) -> None:
        """``steps``: names of those that raised; ``open_file`` gives the dead letters of a step."""
        self._errors = errors
        self._steps = frozenset(steps)
        self._open_file = open_file
        self._files: dict[str, DeadLetterFile] = {}
        self._is_relaxed = False

    @property
    def rejected(self) -> int:
        """Rows that were put aside."""
        return sum(file.rejected for file in self._files.values())

    def file_of(self, step: str) -> DeadLetterFile | None:
        """Where rows of a step were put, which counts them; None before the first one."""
        return self._files.get(step)

    def concerns(self, operator: Operator, step: str) -> bool:
        """Whether this operator's rows are looked at now."""
        return step in self._steps and not (self._is_relaxed and not isinstance(operator, _STATELESS))

    def relax(self) -> None:
        """A checkpoint covers the rows that made steps raise: from now on only steps without state are looked at."""
        self._is_relaxed = True

    def process(
        self, operator: Operator, context: OperatorContext, batch: pa.RecordBatch, input_index: int = 0
    ) -> list[pa.RecordBatch]:
        """What the operator makes of the batch, without the rows that make it raise.

        A function or an expression gets halves of a batch that it could not take. Any other operator gets row by row
        from the start, because what it did or noted before it raised cannot be taken back.

        Raises:
            Exception: not the rows' fault; what a sink raises never is.
        """
        if not isinstance(operator, _STATELESS) and batch.num_rows > 1:
            rows = (batch.slice(row, 1) for row in range(batch.num_rows))
            return [out for row in rows for out in self.process(operator, context, row, input_index)]
        try:
            return list(process(operator, batch, input_index))
        except CancelledError:
            raise
        except Exception as error:
            if kind_in_step(error, is_sink=context.is_sink, takes_rows=True) is not FailureKind.ROWS:
                raise
            if batch.num_rows == 1:
                self._reject(context.operator_name, batch, error)
                return []
        # Outside of the except clause: what a half raises is not to be told as a consequence of this.
        half = batch.num_rows // 2
        parts = (batch.slice(0, half), batch.slice(half))
        return [out for part in parts for out in self.process(operator, context, part, input_index)]

    def timers_of(self, operator: Operator, context: OperatorContext) -> SetAside | None:
        """Takes timers that make the operator raise, one by one, as rows; None: they are not looked at now."""
        if not self.concerns(operator, context.operator_name):
            return None

        def set_aside(timer: pa.RecordBatch, error: BaseException) -> bool:
            if isinstance(error, CancelledError) or not isinstance(error, Exception):
                return False
            if kind_in_step(error, is_sink=False, takes_rows=True) is not FailureKind.ROWS:
                return False
            self._reject(context.operator_name, timer, error)
            return True

        return set_aside

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _reject(self, step: str, row: pa.RecordBatch, error: Exception) -> None:
        if step not in self._files:
            self._files[step] = self._open_file(step)
        self._errors.tell(step, error, row)
        raw = orjson.dumps(row.select(user_columns(row.schema)).to_pylist()[0], default=str)
        self._files[step].reject(f"step {step}", -1, f"{type(error).__name__}: {error}", raw)
