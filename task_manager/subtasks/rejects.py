"""What a subtask's report says of rejected records and of rows that were put aside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weir.operators.dead_letters import DeadLetterFile
from weir.operators.delegate import UserStep
from weir.operators.stateless.expressions import FilterOperator, WithColumnsOperator
from weir.operators.stateless.functions import FunctionOperator
from weir.protocol.job.rejects import FirstReject, Rejects

if TYPE_CHECKING:
    from task_manager.subtasks.running import RunningSubtask

#: Steps that have rows put aside: what all their subtasks were given counts.
_JUDGED = (FunctionOperator, FilterOperator, WithColumnsOperator, UserStep)


def rejects_of(running: RunningSubtask) -> list[Rejects]:
    """Return the rejects of the subtask's source, and of steps whose rows can be put aside; for every report."""
    found = []
    letters = running.dead_letters
    if letters is not None:
        # A source counts on over restarts, its file does not.
        rejected = max(letters.rejected, getattr(running.reader, "rejected", 0))
        met = running.subtask.progress.records_in + letters.rejected
        found.append(
            Rejects(letters.operator, True, met, rejected, _first(letters), rejected_here=letters.rejected)
        )
    for (operator, context), rows_in in zip(running.chain.steps, running.chain.rows_into, strict=True):
        file = None if running.isolation is None else running.isolation.file_of(context.operator_name)
        # What a sink of dead letters is given the job has put aside by itself.
        if file is None and isinstance(context.dead_letters, DeadLetterFile) and not context.is_sink:
            file = context.dead_letters
        if file is not None:
            found.append(Rejects(context.operator_name, False, rows_in, file.rejected, _first(file)))
        elif isinstance(operator, _JUDGED) and not context.is_sink:
            found.append(Rejects(context.operator_name, False, rows_in, 0))
    return found


def _first(file: DeadLetterFile) -> FirstReject | None:
    if file.first is None:
        return None
    source, position, reason = file.first
    return FirstReject(reason, source if position >= 0 else "", position, os.path.abspath(file.path))
