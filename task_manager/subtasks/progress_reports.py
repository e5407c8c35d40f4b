"""What a heartbeat and the metrics page read of a subtask that runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from task_manager.progress import FINAL_STATES, SubtaskProgress, SubtaskState
from task_manager.subtasks.running import RunningSubtask
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.delegate import UserStep
from weir.operators.late_rows import late_rows_of
from weir.operators.stateless.expressions import FilterOperator, WithColumnsOperator
from weir.operators.stateless.functions import FunctionOperator
from weir.protocol.job.rejects import FirstReject, Rejects

if TYPE_CHECKING:
    from task_manager.subtasks.running import RunningSubtask


def current_progress(running: RunningSubtask) -> SubtaskProgress:
    """Returns a copy of a subtask's progress as it is now; called by any thread.

    The state is read before the counters, so that the report that tells of the end has all of them. Counters that the
    subtask does not write itself are kept for the metrics page too.
    """
    kept = running.subtask.progress
    progress = kept.copy()
    progress.rejected = rejects_of(running)
    kept.records_rejected = progress.records_rejected = sum(r.rejected for r in progress.rejected)
    # It is a sum over channels, which a small batch would have to pay for.
    kept.bytes_out = progress.bytes_out = running.chain.output.bytes_sent
    # Read here, because a subtask that is held back cannot write it.
    kept.backpressured_s = progress.backpressured_s = running.chain.output.waited_s
    kept.channels = progress.channels = (
        () if progress.state in FINAL_STATES else running.chain.output.queues()
    )
    kept.inputs = progress.inputs = running.subtask.input_watermarks()
    progress.processor_s = running.subtask.processor_s()
    sample = running.subtask.sample
    progress.hot_group, progress.hot_group_share = sample.hot_group()
    progress.hot_groups, progress.hot_keys = sample.hot_parts()
    progress.latency_counts = sample.latency_counts()
    sample.want()
    progress.late = late_rows_of(running.chain)
    kept.records_late = progress.records_late = sum(rows for _, rows in progress.late)
    if running.reader is not None:
        is_reading = progress.state is SubtaskState.RUNNING
        kept.lags = progress.lags = running.reader.lags if is_reading else {}
        progress.rows_overdue = running.reader.rows_overdue if is_reading else None
        progress.input_plan = running.reader.input_plan
    counts = [getattr(operator, "distinct_keys", None) for operator in running.chain.operators]
    known = [count for count in counts if count is not None]
    kept.distinct_keys = progress.distinct_keys = sum(known) if known else None
    return progress


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
