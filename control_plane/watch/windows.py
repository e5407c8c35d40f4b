"""Windows over reports, which count since the start: what subtasks did in the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weir.plan.graph import PhysicalGraph, Stage
from weir.protocol.job.latency_share import share_below
from weir.protocol.job.load import HotPart, StageLoad, SubtaskLoad
from weir.rpc import control_pb2
from weir.types import SubtaskId

#: Loads are of so many seconds: reports come twice a second, at worst once.
WINDOW_S = 3.0
#: Latencies are of more: few rows are looked at.
_LATENCY_WINDOW_S = 10.0
#: A subtask whose counters tell of less of the time is inside a call that takes long, or sleeps.
_KNOWN_MIN = 0.5
#: Figures count as those of a window when so much of it was seen.
_WINDOW_KNOWN_MIN = 0.7
_WATERMARK_MIN_MS, _WATERMARK_MAX_MS = -(2**63), 2**63 - 1
_FINAL = frozenset(
    {
        control_pb2.SUBTASK_STATE_FINISHED,
        control_pb2.SUBTASK_STATE_FAILED,
        control_pb2.SUBTASK_STATE_CANCELED,
    }
)
Reports = Mapping[SubtaskId, control_pb2.SubtaskReport]


@dataclass(frozen=True, slots=True)
class _Queue:
    """What waits for a subtask in all of its channels."""

    rows: int = 0
    #: Of the oldest row.
    age_ms: float = 0.0


_NOTHING_WAITS = _Queue()


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    reports: Reports
    latency_counts: tuple[int, ...]
    queues: Mapping[SubtaskId, _Queue]


class LoadWindows:
    """The reports of the last seconds of one deployment; used in the event loop."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """No reports yet; loads are of the last ``window_s``."""
        self._window_s = window_s
        self._looks: deque[_Look] = deque()
        self._generation = 0

    @property
    def is_measured(self) -> bool:
        """Whether there were looks enough, since the deployment began, to tell rates."""
        return len(self._looks) > 1 and self._looks[-1].at_s - self._looks[0].at_s >= self._window_s / 2

    def take(self, at_s: float, generation: int, reports: Reports) -> None:
        """Note the reports of a deployment as they are at this monotonic second; called about once a second."""
        if generation != self._generation:
            self._generation = generation
            self._looks.clear()
        self._looks.append(_Look(at_s, dict(reports), _latency_counts(reports), _queues(reports)))
        kept_s = max(_LATENCY_WINDOW_S, self._window_s)
        while len(self._looks) > 2 and at_s - self._looks[1].at_s >= kept_s:
            self._looks.popleft()

    def clear(self) -> None:
        """Begin anew: what was before does not tell what will be."""
        self._looks.clear()

    def latency_ms(self, share: float) -> float | None:
        """Return what this share (0.99) of the rows that ended of late took at most; None: none was looked at."""
        if len(self._looks) < 2:
            return None
        first, last = self._looks[0].latency_counts, self._looks[-1].latency_counts
        if len(first) != len(last):
            first = (0,) * len(last)
        return share_below([max(b - a, 0) for a, b in zip(first, last, strict=True)], share)

    def stages(self, graph: PhysicalGraph, now_ms: int) -> list[StageLoad]:
        """The loads of all stages; ``now_ms`` is the wall clock, for lags of watermarks."""
        return [
            StageLoad(
                stage.index,
                stage.name,
                [self._subtask(subtask, now_ms) for subtask in stage.subtasks()],
                producers_of(stage),
            )
            for stage in graph.stages
        ]

    def _subtask(self, subtask: SubtaskId, now_ms: int) -> SubtaskLoad:
        index = subtask.subtask_index
        report = self._looks[-1].reports.get(subtask) if self._looks else None
        queue = self._looks[-1].queues.get(subtask, _NOTHING_WAITS) if self._looks else _NOTHING_WAITS
        if report is None:
            return SubtaskLoad(index, queued_age_ms=queue.age_ms, queued_rows=queue.rows, is_known=False)
        first = self._first(subtask)
        seconds = self._looks[-1].at_s - first.at_s if first is not None else 0.0
        before = first.reports[subtask] if first is not None else report
        queued_before = first.queues.get(subtask, _NOTHING_WAITS).rows if first is not None else queue.rows
        busy, blocked = _shares(before, report, seconds, queue.age_ms)
        has_watermark = _WATERMARK_MIN_MS < report.watermark_ms < _WATERMARK_MAX_MS
        return SubtaskLoad(
            index,
            busy,
            blocked,
            _rate(before, report, report.records_in - before.records_in, seconds),
            _rate(before, report, report.records_out - before.records_out, seconds),
            queue.age_ms,
            queue.rows,
            (queue.rows - queued_before) / seconds if seconds > 0 else 0.0,
            report.hot_group,
            report.hot_group_share,
            now_ms - report.watermark_ms if has_watermark else None,
            _behind(report),
            (_behind(report) - _behind(before)) / seconds if seconds > 0 else 0.0,
            has_ended=report.state in _FINAL,
            is_known=seconds >= self._window_s * _WINDOW_KNOWN_MIN,
            processors=_processors(before, report, seconds),
            queue_depth=report.queue_depth,
            knows_waiting=bool(report.lags) or report.HasField("rows_overdue"),
            partitions=len(report.lags),
            overdue=report.rows_overdue,
            overdue_more_per_s=(report.rows_overdue - before.rows_overdue) / seconds if seconds > 0 else 0.0,
            hot_groups=tuple(HotPart(hot.group, hot.share) for hot in report.hot_groups),
            hot_keys=tuple(HotPart(hot.group, hot.share, hot.key) for hot in report.hot_keys),
        )

    def _first(self, subtask: SubtaskId) -> _Look | None:
        """The look with which the window of a subtask begins, if there is one before the last."""
        last = self._looks[-1]
        for look in self._looks:
            if look is not last and last.at_s - look.at_s <= self._window_s and subtask in look.reports:
                return look
        return None


def producers_of(stage: Stage) -> list[int]:
    """Stages whose rows come to this one, ascending."""
    return sorted({edge.producer_stage for edge in stage.inputs})


def _shares(
    before: control_pb2.SubtaskReport, report: control_pb2.SubtaskReport, seconds: float, queued_age_ms: float
) -> tuple[float, float]:
    """Busy and blocked, 0 to 1."""
    if seconds <= 0:
        return 0.0, 0.0
    busy_s = (report.busy_us - before.busy_us) / 1e6
    blocked_s = (report.backpressured_us - before.backpressured_us) / 1e6
    known_s = busy_s + blocked_s + (report.idle_us - before.idle_us) / 1e6
    if known_s < seconds * _KNOWN_MIN:
        # Time counts when a call has returned: with rows that wait it is in one, without it sleeps.
        unknown_s = seconds - known_s
        if queued_age_ms > 0:
            busy_s += unknown_s
        known_s = seconds
    return min(max(busy_s, 0.0) / known_s, 1.0), min(max(blocked_s, 0.0) / known_s, 1.0)


def _rate(
    before: control_pb2.SubtaskReport, report: control_pb2.SubtaskReport, rows: int, seconds: float
) -> float:
    """Rows per second, by the times of the batches: reports are up to a second old when they are looked at."""
    if seconds <= 0 or rows <= 0:
        return 0.0
    batches_s = (report.last_batch_us - (before.last_batch_us or report.first_batch_us)) / 1e6
    return rows / min(max(batches_s, seconds * 0.5), seconds * 1.5)


def _processors(
    before: control_pb2.SubtaskReport, report: control_pb2.SubtaskReport, seconds: float
) -> float | None:
    """Processors that the thread used; None: one of the reports does not tell."""
    if seconds <= 0 or not (before.HasField("processor_us") and report.HasField("processor_us")):
        return None
    return max(report.processor_us - before.processor_us, 0) / 1e6 / seconds


def _behind(report: control_pb2.SubtaskReport) -> int:
    return sum(lag.records for lag in report.lags)


def _queues(reports: Reports) -> dict[SubtaskId, _Queue]:
    """Return by consumer what waits for it; senders report it."""
    queues: dict[SubtaskId, _Queue] = {}
    for report in reports.values():
        for channel in report.channels:
            consumer = SubtaskId(channel.consumer.stage_index, channel.consumer.subtask_index)
            queue = queues.get(consumer, _NOTHING_WAITS)
            queues[consumer] = _Queue(queue.rows + channel.rows, max(queue.age_ms, channel.age_us / 1e3))
    return queues


def _latency_counts(reports: Reports) -> tuple[int, ...]:
    counts: Sequence[Sequence[int]] = [
        report.latency_counts for report in reports.values() if report.latency_counts
    ]
    lengths = {len(each) for each in counts}
    # Processes of one version only; for a moment there may be two.
    return tuple(map(sum, zip(*counts, strict=True))) if len(lengths) == 1 else ()
