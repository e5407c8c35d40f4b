"""Counts of the whole job, from what its subtasks report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.job.late_counts import late_rows
from control_plane.job.running_job import RunningJob
from control_plane.web.views import TotalsView
from weir.protocol.job.event_counts import EventCounts
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.load import NOTHING_MEASURED, JobLoad
from weir.protocol.job.rejects import Rejects
from weir.rpc import control_pb2
from weir.types import SubtaskId


def totals_view(
    job: RunningJob,
    rejected: Sequence[Rejects],
    latest: RestorePoint | None,
    load: JobLoad = NOTHING_MEASURED,
) -> TotalsView:
    """What ``/status`` shows of the whole job.

    Args:
        job: the job.
        rejected: what its steps have put aside.
        latest: the checkpoint that a restart begins with.
        load: what it did of late.
    """
    graph = job.graph
    reports = {
        **job.reports,
        **{SubtaskId(r.subtask.stage_index, -1 - i): r for i, r in enumerate(job.retired_reports)},
    }
    sources = [report for subtask, report in reports.items() if graph.stage(subtask.stage_index).is_source]
    sinks = [
        report
        for subtask, report in reports.items()
        if any(node.is_sink for node in graph.stage(subtask.stage_index).nodes)
    ]
    read = sum(report.records_in for report in sources)
    counts = job.events_before + EventCounts(read, sum(report.records_out for report in sinks))
    if job.state is JobState.STOPPED and latest is not None:
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
        events_rejected=sum(item.rejected for item in rejected if item.is_source),
        rows_put_aside=sum(item.rejected for item in rejected if not item.is_source),
        rows_late=late_rows(reports.values(), job.late_before),
        records_waiting=records_waiting(sources),
        distinct_keys=known_distinct_keys(reports.values()),
        first_event_ms=first_us // 1000 if first_us else None,
        last_event_ms=last_us // 1000 if last_us else None,
        events_per_second=round(read / ((last_us - first_us) / 1e6), 1) if last_us > first_us else 0.0,
        recent_events_per_second=round(load.rows_per_s, 1),
        latency_p50_ms=_short(load.latency_p50_ms),
        latency_p99_ms=_short(load.latency_p99_ms),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def records_waiting(sources: Iterable[control_pb2.SubtaskReport]) -> int | None:
    """Records that wait to be read by subtasks of sources; None if none of them knows."""
    lags = [lag.records for report in sources for lag in report.lags]
    return sum(lags) if lags else None


def known_distinct_keys(reports: Iterable[control_pb2.SubtaskReport]) -> int | None:
    """Keys that the steps of these reports have met; None if none of them counts."""
    counts = [report.distinct_keys for report in reports if report.HasField("distinct_keys")]
    return sum(counts) if counts else None
