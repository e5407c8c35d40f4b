"""Takes over a job that an earlier control plane left running, and keeps the record that the next one needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from control_plane.link.clients import job_at
from control_plane.record.job_record import JobRecord
from weir.errors import WeirError
from weir.protocol import job as job_machine
from weir.protocol import takeover
from weir.protocol.job import JobState
from weir.protocol.rescale_model import RescalePhase
from weir.protocol.takeover import Next
from weir.rpc import control_pb2

if TYPE_CHECKING:
    from control_plane.job.coordinator import Coordinator

log = logging.getLogger("control_plane")

#: A task manager that is missing is asked this often whether it lives.
_ASK_AGAIN_S = 0.2
#: Rescales that the record keeps, the latest ones.
_RESCALES_MAX = 16


class Takeover:
    """One per job; all methods are called in the event loop."""

    def __init__(
        self, coordinator: Coordinator, left: JobRecord | None, save: Callable[[bytes], None] | None
    ) -> None:
        """``left``: the job to take over; ``save``: keeps the record."""
        self._coordinator = coordinator
        self._left = left
        self._save = save
        self._unsaved: bytes | None = None
        self._saver: asyncio.Task[None] | None = None
        self._back: set[str] = set()
        #: Of this job, that a task manager has run.
        self._highest_generation = 0
        #: Whether the job's task managers are being waited for.
        self.is_waiting = left is not None

    def start(self, lease_timeout_ms: int) -> None:
        """Begin to wait for the job's task managers; called when the servers run."""
        if self._left is not None:
            log.info("taking over job %s, generation %d", self._left.job_id, self._left.generation)
            self._coordinator.spawn(self._wait(self._left, lease_timeout_ms))

    def registered(self, request: control_pb2.RegisterRequest) -> bool:
        """A task manager has come; gives whether what it runs goes on."""
        coordinator = self._coordinator
        if request.job_id == coordinator.identity.job_id:
            # The earlier control plane may have died before its record was written.
            self._highest_generation = max(self._highest_generation, request.generation)
        fits = (
            request.job_id == coordinator.identity.job_id
            and request.generation == coordinator.identity.generation
        )
        if self._left is None or not fits:
            return False
        if self.is_waiting:
            self._back.add(request.address)
            if self._left.is_steady and not self._missing(self._left):
                self.is_waiting = False
                log.info("all task managers are back: the job goes on")
                coordinator.handle(job_machine.TakeOver(self._left.placement))
                # Sources may hold for a stop that the earlier control plane began; another checkpoint ends that.
                coordinator.checkpointer.request()
        return True

    def save(self) -> None:
        """The job has changed: keep what the next control plane has to know."""
        if self._save is None:
            return
        coordinator = self._coordinator
        machine = coordinator.machine
        rescale = coordinator.rescaler.log.current
        record = JobRecord(
            coordinator.identity.job_id,
            coordinator.identity.fingerprint,
            coordinator.identity.generation,
            coordinator.started_us or 0,
            is_over=machine.state.is_final,
            has_failed=machine.state is JobState.FAILED,
            is_steady=machine.state in (JobState.RUNNING, JobState.FINISHING)
            and (rescale is None or rescale.phase is RescalePhase.MIGRATING)
            and not coordinator.locations.has_remote(),
            stages={stage.index: tuple(stage.subtask_indices) for stage in coordinator.graph.stages},
            routing=dict(coordinator.routing_tables),
            placement=dict(machine.placement),
            parameters=coordinator.parameters,
            restarts=coordinator.recovery.restarts,
            strategy=coordinator.strategy,
            rescales=tuple(reversed(coordinator.rescaler.log.to_list()[:_RESCALES_MAX])),
        )
        self._unsaved = record.to_bytes()
        if self._saver is None or self._saver.done():
            self._saver = asyncio.create_task(self._save_all())

    async def saved(self) -> None:
        """Return when what is to be kept has been written."""
        if self._saver is not None:
            # Whoever waits may give up; the record is written.
            await asyncio.shield(self._saver)

    async def _save_all(self) -> None:
        """Write the latest record, again and again while there is a newer one."""
        assert self._save is not None
        while self._unsaved is not None:
            data, self._unsaved = self._unsaved, None
            try:
                await asyncio.to_thread(self._save, data)
            except WeirError as error:
                # The job goes on; what is lost is that another control plane could take it over as it is.
                log.error("%s", error)

    def _missing(self, left: JobRecord) -> set[str]:
        return set(left.placement.values()) - self._back

    async def _wait(self, left: JobRecord, lease_ms: int) -> None:
        """Until all task managers are back (:meth:`registered`), or the job starts again without those that are not."""
        coordinator = self._coordinator
        begun_ms = coordinator.now_ms()
        # It sleeps as long as nothing but a registration changes the decision.
        await asyncio.sleep(takeover.PATIENCE_LEASES * lease_ms / 1e3)
        while self.is_waiting:
            waited_ms = coordinator.now_ms() - begun_ms
            choice = takeover.decide(self._missing(left), waited_ms, lease_ms, is_steady=left.is_steady)
            if choice is Next.ASK:
                living = await self._living(left)
                choice = takeover.decide(
                    self._missing(left), waited_ms, lease_ms, is_steady=left.is_steady, living=living
                )
            if choice is Next.RESTART and self.is_waiting:
                self._restart(left)
                return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _living(self, left: JobRecord) -> set[str]:
        """Task managers that have not come back, but answer and say that the job runs on them."""
        missing = sorted(self._missing(left))
        answers = await asyncio.gather(*(job_at(address) for address in missing))
        return {
            address
            for address, job in zip(missing, answers, strict=True)
            if job == (left.job_id, left.generation)
        }

    def _restart(self, left: JobRecord) -> None:
        self.is_waiting = False
        missing = sorted(self._missing(left))
        reason = f"{', '.join(missing)} did not come back" if missing else "a rescale was under way"
        latest = self._coordinator.checkpointer.latest
        log.warning("the job starts again from its latest checkpoint: %s", reason)
        # As at every restart, it does not wait for more task managers than it needs (min_task_managers).
        self._coordinator.recovery.restarts += 1
        self._coordinator.begin_generation(
            max(left.generation, self._highest_generation) + 1,
            None if latest is None else latest.manifest,
        )
