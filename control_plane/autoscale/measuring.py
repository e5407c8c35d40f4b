"""Makes of the reports of task managers what the autoscaler decides from."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace

from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.rescale.rescaler import Rescaler
from control_plane.watch.windows import LoadWindows
from weir.plan.graph import PhysicalGraph, Stage
from weir.protocol.autoscale.measures import (
    JobMeasure,
    StageMeasure,
    SubtaskMeasure,
    TaskManagerMeasure,
)
from weir.protocol.job.load import StageLoad, SubtaskLoad
from weir.rpc.wire import parse_address
from weir.types import MachineUse, SubtaskId

_LOOKS_MAX = 4_000
_LOOK_LATE_S = 0.5
#: A source that is held back for more than this share of its time is measured over so many windows.
_HELD, _LONG = 0.8, 6


class Measuring:
    """The last seconds of a job, looked at once a second; used in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        task_managers: TaskManagers,
        rescaler: Rescaler,
        *,
        window_s: float,
        channel_batches: int,
    ) -> None:
        """Nothing is known yet.

        Args:
            job: the job.
            task_managers: that are there.
            rescaler: knows which stages cannot be scaled.
            window_s: figures are means of so long.
            channel_batches: batches that an input channel takes (``operator_bufferSize``).
        """
        self._job, self._task_managers, self._rescaler = job, task_managers, rescaler
        self._window_s, self._channel_batches = window_s, channel_batches
        # Looks are a moment more than a second apart: the one with which a window begins must be in it.
        self._windows = LoadWindows(window_s + _LOOK_LATE_S)
        #: Of sources that are held back: they read a batch, and then wait until it has been taken, perhaps for long.
        self._long_windows = LoadWindows(_LONG * window_s)
        self._uses: deque[tuple[float, Mapping[str, MachineUse]]] = deque(maxlen=_LOOKS_MAX)

    def clear(self) -> None:
        """Begin anew, after a change."""
        self._windows.clear()
        self._long_windows.clear()
        self._uses.clear()

    def take(self, at_s: float) -> None:
        """Note what has been reported by this monotonic second."""
        for windows in (self._windows, self._long_windows):
            windows.take(at_s, self._job.identity.generation, self._job.reports)
        self._uses.append((at_s, dict(self._task_managers.use)))
        while len(self._uses) > 2 and at_s - self._uses[1][0] >= self._window_s:
            self._uses.popleft()

    def measure(self, now_ms: int) -> JobMeasure:
        """Means of the window that ended with the last look; ``now_ms`` is the wall clock."""
        graph = self._job.graph
        loads = {each.stage: each for each in self._windows.stages(graph, now_ms)}
        if any(not each.producers and each.blocked > _HELD for each in loads.values()):
            for each in self._long_windows.stages(graph, now_ms):
                if not each.producers:
                    loads[each.stage] = _held_source(loads[each.stage], each)
        return JobMeasure(
            [self._stage(graph, stage, loads[stage.index]) for stage in graph.stages], self._managers()
        )

    def _stage(self, graph: PhysicalGraph, stage: Stage, load: StageLoad) -> StageMeasure:
        channels = sum(graph.stage(edge.producer_stage).parallelism for edge in stage.inputs)
        table = self._job.routing_tables.get(stage.index)
        knows = stage.is_source and any(each.knows_waiting for each in load.subtasks)
        return StageMeasure(
            stage.index,
            stage.name,
            [self._subtask(stage, each, max(channels, 1)) for each in load.subtasks],
            load.producers,
            0 if table is None else table.max_parallelism,
            sum(each.partitions for each in load.subtasks),
            sum(each.behind + each.overdue for each in load.subtasks) if knows else None,
            sum(each.behind_more_per_s + each.overdue_more_per_s for each in load.subtasks),
            self._rescaler.why_fixed(stage),
            sum(each.queued_rows for each in load.subtasks),
            sum(each.queued_more_per_s for each in load.subtasks),
        )

    def _subtask(self, stage: Stage, load: SubtaskLoad, channels: int) -> SubtaskMeasure:
        name = self._job.machine.placement.get(SubtaskId(stage.index, load.subtask_index), "")
        return SubtaskMeasure(
            load.subtask_index,
            name,
            load.rows_in_per_s,
            load.rows_out_per_s,
            load.busy,
            load.blocked,
            load.processors,
            load.hot_group,
            load.hot_group_share,
            load.queue_depth / (self._channel_batches * channels),
            # One that has ended needs nothing.
            is_known=load.is_known or load.has_ended,
        )

    def _managers(self) -> list[TaskManagerMeasure]:
        job = self._job
        running = Counter(
            name
            for subtask, name in job.machine.placement.items()
            if not job.machine.statuses[subtask].is_terminal
        )
        avoided = self._rescaler.avoided
        found = []
        for member in self._task_managers.members():
            use = self._task_managers.use.get(member.name, MachineUse())
            free = 0 if member.name in avoided else max(member.quota - running[member.name], 0)
            found.append(
                TaskManagerMeasure(
                    member.name,
                    parse_address(member.name).host,
                    free,
                    running[member.name],
                    use.processors,
                    self._processors_used(member.name),
                    use.resident_bytes,
                    use.memory_bytes,
                )
            )
        return found

    def _processors_used(self, name: str) -> float | None:
        """Return what the process of a task manager used; None: it has not told for long enough."""
        known = [(at_s, uses[name].processor_us) for at_s, uses in self._uses if name in uses]
        if len(known) < 2 or known[-1][0] - known[0][0] < self._window_s / 2:
            return None
        (first_s, first_us), (last_s, last_us) = known[0], known[-1]
        return max(last_us - first_us, 0) / 1e6 / (last_s - first_s)


def _held_source(load: StageLoad, longer: StageLoad) -> StageLoad:
    """Return the load of a source with the rates of a longer time; other figures are of the window."""
    subtasks = [
        replace(
            each,
            rows_in_per_s=long.rows_in_per_s,
            rows_out_per_s=long.rows_out_per_s,
            behind_more_per_s=long.behind_more_per_s,
            overdue_more_per_s=long.overdue_more_per_s,
        )
        for each, long in zip(load.subtasks, longer.subtasks, strict=True)
    ]
    return replace(load, subtasks=subtasks)
