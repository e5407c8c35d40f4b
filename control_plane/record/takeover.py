"""Takes over a job that an earlier control plane left running, and keeps the record that the next one needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from control_plane.record.job_record import JobRecord
from weir.errors import WeirError
from weir.protocol import job as job_machine
from weir.protocol.job import JobState
from weir.protocol.rescale_model import RescalePhase
from weir.rpc import control_pb2

if TYPE_CHECKING:
    from control_plane.job.coordinator import Coordinator

log = logging.getLogger("control_plane")

#: Task managers have so many lease times to come back before the job starts again from its latest checkpoint.
_PATIENCE_LEASES = 2
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
            self._coordinator.spawn(self._give_up_later(_PATIENCE_LEASES * lease_timeout_ms / 1e3))

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
            if self._left.is_steady and set(self._left.placement.values()) <= self._back:
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
            rescales=tuple(reversed(coordinator.rescaler.log.to_list()[:_RESCALES_MAX])),
        )
        self._unsaved = record.to_bytes()
        if self._saver is None or self._saver.done():
            self._saver = asyncio.create_task(self._save_all())

    async def saved(self) -> None:
        """Return when what is to be kept has been written."""
        if self._saver is not None:
            await self._saver

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

    async def _give_up_later(self, patience_s: float) -> None:
        await asyncio.sleep(patience_s)
        if not self.is_waiting or self._left is None:
            return
        self.is_waiting = False
        missing = sorted(set(self._left.placement.values()) - self._back)
        reason = f"{', '.join(missing)} did not come back" if missing else "a rescale was under way"
        latest = self._coordinator.checkpointer.latest
        log.warning("the job starts again from its latest checkpoint: %s", reason)
        # As at every restart, it does not wait for more task managers than it needs (min_task_managers).
        self._coordinator.recovery.restarts += 1
        self._coordinator.begin_generation(
            max(self._left.generation, self._highest_generation) + 1,
            None if latest is None else latest.manifest,
        )
