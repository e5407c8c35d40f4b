"""Takes over a job that an earlier control plane left running, once its task managers are back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import job_at
from control_plane.ports import Background, Connect, TellJob
from control_plane.record.job_record import JobRecord
from weir.clock import Clock, monotonic_ms
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job import job_machine, takeover
from weir.protocol.job.job_model import Assignment
from weir.protocol.job.takeover import Next
from weir.rpc import control_pb2

log = logging.getLogger("control_plane")

#: A task manager that is missing is asked this often whether it lives.
_ASK_AGAIN_S = 0.2


class Checkpoints(Protocol):
    """The part of the checkpoints that a take-over uses."""

    @property
    def latest(self) -> RestorePoint | None:
        """The checkpoint with which a restart begins; None: with nothing."""

    def request(self) -> object:
        """Make a checkpoint now."""


class Takeover:
    """The takeover of a job; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        left: JobRecord | None,
        clock: Clock,
        background: Background,
        checkpoints: Checkpoints,
        *,
        connect: Connect,
        tell_job: TellJob,
        begin_generation: Callable[[int, Manifest | None], None],
        let_begin: Callable[[tuple[Assignment, ...]], Coroutine[Any, Any, None]],
    ) -> None:
        """Wait for nobody yet.

        Args:
            job: the job.
            left: the job to take over, as it was; None: nothing was left running.
            clock: measures how long it waits.
            background: waits.
            checkpoints: of the job.
            connect: makes the connection to a task manager that has not come back.
            tell_job: takes in that the job goes on.
            begin_generation: deploys the job anew.
            let_begin: tells the task managers of subtasks that the job has begun; harmless to those that know.
        """
        self._job = job
        self._left = left
        self._clock = clock
        self._background = background
        self._connect = connect
        self._checkpoints = checkpoints
        self._tell_job = tell_job
        self._begin_generation = begin_generation
        self._let_begin = let_begin
        self._back: set[str] = set()
        #: Of this job, that a task manager has run.
        self._highest_generation = 0
        #: Whether the job's task managers are being waited for.
        self.is_waiting = left is not None
        #: Whether task managers that run nothing may still have to register here, too.
        self.is_settling = left is not None

    def start(self, lease_timeout_ms: int) -> None:
        """Begin to wait for the job's task managers; called when the servers run."""
        if self._left is not None:
            log.info("taking over job %s, generation %d", self._left.job_id, self._left.generation)
            self._background.spawn(self._wait(self._left, lease_timeout_ms))

    def registered(self, request: control_pb2.RegisterRequest) -> bool:
        """A task manager has come; returns whether what it runs goes on."""
        identity = self._job.identity
        if request.job_id == identity.job_id:
            # The earlier control plane may have died before its record was written.
            self._highest_generation = max(self._highest_generation, request.generation)
        fits = request.job_id == identity.job_id and request.generation == identity.generation
        if self._left is not None and self.is_waiting:
            fits = fits and self._is_the_same(self._left, request.address, request.incarnation)
        if not fits:
            self._back.discard(request.address)
            return False
        # Without one that was left: the reply to its registration was lost, and it has been told to run this since.
        if self._left is not None and self.is_waiting:
            self._back.add(request.address)
            if self._left.is_steady and not self._missing(self._left):
                self.is_waiting = False
                log.info("all task managers are back: the job goes on")
                self._tell_job(job_machine.TakeOver(self._left.placement))
                # The earlier control plane may have died before it had told all of them.
                assignments = (Assignment(subtask, name) for subtask, name in self._left.placement.items())
                self._background.spawn(self._let_begin(tuple(assignments)))
                # Sources may hold for a stop that the earlier control plane began; another checkpoint ends that.
                self._checkpoints.request()
        return True

    def lost(self, name: str) -> None:
        """The lease of a task manager has ended: if it is waited for, it has to come back again."""
        self._back.discard(name)

    @staticmethod
    def _is_the_same(left: JobRecord, address: str, incarnation: str) -> bool:
        """Whether it is the process that had subtasks: another one at its address may have a part of the job, too."""
        return left.incarnations.get(address, incarnation) == incarnation

    def _missing(self, left: JobRecord) -> set[str]:
        return set(left.placement.values()) - self._back

    async def _wait(self, left: JobRecord, lease_ms: int) -> None:
        """Wait until all task managers are back (:meth:`registered`), or the job starts again without some of them."""
        begun_ms = monotonic_ms(self._clock)
        # It sleeps as long as nothing but a registration changes the decision.
        await self._background.sleep(takeover.PATIENCE_LEASES * lease_ms / 1e3)
        self.is_settling = False
        while self.is_waiting:
            waited_ms = monotonic_ms(self._clock) - begun_ms
            choice = takeover.decide(self._missing(left), waited_ms, lease_ms, is_steady=left.is_steady)
            if choice is Next.ASK:
                living = await self._living(left)
                choice = takeover.decide(
                    self._missing(left), waited_ms, lease_ms, is_steady=left.is_steady, living=living
                )
            if choice is Next.RESTART and self.is_waiting:
                self._restart(left)
                return
            await self._background.sleep(_ASK_AGAIN_S)

    async def _living(self, left: JobRecord) -> set[str]:
        """Task managers that have not come back, but answer and say that the job runs on them."""
        missing = sorted(self._missing(left))
        answers = await asyncio.gather(*(job_at(self._connect, address) for address in missing))
        return {
            address
            for address, job in zip(missing, answers, strict=True)
            if job is not None
            and job[:2] == (left.job_id, left.generation)
            and self._is_the_same(left, address, job[2])
        }

    def _restart(self, left: JobRecord) -> None:
        self.is_waiting = False
        missing = sorted(self._missing(left))
        reason = f"{', '.join(missing)} did not come back" if missing else "a rescale was under way"
        latest = self._checkpoints.latest
        log.warning("the job starts again from its latest checkpoint: %s", reason)
        # As at every restart, it does not wait for more task managers than it needs (min_task_managers).
        self._job.restarts += 1
        self._begin_generation(
            max(left.generation, self._highest_generation) + 1, None if latest is None else latest.manifest
        )
