"""Starts a failed job again from its latest checkpoint, or says that it must not: when, and what is waited for."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background, TellJob
from weir.clock import Clock, monotonic_ms
from weir.config import ControlPlaneConfig
from weir.errors import FailureKind
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job import job_machine
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.restart import GiveUp, PoisonWatch, RestartPolicy

log = logging.getLogger("control_plane")

_LOOK_AGAIN_S = 0.01
#: Of a source's position, for messages.
_POSITION_CHARACTERS_MAX = 300
#: A subtask that lost a peer may tell of it sooner than the peer tells why it failed: so long that is waited for.
_CAUSE_S_MAX = 0.3


class Checkpoints(Protocol):
    """The part of the checkpoints that restarts use."""

    @property
    def latest(self) -> RestorePoint | None:
        """The checkpoint with which a restart begins; None: with nothing."""

    @property
    def is_settled(self) -> bool:
        """Return whether no manifest is being written."""


def restart_policy(config: ControlPlaneConfig) -> RestartPolicy:
    """How often and when a job starts again."""
    return RestartPolicy(
        config.restart_attempts,
        config.restart_delay_ms,
        config.restart_delay_ms_max,
        config.restart_stable_ms,
        strict=config.strict,
    )


class Recovery:
    """The recovery of a job; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        policy: RestartPolicy,
        clock: Clock,
        background: Background,
        task_managers: TaskManagers,
        checkpoints: Checkpoints,
        *,
        drop_gone: Callable[[], Awaitable[None]],
        tell_job: TellJob,
        begin_generation: Callable[[int, Manifest | None], None],
    ) -> None:
        """Nothing has failed yet.

        Args:
            job: the job.
            config: section ``controlPlane``.
            policy: decides; others tell it of progress.
            clock: time of restarts.
            background: waits.
            task_managers: that are there.
            checkpoints: of the job.
            drop_gone: ends the leases of task managers at whose address nothing listens.
            tell_job: takes in that the job must not start again.
            begin_generation: deploys the job anew.
        """
        self.policy = policy
        self._poison = PoisonWatch(config.poison_attempts)
        self._job = job
        self._clock = clock
        self._background = background
        self._task_managers = task_managers
        self._checkpoints = checkpoints
        self._drop_gone = drop_gone
        self._tell_job = tell_job
        self._begin_generation = begin_generation

    @property
    def isolated_steps(self) -> set[str]:
        """Steps that raised at rows again and again: rows that make them raise are put aside."""
        return self._poison.isolated

    async def restart(self, failure: job_machine.Failure) -> None:
        """Ask the policy, wait, and let the job start again under a higher generation, or fail."""
        job = self._job
        if failure.is_planned:
            log.info("the job starts anew: %s", failure.cause)
            await self._begin()
            return
        if failure.is_secondary:
            failure = await self._first_cause()
            if job.state is not JobState.RESTARTING:
                return
        is_isolated = failure.step in self._poison.isolated
        decision = self.policy.decide(
            monotonic_ms(self._clock), failure.cause, failure.kind, is_isolated=is_isolated
        )
        if isinstance(decision, GiveUp):
            place = f"; {self._place()}" if decision.at_place else ""
            self._tell_job(job_machine.RestartRefused(decision.reason + place))
            return
        if self._poison.failed(failure.kind, failure.step):
            log.warning(
                "rows that make step %r raise go to the dead letters after this restart", failure.step
            )
        what = "outage, the job is held back: " if failure.kind is FailureKind.OUTAGE else ""
        log.warning(
            "%srestart %d of the job in %d ms: %s",
            what,
            decision.attempt,
            decision.delay_ms,
            failure.cause,
        )
        await self._begin(decision.delay_ms / 1e3)

    def _place(self) -> str:
        """Where the sources stood in the checkpoint from which the job started again and again."""
        sources = {stage.nodes[0].name for stage in self._job.graph.stages if stage.is_source}
        latest = self._checkpoints.latest
        if latest is None:
            return f"there is no checkpoint: {', '.join(sorted(sources))} read from the beginning"
        positions = [
            f"{name}: {json.dumps(position)[:_POSITION_CHARACTERS_MAX]}"
            for part in latest.manifest.parts
            for name, position in part.operators.items()
            if name in sources
        ]
        return f"in checkpoint {latest.manifest.checkpoint_id} sources stood at {', '.join(positions)}"

    async def _begin(self, delay_s: float = 0.0) -> None:
        """Wait, then begin the next generation from the latest checkpoint."""
        job = self._job
        job.preferred = dict(job.machine.placement)
        await self._background.sleep(delay_s)
        # A broken channel tells of a dead process long before its lease ends.
        await self._drop_gone()
        # A manifest that is being written may yet be what the job starts from.
        while not self._checkpoints.is_settled:
            await self._background.sleep(_LOOK_AGAIN_S)
        if job.state is not JobState.RESTARTING:
            return
        job.restarts += 1
        latest = self._checkpoints.latest
        manifest = None if latest is None else latest.manifest
        if manifest is None:
            log.warning("there is no checkpoint yet: the job starts from nothing")
        self._begin_generation(job.identity.generation + 1, manifest)

    async def _first_cause(self) -> job_machine.Failure:
        """Returns the failure that led to this one, if it becomes known within a moment; else this one."""
        job = self._job
        before = set(self._task_managers.clients)
        await self._drop_gone()
        waited_s = 0.0
        # A process that is gone tells nothing.
        while before <= self._task_managers.clients.keys() and waited_s < _CAUSE_S_MAX:
            machine = job.machine
            if not machine.failure.is_secondary or machine.state is not JobState.RESTARTING:
                break
            await self._background.sleep(_LOOK_AGAIN_S)
            waited_s += _LOOK_AGAIN_S
        return job.machine.failure
