"""What a heartbeat says about one subtask."""

from __future__ import annotations

from collections.abc import Sequence

from task_manager.progress import InputWatermark, SubtaskProgress, SubtaskState
from weir.protocol.job.rejects import FirstReject, Rejects
from weir.redaction import redacted_text
from weir.rpc import control_pb2
from weir.rpc.wire import failure_kind_to_proto, subtask_to_proto
from weir.types import SubtaskId

_STATES = {
    SubtaskState.OPENING: control_pb2.SUBTASK_STATE_OPENING,
    SubtaskState.DEPLOYED: control_pb2.SUBTASK_STATE_DEPLOYED,
    SubtaskState.RUNNING: control_pb2.SUBTASK_STATE_RUNNING,
    SubtaskState.FINISHED: control_pb2.SUBTASK_STATE_FINISHED,
    SubtaskState.FAILED: control_pb2.SUBTASK_STATE_FAILED,
    SubtaskState.CANCELED: control_pb2.SUBTASK_STATE_CANCELED,
}


def report_to_proto(subtask: SubtaskId, state: tuple[SubtaskProgress, int]) -> control_pb2.SubtaskReport:
    """The report of a subtask; ``state`` is its progress and the number of batches that wait in its input."""
    progress, queue_depth = state
    return control_pb2.SubtaskReport(
        subtask=subtask_to_proto(subtask),
        state=_STATES[progress.state],
        # The control plane does not know what is a secret in this process's own settings.
        cause=redacted_text(progress.cause) if progress.cause else "",
        failed_step=progress.failed_step,
        failure_kind=failure_kind_to_proto(progress.failure_kind),
        records_in=progress.records_in,
        records_out=progress.records_out,
        records_rejected=progress.records_rejected,
        late=[control_pb2.LateRows(step=step, rows=rows) for step, rows in progress.late],
        lags=[control_pb2.SplitLag(split=split, records=lag) for split, lag in progress.lags.items()],
        rejected=map(_rejected_to_proto, progress.rejected),
        queue_depth=queue_depth,
        busy_us=int(progress.busy_s * 1e6),
        idle_us=int(progress.idle_s * 1e6),
        backpressured_us=int(progress.backpressured_s * 1e6),
        watermark_ms=progress.watermark_ms,
        first_batch_us=progress.first_batch_us,
        last_batch_us=progress.last_batch_us,
        state_hold_us_max=int(progress.state_hold_s_max * 1e6),
        distinct_keys=progress.distinct_keys,
        restoring_groups=progress.restoring_groups,
        restore_groups=progress.restore_groups,
        restore_started_us=progress.restore_started_us,
        restore_us=int(progress.restore_s * 1e6),
        input_watermarks=_inputs_to_proto(progress.inputs),
        read_watermark_ms=progress.read_watermark_ms,
        is_idle=progress.is_idle,
        is_held_back=progress.is_held_back,
        hot_group=progress.hot_group,
        hot_group_share=progress.hot_group_share,
        hot_groups=[control_pb2.HotGroup(group=hot.group, share=hot.share) for hot in progress.hot_groups],
        hot_keys=[
            control_pb2.HotKey(key=hot.key, group=hot.group, share=hot.share) for hot in progress.hot_keys
        ],
        latency_counts=progress.latency_counts,
        processor_us=None if progress.processor_s is None else int(progress.processor_s * 1e6),
        rows_overdue=progress.rows_overdue,
        input_plan=progress.input_plan,
        channels=[
            control_pb2.ChannelQueue(
                consumer=subtask_to_proto(queue.consumer),
                rows=queue.rows,
                age_us=int(max(queue.age_s, 0) * 1e6),
            )
            for queue in progress.channels
        ],
    )


def _inputs_to_proto(inputs: Sequence[InputWatermark]) -> control_pb2.InputWatermarks:
    return control_pb2.InputWatermarks(
        edge_indices=[item.edge_index for item in inputs],
        producer_stages=[item.producer.stage_index for item in inputs],
        producer_indices=[item.producer.subtask_index for item in inputs],
        watermarks_ms=[item.watermark_ms for item in inputs],
        is_idle=[item.is_idle for item in inputs],
    )


def _rejected_to_proto(item: Rejects) -> control_pb2.RejectedRows:
    first = item.first or FirstReject("", "", -1, "")
    return control_pb2.RejectedRows(
        step=item.step,
        is_source=item.is_source,
        rows_in=item.rows_in,
        rejected=item.rejected,
        rejected_here=item.rejected_here,
        reason=first.reason,
        source=first.source,
        position=first.position,
        dead_letters=first.dead_letters,
    )
