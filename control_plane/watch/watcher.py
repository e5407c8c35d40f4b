"""Looks at the job once a second: what loads it had of late, the headline, and what is kept for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background
from control_plane.watch.history import History, KeptHistory, Mark
from control_plane.watch.windows import LoadWindows
from weir.clock import Clock, wall_ms
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.load import NOTHING_MEASURED, JobLoad
from weir.protocol.rescale.rescale_log import RescaleLog

LOOK_S = 1.0


class Watcher:
    """Eyes of a control plane, which has one of them; used in the event loop. No other part depends on it."""

    def __init__(
        self,
        job: RunningJob,
        clock: Clock,
        background: Background,
        task_managers: TaskManagers,
        rescales: RescaleLog,
    ) -> None:
        self._job, self._clock, self._background = job, clock, background
        self._task_managers, self._rescales = task_managers, rescales
        self._windows = LoadWindows()
        self.history = History()
        self._load = NOTHING_MEASURED
        self._generation = job.identity.generation
        self._marked_rescales = 0
        self._was_over = False
        #: Called after each look.
        self.listeners: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await self._background.sleep(LOOK_S)

    def look(self) -> None:
        """Take in what subtasks have reported, and tell those who listen."""
        job, now_ms = self._job, wall_ms(self._clock)
        self._mark(now_ms)
        if not self._was_over:
            self._windows.take(self._clock.monotonic_s(), job.identity.generation, job.reports)
            self._load = self._measure(now_ms)
            self.history.add(now_ms, self._load)
        # What was last measured of a job that is over stays.
        self._was_over = job.machine.state.is_final
        for listener in list(self.listeners):
            listener()

    @property
    def load(self) -> JobLoad:
        """Loads as of the last look; the state as it is now."""
        job = self._job
        machine = job.machine
        waits = job.waiting_for if machine.state is JobState.WAITING_FOR_TASK_MANAGERS else ""
        return replace(
            self._load,
            state=machine.state.value,
            cause=waits or machine.cause or (machine.restart_cause if not machine.state.is_final else ""),
            waits_for=self._task_managers.all_waits(),
            rows_in=self._rows_in(),
        )

    def _measure(self, now_ms: int) -> JobLoad:
        stages = self._windows.stages(self._job.graph, now_ms)
        return JobLoad(
            self._job.machine.state.value,
            stages,
            rows_per_s=sum(stage.rows_in_per_s for stage in stages if not stage.producers),
            latency_p50_ms=self._windows.latency_ms(0.5),
            latency_p99_ms=self._windows.latency_ms(0.99),
            is_measured=self._windows.is_measured,
        )

    def _rows_in(self) -> int:
        job = self._job
        reports = [*job.reports.values(), *job.retired_reports]
        read = [each.records_in for each in reports if job.graph.stage(each.subtask.stage_index).is_source]
        return job.events_before.events_in + sum(read)

    def _mark(self, now_ms: int) -> None:
        job = self._job
        if job.identity.generation != self._generation:
            self._generation = job.identity.generation
            self._add_mark(now_ms, "restart", job.machine.restart_cause or "deployed anew")
        for item in reversed(self._rescales.to_list()):
            number = int(str(item["id"]))
            if number > self._marked_rescales:
                self._marked_rescales = number
                what = f"stage {item['stage']} from {item['from']} to {item['to']} subtasks"
                self._add_mark(int(str(item["started_ms"])), "rescale", what)

    def _add_mark(self, time_ms: int, kind: str, text: str) -> None:
        mark = Mark(time_ms, kind, text)
        # The record tells of rescales that an earlier process has marked.
        if mark not in self.history.marks:
            self.history.marks.append(mark)

    def resume(self, kept: KeptHistory) -> None:
        """Go on with the history of an earlier control plane process; called before the first look."""
        now_ms = wall_ms(self._clock)
        self.history.resume(kept, now_ms)
        self._add_mark(now_ms, "takeover", "another process of the control plane took over")
