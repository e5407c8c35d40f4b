"""Puts rows aside that make a step raise, so that they do not restart the job for ever.

Used after several restarts for the same step. Steps without state stay under it as long as the job runs: its cost is
nothing but the ``try``. Others get row by row, which is slow, so that ends with the next checkpoint: see
docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import pyarrow as pa

from task_manager.exchange.channels import CancelledError
from weir.author.operator import Operator, OperatorContext, SetAside
from weir.errors import FailureKind, UserFunctionError, kind_in_step
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.stateless.expressions import FilterOperator, WithColumnsOperator
from weir.operators.stateless.functions import FunctionOperator, RowFunctionOperator
from weir.operators.user_errors import UserErrors
from weir.rows.python_values import row_json
from weir.rows.records import BATCH_BYTES_MAX, batch_bytes, user_columns
from weir.rows.side_outputs import SideRows
from weir.subtask_names import without_step

#: Rows that a function of batches is given at a time: so many that about every second time one of them is bad.
_BAD_AT_A_TIME = 0.7
#: Weight of the latest batch in the share of rows that are bad.
_SHARE_WEIGHT = 0.5

#: What keeps nothing of a batch that it could not take. Any other operator may remember it, also one without tables.
_STATELESS = (FunctionOperator, FilterOperator, WithColumnsOperator)


class Isolation:
    """Puts rows of one subtask aside that make steps raise; called by the subtask's thread."""

    def __init__(
        self, steps: Collection[str], open_file: Callable[[str], DeadLetterFile], errors: UserErrors
    ) -> None:
        """``steps``: names of those that raised; ``open_file`` gives the dead letters of a step."""
        self._errors = errors
        self._steps = frozenset(steps)
        self._open_file = open_file
        self._files: dict[str, DeadLetterFile] = {}
        self._is_relaxed = False
        #: By step, the share of rows that were bad lately.
        self._shares: dict[str, float] = {}

    @property
    def rejected(self) -> int:
        """Rows that were put aside."""
        return sum(file.rejected for file in self._files.values())

    def file_of(self, step: str) -> DeadLetterFile | None:
        """Returns the file of a step's rows that were put aside, which counts them; None before the first one."""
        return self._files.get(step)

    def concerns(self, operator: Operator, step: str) -> bool:
        """Return whether this operator's rows are looked at now."""
        return step in self._steps and not (self._is_relaxed and not isinstance(operator, _STATELESS))

    def relax(self) -> None:
        """A checkpoint covers the rows that made steps raise: from now on only steps without state are looked at."""
        self._is_relaxed = True

    def process(
        self, operator: Operator, context: OperatorContext, batch: pa.RecordBatch, input_index: int = 0
    ) -> list[pa.RecordBatch]:
        """Returns the operator's output for the batch without the rows that make it raise.

        A function of rows is called for each row. A function of batches and an expression get as many rows at a time as
        went well lately, and halves of those that they could not take. Any other operator gets row by row from the
        start, because what it did or noted before it raised cannot be taken back.

        Raises:
            Exception: not the rows' fault; what a sink raises never is.
        """
        if isinstance(operator, RowFunctionOperator):
            return list(operator.process_apart(batch, self._taker(context)))
        step = context.operator_name
        rows, rejected = batch.num_rows, self.rejected
        at_once = 1
        if isinstance(operator, _STATELESS):
            at_once = int(min(rows, max(1.0, _BAD_AT_A_TIME / max(self._shares.get(step, 0.0), 1e-9))))
        out: list[pa.RecordBatch] = []
        for start in range(0, rows, at_once):
            out += self._halved(operator, context, batch.slice(start, at_once), input_index)
        share = (self.rejected - rejected) / rows
        self._shares[step] = share + (self._shares.get(step, share) - share) * (1 - _SHARE_WEIGHT)
        return joined(out)

    def _halved(
        self, operator: Operator, context: OperatorContext, batch: pa.RecordBatch, input_index: int
    ) -> list[pa.RecordBatch]:
        try:
            return list(_outputs_of(operator, batch, input_index))
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
        return [out for part in parts for out in self._halved(operator, context, part, input_index)]

    def timers_of(self, operator: Operator, context: OperatorContext) -> SetAside | None:
        """Takes timers that make the operator raise, one by one, as rows; None: they are not looked at now."""
        return self._taker(context) if self.concerns(operator, context.operator_name) else None

    def _taker(self, context: OperatorContext) -> SetAside:
        def set_aside(row: pa.RecordBatch, error: BaseException) -> bool:
            if isinstance(error, CancelledError) or not isinstance(error, Exception):
                return False
            if kind_in_step(error, is_sink=context.is_sink, takes_rows=True) is not FailureKind.ROWS:
                return False
            self._reject(context.operator_name, row, error)
            return True

        return set_aside

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _reject(self, step: str, row: pa.RecordBatch, error: Exception) -> None:
        self._errors.tell(step, error, row)
        if step not in self._files:
            self._files[step] = self._open_file(step)
        raw = row_json(row.select(user_columns(row.schema)))
        self._files[step].reject(f"step {step}", -1, _reason(step, error), raw)


def _outputs_of(operator: Operator, batch: pa.RecordBatch, input_index: int) -> Iterable[pa.RecordBatch]:
    if operator.tells_inputs_apart:
        return operator.process_input(input_index, batch)
    return operator.process(batch)


def _reason(step: str, error: Exception) -> str:
    """Returns the reason for the file of a step, without the step's name, which the file has already."""
    if isinstance(error, UserFunctionError):
        return without_step(str(error), step)
    return f"{type(error).__name__}: {error}"


def joined(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in fewer batches: neighbours of one schema are joined, up to ``BATCH_BYTES_MAX``.

    Rows of side outputs stay as they are.
    """
    out: list[pa.RecordBatch] = []
    part: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if isinstance(batch, SideRows):
            out.append(batch)
            continue
        own_bytes = batch_bytes(batch)
        if part and (size_bytes + own_bytes > BATCH_BYTES_MAX or not batch.schema.equals(part[0].schema)):
            out.append(pa.concat_batches(part))
            part, size_bytes = [], 0
        part.append(batch)
        size_bytes += own_bytes
    return [*out, pa.concat_batches(part)] if part else out
