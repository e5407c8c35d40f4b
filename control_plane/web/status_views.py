"""From what the control plane knows to what ``/status``, ``/plan`` and ``/routing`` show. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from control_plane.composition import ControlPlane
from control_plane.job.late_counts import late_text
from control_plane.web.totals import known_distinct_keys, totals_view
from control_plane.web.views import (
    AutoscaledView,
    AutoscalerView,
    HeadlineView,
    HotGroupView,
    HotKeyView,
    InputQueueView,
    InputWatermarkView,
    PlanView,
    RejectedView,
    RoutingView,
    StageView,
    StatusView,
    SubtaskView,
    TaskManagerView,
)
from weir.clock import monotonic_ms, wall_ms
from weir.metrics import JobFacts
from weir.plan.document import plan_document
from weir.plan.graph import PhysicalGraph, Stage
from weir.protocol.job.event_counts import NO_EVENTS, EventCounts
from weir.protocol.job.headline import headline
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.load import StageLoad, SubtaskLoad
from weir.protocol.routing import RoutingTable
from weir.redaction import redacted, redacted_text
from weir.rpc import control_pb2
from weir.types import MachineUse, SubtaskId

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


def status_view(control_plane: ControlPlane, *, with_inputs: bool = True) -> StatusView:
    """Everything on one page.

    Args:
        control_plane: of the job.
        with_inputs: also what each subtask has of each subtask before it: of stages with 50 subtasks 2,500 entries.
    """
    job = control_plane.job
    machine = job.machine
    queues = input_queues(job.reports)
    load = control_plane.watcher.load
    said = headline(load)
    loads = {each.stage: each for each in load.stages}
    remote = job.locations.remote_counts()
    return StatusView(
        job_id=job.identity.job_id,
        job=job.graph.logical.name,
        job_module=job.job_module,
        parameters=redacted(job.parameters),
        state=machine.state.value,
        state_meaning=_MEANINGS[machine.state],
        headline=HeadlineView(verdict=said.verdict.value, text=redacted_text(said.text), stage=said.stage),
        cause=machine.cause,
        waiting_for=job.waiting_for if machine.state is JobState.WAITING_FOR_TASK_MANAGERS else "",
        generation=job.identity.generation,
        restarts=job.restarts,
        restart_cause=machine.restart_cause,
        latest_checkpoint=control_plane.checkpointer.latest_id,
        latest_checkpoint_path=control_plane.checkpointer.kept.latest_place,
        checkpoint_waits_for=control_plane.checkpointer.waits_for,
        fingerprint=job.identity.fingerprint,
        started_ms=_ms(job.started_us),
        ended_ms=_ms(job.ended_us),
        task_managers=_task_managers(control_plane),
        standbys=control_plane.standbys.views(),
        standbys_missing=control_plane.standbys.missing,
        stages=[
            _stage_view(
                control_plane,
                stage,
                queues,
                loads.get(stage.index),
                remote[stage.index],
                with_inputs=with_inputs,
            )
            for stage in job.graph.stages
        ],
        totals=totals_view(job, control_plane.rejects.totals, control_plane.checkpointer.latest, load),
        rejected=control_plane.rejects.views(),
        autoscaler=_autoscaler(control_plane),
    )


def _autoscaler(control_plane: ControlPlane) -> AutoscalerView:
    autoscaling = control_plane.autoscaling
    return AutoscalerView(
        enabled=autoscaling.is_enabled,
        dry_run=autoscaling.is_dry_run,
        text=redacted_text(autoscaling.line) if autoscaling.is_enabled else "off",
        slots_missing=autoscaling.slots_missing,
        decisions=[AutoscaledView(**asdict(each)) for each in autoscaling.decisions],
    )


def _ms(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1000


def _task_managers(control_plane: ControlPlane) -> list[TaskManagerView]:
    placed = Counter(control_plane.job.machine.placement.values())
    members = control_plane.task_managers
    membership, clients = members.membership, members.clients
    now_ms = monotonic_ms(control_plane.clock)
    return [
        TaskManagerView(
            address=member.name,
            operator_quota=member.quota,
            subtasks=placed[member.name],
            heartbeat_age_ms=max(0, now_ms - member.heard_ms),
            http=clients[member.name].question_place.http_address if member.name in clients else "",
            waits_for=members.waits(member.name),
            fetched_files=files.fetched_files,
            fetched_bytes=files.fetched_bytes,
            write_stalls=files.write_stalls,
            write_stall_ms=files.write_stall_ms,
            **asdict(members.use.get(member.name, MachineUse())),
        )
        for member in membership.members()
        for files in (members.state_files.get(member.name, control_pb2.StateFiles()),)
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
    control_plane: ControlPlane,
    stage: Stage,
    queues: Mapping[SubtaskId, list[InputQueueView]],
    load: StageLoad | None,
    remote_groups: int,
    *,
    with_inputs: bool,
) -> StageView:
    loads = {} if load is None else {each.subtask_index: each for each in load.subtasks}
    subtasks = [
        _subtask_view(
            control_plane,
            subtask,
            queues.get(subtask, []),
            loads.get(subtask.subtask_index, SubtaskLoad(subtask.subtask_index)),
            with_inputs=with_inputs,
        )
        for subtask in stage.subtasks()
    ]
    group, share = (0, 0.0) if load is None else load.hot_group
    return StageView(
        stage=stage.index,
        name=stage.name,
        parallelism=stage.parallelism,
        keyed=stage.is_keyed,
        records_in=sum(subtask.records_in for subtask in subtasks),
        records_out=sum(subtask.records_out for subtask in subtasks),
        subtasks=subtasks,
        remote_groups=remote_groups,
        recent_hot_group=group if share else None,
        recent_hot_group_share=round(share, 4),
        recent_hot_groups=[
            HotGroupView(group=part.group, share=round(part.share, 4))
            for part in (() if load is None else load.hot_groups)
        ],
        recent_hot_keys=[
            HotKeyView(key=part.key, group=part.group, share=round(part.share, 4))
            for part in (() if load is None else load.hot_keys)
        ],
    )


def _subtask_view(
    control_plane: ControlPlane,
    subtask: SubtaskId,
    queues: list[InputQueueView],
    load: SubtaskLoad,
    *,
    with_inputs: bool,
) -> SubtaskView:
    report = control_plane.job.reports.get(subtask, control_pb2.SubtaskReport(watermark_ms=_WATERMARK_MIN_MS))
    known_us = max(report.busy_us + report.idle_us + report.backpressured_us, 1)
    now_ms = wall_ms(control_plane.clock)
    has_watermark = _WATERMARK_MIN_MS < report.watermark_ms < _WATERMARK_MAX_MS
    return SubtaskView(
        subtask_index=subtask.subtask_index,
        task_manager=control_plane.job.machine.placement.get(subtask, ""),
        state=control_plane.job.machine.statuses[subtask].value,
        cause=report.cause,
        records_in=report.records_in,
        records_out=report.records_out,
        records_rejected=report.records_rejected,
        lags={lag.split: lag.records for lag in report.lags},
        queue_depth=report.queue_depth,
        queued_rows=sum(queue.queued_rows for queue in queues),
        queued_age_ms=max((queue.queued_age_ms for queue in queues), default=0.0),
        input_queues=queues if with_inputs else [],
        busy_ratio=round(report.busy_us / known_us, 4),
        idle_ratio=round(report.idle_us / known_us, 4),
        backpressured_ratio=round(report.backpressured_us / known_us, 4),
        recent_busy_ratio=round(load.busy, 4),
        recent_backpressured_ratio=round(load.blocked, 4),
        recent_records_in_per_second=round(load.rows_in_per_s, 1),
        hot_group=load.hot_group if load.hot_group_share else None,
        hot_group_share=round(load.hot_group_share, 4),
        watermark_ms=report.watermark_ms if has_watermark else None,
        watermark_lag_ms=now_ms - report.watermark_ms if has_watermark else None,
        input_watermarks=_input_watermarks(report.input_watermarks, now_ms) if with_inputs else [],
        is_idle=report.is_idle,
        is_held_back=report.is_held_back,
        distinct_keys=known_distinct_keys([report]),
        restoring_groups=report.restoring_groups,
        state_hold_ms_max=report.state_hold_us_max / 1e3,
    )


def _input_watermarks(inputs: control_pb2.InputWatermarks, now_ms: int) -> list[InputWatermarkView]:
    found = []
    for edge, stage, index, time_ms, is_idle in zip(
        inputs.edge_indices,
        inputs.producer_stages,
        inputs.producer_indices,
        inputs.watermarks_ms,
        inputs.is_idle,
        strict=True,
    ):
        has_one = _WATERMARK_MIN_MS < time_ms < _WATERMARK_MAX_MS
        found.append(
            InputWatermarkView(
                stage=stage,
                subtask_index=index,
                input=edge,
                watermark_ms=time_ms if has_one else None,
                watermark_lag_ms=now_ms - time_ms if has_one else None,
                is_idle=is_idle,
            )
        )
    return sorted(found, key=lambda item: (item.input, item.stage, item.subtask_index))


def plan_view(graph: PhysicalGraph) -> PlanView:
    """Logical and physical graph."""
    return PlanView.model_validate(plan_document(graph))


def outcome(status: StatusView, missed: str = "", *, at_start: EventCounts = NO_EVENTS) -> dict[str, str]:
    """What ``weir run`` says of a job that has ended: state, cause and a summary of this job.

    Args:
        status: its last one.
        missed: what it ended without.
        at_start: what the totals had been when it started.
    """
    totals = status.totals
    events_in, events_out = totals.events_in - at_start.events_in, totals.events_out - at_start.events_out
    in_all = f" ({totals.events_in:,} in and {totals.events_out:,} out with those before the savepoint)"
    rejected = f", {totals.events_rejected:,} rejected" if totals.events_rejected else ""
    rejected += f", {totals.rows_put_aside:,} put aside" if totals.rows_put_aside else ""
    rejected += late_text(totals.rows_late)
    where = "".join(
        f"; the first of {item.step}: {_first(item)}" for item in status.rejected if item.first_reason
    )
    seconds = max((status.ended_ms or 0) - (status.started_ms or status.ended_ms or 0), 0) / 1e3
    return {
        "state": status.state,
        "cause": redacted_text(missed) or status.cause,
        "summary": f"{events_in:,} events in, {events_out:,} out{rejected}, in {seconds:.1f} s"
        f"{in_all if at_start != NO_EVENTS else ''}{where}",
    }


def _first(item: RejectedView) -> str:
    place = f"{item.first_source} at {item.first_position}: " if item.first_source else ""
    return f"{place}{item.first_reason}; dead letters: {item.dead_letters}"


def routing_views(tables: Mapping[int, RoutingTable]) -> list[RoutingView]:
    """The routing tables of all stages, by stage."""
    return [routing_view(table) for _, table in sorted(tables.items())]


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


def job_facts(control_plane: ControlPlane) -> JobFacts:
    """What the control plane's metrics show."""
    job = control_plane.job
    members = control_plane.task_managers.members()
    statuses = Counter(status.value for status in control_plane.job.machine.statuses.values())
    return JobFacts(
        job=job.graph.logical.name,
        state=control_plane.job.machine.state.value,
        states=tuple(state.value for state in JobState),
        generation=job.identity.generation,
        task_managers=len(members),
        slots=sum(member.quota for member in members),
        slots_used=len(control_plane.job.machine.placement)
        if not control_plane.job.machine.state.is_final
        else 0,
        subtasks=dict(statuses),
        restarts=job.restarts,
        restores=control_plane.restores.ended(),
        restoring_subtasks=control_plane.restores.under_way,
        checkpoint_age_s=_checkpoint_age_s(control_plane),
        disks={
            address: (use.disk_free_bytes, use.disk_bytes)
            for address, use in control_plane.task_managers.use.items()
            if use.disk_bytes
        },
        rejected={item.step: item.rejected for item in control_plane.rejects.totals},
        autoscaled=dict(control_plane.autoscaling.counts),
        slots_missing=control_plane.autoscaling.slots_missing,
        standbys={
            (each.of, each.task_manager): (each.lag_checkpoints, each.lag_bytes, each.held_bytes)
            for each in control_plane.standbys.views()
        },
        standbys_missing=control_plane.standbys.missing,
    )


def _checkpoint_age_s(control_plane: ControlPlane) -> float | None:
    """How old the state is that a restart would begin with; None: no checkpoints are made, or the job is over."""
    job, kept = control_plane.job, control_plane.checkpointer.kept
    if not kept.is_enabled or job.machine.state.is_final or job.started_us is None:
        return None
    latest_ms = 0 if kept.latest is None else kept.latest.manifest.created_ms
    return max(wall_ms(control_plane.clock) - max(latest_ms, job.started_us // 1000), 0) / 1e3
