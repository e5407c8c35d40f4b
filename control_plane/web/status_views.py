"""From the coordinator's state to what ``/status``, ``/plan`` and ``/routing`` show. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from control_plane.web.views import (
    InputQueueView,
    PlanView,
    RoutingView,
    StageView,
    StatusView,
    SubtaskView,
    TaskManagerView,
    TotalsView,
)
from weir.graph import PhysicalGraph, Stage
from weir.metrics import JobFacts
from weir.plan_document import plan_document
from weir.protocol.event_counts import EventCounts
from weir.protocol.job import JobState
from weir.protocol.routing import RoutingTable
from weir.redaction import redacted
from weir.rpc import control_pb2
from weir.types import SubtaskId

if TYPE_CHECKING:
    from control_plane.job.coordinator import Coordinator

_WATERMARK_MIN_MS, _WATERMARK_MAX_MS = -(2**63), 2**63 - 1

_MEANINGS = {
    JobState.WAITING_FOR_TASK_MANAGERS: "waiting for task managers with enough free slots",
    JobState.DEPLOYING: "task managers create the subtasks",
    JobState.RUNNING: "events are processed",
    JobState.FINISHING: "every source reached its end; the last checkpoint is being made",
    JobState.RESTARTING: "something failed; the job starts again from the latest checkpoint",
    JobState.FINISHED: "every source reached its end and everything was processed",
    JobState.FAILING: "something failed; the rest is being stopped",
    JobState.FAILED: "something failed, see cause; nothing runs any more",
    JobState.CANCELLING: "a user asked for the end; subtasks are being stopped",
    JobState.CANCELLED: "stopped by a user",
    JobState.STOPPED: "stopped by a user, with a savepoint that has everything",
}


def status_view(coordinator: Coordinator) -> StatusView:
    """Everything on one page."""
    job = coordinator.machine
    queues = input_queues(coordinator.reports)
    return StatusView(
        job_id=coordinator.identity.job_id,
        job=coordinator.graph.logical.name,
        job_module=coordinator.job_module,
        parameters=redacted(coordinator.parameters),
        state=job.state.value,
        state_meaning=_MEANINGS[job.state],
        cause=job.cause,
        waiting_for=coordinator.waiting_for if job.state is JobState.WAITING_FOR_TASK_MANAGERS else "",
        generation=coordinator.identity.generation,
        restarts=coordinator.recovery.restarts,
        restart_cause=job.restart_cause,
        latest_checkpoint=coordinator.checkpointer.latest_id,
        fingerprint=coordinator.identity.fingerprint,
        started_ms=_ms(coordinator.started_us),
        ended_ms=_ms(coordinator.ended_us),
        task_managers=_task_managers(coordinator),
        stages=[_stage_view(coordinator, stage, queues) for stage in coordinator.graph.stages],
        totals=_totals(coordinator),
        rejected=coordinator.rejects.views(),
    )


def _ms(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1000


def _task_managers(coordinator: Coordinator) -> list[TaskManagerView]:
    placed = Counter(coordinator.machine.placement.values())
    membership = coordinator.leases.membership
    now_ms = coordinator.now_ms()
    return [
        TaskManagerView(
            address=member.name,
            operator_quota=member.quota,
            subtasks=placed[member.name],
            heartbeat_age_ms=max(0, now_ms - (member.lease_end_ms - membership.lease_ms)),
        )
        for member in membership.members()
    ]


def input_queues(
    reports: Mapping[SubtaskId, control_pb2.SubtaskReport],
) -> dict[SubtaskId, list[InputQueueView]]:
    """By consumer, the input channels on which rows wait; senders report them."""
    queues: dict[SubtaskId, list[InputQueueView]] = {}
    for sender, report in sorted(reports.items()):
        for channel in report.channels:
            consumer = SubtaskId(channel.consumer.stage_index, channel.consumer.subtask_index)
            queues.setdefault(consumer, []).append(
                InputQueueView(
                    stage=sender.stage_index,
                    subtask_index=sender.subtask_index,
                    queued_rows=channel.rows,
                    queued_age_ms=channel.age_us / 1e3,
                )
            )
    return queues


def _stage_view(
    coordinator: Coordinator, stage: Stage, queues: Mapping[SubtaskId, list[InputQueueView]]
) -> StageView:
    subtasks = [_subtask_view(coordinator, subtask, queues.get(subtask, [])) for subtask in stage.subtasks()]
    return StageView(
        stage=stage.index,
        name=stage.name,
        parallelism=stage.parallelism,
        keyed=stage.is_keyed,
        records_in=sum(subtask.records_in for subtask in subtasks),
        records_out=sum(subtask.records_out for subtask in subtasks),
        subtasks=subtasks,
    )


def _subtask_view(coordinator: Coordinator, subtask: SubtaskId, queues: list[InputQueueView]) -> SubtaskView:
    report = coordinator.reports.get(subtask, control_pb2.SubtaskReport(watermark_ms=_WATERMARK_MIN_MS))
    known_us = max(report.busy_us + report.idle_us + report.backpressured_us, 1)
    has_watermark = _WATERMARK_MIN_MS < report.watermark_ms < _WATERMARK_MAX_MS
    return SubtaskView(
        subtask_index=subtask.subtask_index,
        task_manager=coordinator.machine.placement.get(subtask, ""),
        state=coordinator.machine.statuses[subtask].value,
        cause=report.cause,
        records_in=report.records_in,
        records_out=report.records_out,
        records_rejected=report.records_rejected,
        queue_depth=report.queue_depth,
        queued_rows=sum(queue.queued_rows for queue in queues),
        queued_age_ms=max((queue.queued_age_ms for queue in queues), default=0.0),
        input_queues=queues,
        busy_ratio=round(report.busy_us / known_us, 4),
        idle_ratio=round(report.idle_us / known_us, 4),
        backpressured_ratio=round(report.backpressured_us / known_us, 4),
        watermark_ms=report.watermark_ms if has_watermark else None,
        distinct_keys=known_distinct_keys([report]),
        restoring_groups=report.restoring_groups,
    )


def _totals(coordinator: Coordinator) -> TotalsView:
    graph = coordinator.graph
    reports = {
        **coordinator.reports,
        **{SubtaskId(r.subtask.stage_index, -1 - i): r for i, r in enumerate(coordinator.retired_reports)},
    }
    sources = [report for subtask, report in reports.items() if graph.stage(subtask.stage_index).is_source]
    sinks = [
        report
        for subtask, report in reports.items()
        if any(node.is_sink for node in graph.stage(subtask.stage_index).nodes)
    ]
    read = sum(report.records_in for report in sources)
    counts = coordinator.events_before + EventCounts(read, sum(report.records_out for report in sinks))
    latest = coordinator.checkpointer.latest
    if coordinator.machine.state is JobState.STOPPED and latest is not None:
        # Sinks deliver what the savepoint covers, and nothing of what came after its barrier.
        counts = latest.manifest.events
    firsts = [report.first_batch_us for report in reports.values() if report.first_batch_us]
    first_us, last_us = (
        min(firsts, default=0),
        max((report.last_batch_us for report in reports.values()), default=0),
    )
    return TotalsView(
        events_in=counts.events_in,
        events_out=counts.events_out,
        events_rejected=sum(item.rejected for item in coordinator.rejects.totals if item.is_source),
        rows_put_aside=sum(item.rejected for item in coordinator.rejects.totals if not item.is_source),
        distinct_keys=known_distinct_keys(reports.values()),
        first_event_ms=first_us // 1000 if first_us else None,
        last_event_ms=last_us // 1000 if last_us else None,
        events_per_second=round(read / ((last_us - first_us) / 1e6), 1) if last_us > first_us else 0.0,
    )


def known_distinct_keys(reports: Iterable[control_pb2.SubtaskReport]) -> int | None:
    """Keys that the steps behind these reports have met; None if none of them counts."""
    counts = [report.distinct_keys for report in reports if report.HasField("distinct_keys")]
    return sum(counts) if counts else None


def plan_view(graph: PhysicalGraph) -> PlanView:
    """Logical and physical graph."""
    return PlanView.model_validate(plan_document(graph))


def outcome(status: StatusView) -> dict[str, str]:
    """What ``weir run`` says of a job that has ended: state, cause and a summary."""
    totals = status.totals
    rejected = f", {totals.events_rejected:,} rejected" if totals.events_rejected else ""
    rejected += f", {totals.rows_put_aside:,} put aside" if totals.rows_put_aside else ""
    letters = sorted({item.dead_letters for item in status.rejected if item.dead_letters})
    where = f"; dead letters: {', '.join(letters)}" if letters else ""
    seconds = max((status.ended_ms or 0) - (status.started_ms or status.ended_ms or 0), 0) / 1e3
    return {
        "state": status.state,
        "cause": status.cause,
        "summary": f"{totals.events_in:,} events in, {totals.events_out:,} out{rejected}, in {seconds:.1f} s{where}",
    }


def routing_view(table: RoutingTable) -> RoutingView:
    """One stage's routing table."""
    counts = Counter(table.groups)
    return RoutingView(
        stage=table.stage_index,
        routing_version=table.version,
        group_to_subtask=list(table.groups),
        subtasks=list(table.subtasks),
        groups_per_subtask=[counts[index] for index in table.subtasks],
        owner_epochs=list(table.owner_epochs),
    )


def job_facts(coordinator: Coordinator) -> JobFacts:
    """What the control plane's metrics show."""
    members = coordinator.leases.membership.members()
    statuses = Counter(status.value for status in coordinator.machine.statuses.values())
    return JobFacts(
        job=coordinator.graph.logical.name,
        state=coordinator.machine.state.value,
        states=tuple(state.value for state in JobState),
        generation=coordinator.identity.generation,
        task_managers=len(members),
        slots=sum(member.quota for member in members),
        slots_used=len(coordinator.machine.placement) if not coordinator.machine.state.is_final else 0,
        subtasks=dict(statuses),
        restarts=coordinator.recovery.restarts,
        restores=coordinator.restores.ended(),
        restoring_subtasks=coordinator.restores.under_way,
        rejected={item.step: item.rejected for item in coordinator.rejects.totals},
    )
