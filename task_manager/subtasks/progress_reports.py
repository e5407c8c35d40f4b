"""What a heartbeat and the metrics page read of a subtask that runs."""

from __future__ import annotations

from task_manager.progress import FINAL_STATES, SubtaskProgress, SubtaskState
from task_manager.subtasks.rejects import rejects_of
from task_manager.subtasks.running import RunningSubtask
from weir.operators.late_rows import late_rows_of


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
