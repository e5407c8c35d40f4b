"""The loop that scales the running job by itself; ``weir.protocol.autoscale`` decides, docs/design/0017 says why."""

from __future__ import annotations

import logging
import re
from collections import Counter, deque
from dataclasses import dataclass

from control_plane.autoscale.hook import Hook, MissingSlots
from control_plane.autoscale.measuring import Measuring
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background
from control_plane.rescale.rescaler import Rescaler
from weir.clock import Clock, wall_ms
from weir.config import AutoscalerConfig, ControlPlaneConfig
from weir.protocol.autoscale.autoscaler import Autoscaler
from weir.protocol.autoscale.decision import Change, Decision
from weir.protocol.autoscale.settings import AutoscaleSettings, StageBounds
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_plan import RefusalKind, RescaleRefusal

log = logging.getLogger("control_plane")

_LOOK_S = 1.0
#: Decisions that ``/status`` remembers.
_DECISIONS_MAX = 20
#: The same words, but for their numbers, are logged once in so long.
_SAID_AGAIN_S = 60.0
_WORDS_MAX = 200
#: A change that cannot begin, because something else of the job is under way, is given up after so long.
_PENDING_S_MAX = 30.0
_NUMBER = re.compile(r"[0-9][0-9.,]*")


@dataclass(frozen=True, slots=True)
class Decided:
    """A change that was decided."""

    #: Wall clock, ms since the epoch.
    time_ms: int
    stage: int
    before: int
    after: int
    text: str


class Autoscaling:
    """Scaling of one job; used in the event loop."""

    def __init__(
        self,
        config: AutoscalerConfig,
        settings: AutoscaleSettings,
        job: RunningJob,
        clock: Clock,
        background: Background,
        task_managers: TaskManagers,
        rescaler: Rescaler,
        *,
        channel_batches: int,
        hook: Hook | None,
    ) -> None:
        """Nothing is measured yet; see ``Measuring`` for most arguments.

        Args:
            config: section ``autoscaler``.
            settings: what the policy needs of it.
            job: the job.
            clock: of this process.
            background: waits, and calls the hook.
            task_managers: that are there.
            rescaler: begins rescales.
            channel_batches: batches that an input channel takes.
            hook: starts task managers; None: nothing does.
        """
        #: Section ``autoscaler``.
        self.config = config
        self._job, self._clock, self._background = job, clock, background
        self._rescaler, self._hook = rescaler, hook
        self._autoscaler = Autoscaler(settings)
        self._measuring = Measuring(
            job, task_managers, rescaler, window_s=settings.window_s, channel_batches=channel_batches
        )
        self._pending: deque[Change] = deque()
        self._pending_since_s = 0.0
        #: What a change of the job is told by: deployment, and the latest rescale with its end.
        self._seen: tuple[object, ...] = ()
        self._hook_called_s = float("-inf")
        self._said: dict[str, float] = {}
        self._line = "waits for the first figures"
        #: The latest decisions, oldest first; with a dry run those that would have been carried out.
        self.decisions: deque[Decided] = deque(maxlen=_DECISIONS_MAX)
        #: Decisions so far, by direction: up, down.
        self.counts: Counter[str] = Counter()
        self.slots_missing = 0

    @property
    def is_enabled(self) -> bool:
        """Whether it looks at all; with a dry run it does."""
        return self.config.enabled or self.config.dry_run

    @property
    def is_dry_run(self) -> bool:
        """Whether it only says what it would do."""
        return self.config.dry_run

    @property
    def line(self) -> str:
        """What it does or would do, and why, or what it waits for; one line."""
        return f"dry run: {self._line}" if self.config.dry_run else self._line

    async def run(self) -> None:
        """Look once a second until cancelled; returns at once where it is off."""
        if self.is_enabled:
            names = [stage.name for stage in self._job.graph.stages]
            for step in self._autoscaler.settings.unknown_stages(names):
                known = ", ".join(names)
                log.warning(
                    "autoscaler.stages names %s, but no stage has such a step; there are %s", step, known
                )
        while self.is_enabled:
            self.look()
            await self._background.sleep(_LOOK_S)

    def look(self) -> None:
        """Measure, decide, and begin what was decided."""
        now_s = self._clock.monotonic_s()
        job, current = self._job, self._rescaler.log.current
        if job.state is not JobState.RUNNING:
            self._pending.clear()
            self._seen, self._line, self.slots_missing = (), f"waits: the job is {job.state.value}", 0
            return
        if current is not None:
            stage = current.plan.stage_index
            self._line = f"waits for rescale {current.rescale_id} of stage {stage} ({current.phase.value})"
            return
        if self._pending:
            self._begin_next(now_s)
            return
        reports = self._rescaler.log.to_list()[:1]
        seen = (job.identity.generation, *((item["id"], item["phase"]) for item in reports))
        if seen != self._seen:
            self._seen = seen
            self._measuring.clear()
            self._autoscaler.changed(now_s)
        self._measuring.take(now_s)
        decision = self._autoscaler.look(now_s, self._measuring.measure(wall_ms(self._clock)))
        self._take(now_s, decision)

    def _take(self, now_s: float, decision: Decision) -> None:
        self._line, self.slots_missing = decision.line, decision.slots_missing
        for remark in decision.remarks:
            self._say(now_s, remark)
        if decision.slots_missing:
            self._call_hook(now_s, decision)
        if self.config.dry_run:
            for change in decision.changes:
                if self._say(now_s, f"dry run: would scale {change.text}"):
                    self._note(change)
            return
        self._pending.extend(decision.changes)
        self._pending_since_s = now_s
        if self._pending:
            self._begin_next(now_s)

    def _begin_next(self, now_s: float) -> None:
        """Begin the first change that waits; the next one comes when its rescale is over."""
        change = self._pending[0]
        stage = self._job.graph.stage(change.stage)
        if stage.parallelism != change.before:
            # Somebody else has scaled it meanwhile.
            self._pending.popleft()
            return
        begun = self._rescaler.request(change.stage, change.after)
        if not isinstance(begun, RescaleRefusal):
            self._pending.popleft()
            self._pending_since_s = now_s
            self._autoscaler.carried_out(now_s, change)
            self._note(change)
            log.info("autoscaler: rescale %d scales %s", begun.rescale_id, change.text)
            return
        self._line = f"waits with {change.text}; {begun.message}"
        if begun.kind is not RefusalKind.BUSY or now_s - self._pending_since_s > _PENDING_S_MAX:
            log.warning("autoscaler: gives up %s; %s", change.text, begun.message)
            self._pending.clear()

    def _note(self, change: Change) -> None:
        self.counts["up" if change.is_growth else "down"] += 1
        text = f"{'would scale' if self.config.dry_run else 'scales'} {change.text}"
        now_ms = wall_ms(self._clock)
        self.decisions.append(Decided(now_ms, change.stage, change.before, change.after, text))

    def _say(self, now_s: float, text: str) -> bool:
        """Log a line, unless the same was said a moment ago; returns whether it was logged."""
        words = _NUMBER.sub("#", text)
        if now_s - self._said.get(words, float("-inf")) < _SAID_AGAIN_S:
            return False
        if len(self._said) >= _WORDS_MAX:
            self._said.clear()
        self._said[words] = now_s
        log.info("autoscaler: %s", text)
        return True

    def _call_hook(self, now_s: float, decision: Decision) -> None:
        hook = self._hook
        if hook is None or self.config.dry_run or now_s - self._hook_called_s < self.config.hook_pause_s:
            return
        self._hook_called_s = now_s
        missing = MissingSlots(self._job.identity.job_id, decision.slots_missing, decision.line)

        async def call() -> None:
            await self._background.in_thread(lambda: hook(missing))

        self._background.spawn(call())


def policy_settings(config: AutoscalerConfig, control_plane: ControlPlaneConfig) -> AutoscaleSettings:
    """What the policy needs of the configuration."""
    return AutoscaleSettings(
        target_utilisation=config.target_utilisation,
        utilisation_max=config.utilisation_max,
        bounds=StageBounds(config.subtasks_min, config.subtasks_max),
        stages={
            each.step: StageBounds(each.least, each.most, each.target_utilisation, each.is_scaled)
            for each in config.stage_settings
        },
        scales_sources=config.sources,
        window_s=config.window_s,
        cool_down_s=config.cool_down_s,
        catch_up_s=config.catch_up_s,
        scale_down_after_s=config.scale_down_after_s,
        look_ahead_s=config.look_ahead_s,
        growth_max=config.growth_max,
        scale_up_portion=control_plane.scale_up_portion,
        memory_share_max=config.memory_share_max,
    )
