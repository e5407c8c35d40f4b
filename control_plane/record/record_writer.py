"""Keeps the record with which another control plane takes over: writes it whenever the job changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from control_plane.job.running_job import RunningJob
from control_plane.ports import Background
from control_plane.record.job_record import JobRecord
from weir.errors import SupersededError, WeirError
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.rescale.rescale_model import RescalePhase

log = logging.getLogger("control_plane")

#: Rescales that the record keeps, the latest ones.
_RESCALES_MAX = 16
#: A record that could not be written is written again after so long.
_WRITE_AGAIN_S = 0.2


class Checkpoints(Protocol):
    """What the record needs of the checkpoints."""

    @property
    def latest_id(self) -> int | None:
        """The checkpoint that a restart begins with."""

    @property
    def is_anything_unsettled(self) -> bool:
        """Return whether a retired subtask has something to deliver that another control plane would not know of."""


class RecordWriter:
    """The writer of a job's record; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        rescales: RescaleLog,
        background: Background,
        checkpoints: Callable[[], Checkpoints],
        save: Callable[[bytes], None] | None,
        *,
        is_shared: bool,
        first_checkpoint_id: int,
        superseded: Callable[[], None],
        incarnations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Nothing is written yet.

        Args:
            job: the job.
            rescales: all rescales of the job.
            background: writes.
            checkpoints: returns the checkpoints of the job.
            save: keeps the record, and blocks meanwhile; None: there is none.
            is_shared: another control plane may come to lead while this one runs.
            first_checkpoint_id: the number at which checkpoints of this process begin.
            superseded: called when another control plane leads.
            incarnations: returns which process holds the lease of each task manager.
        """
        self._job = job
        self._rescales = rescales
        self._background = background
        self._checkpoints = checkpoints
        self._save = save
        self._is_shared = is_shared
        self._first_checkpoint_id = first_checkpoint_id
        self._superseded = superseded
        self._incarnations = incarnations
        self._unsaved: bytes | None = None
        self._written = b""
        #: The latest attempt to write was none in vain.
        self._is_written = True
        self._is_refused = False
        #: Whether this process has written one.
        self._has_begun = save is None
        #: Set while nothing is being written, and unless the record was refused.
        self._idle = asyncio.Event()
        self._idle.set()

    def save(self) -> None:
        """The job has changed: keep what the next control plane has to know."""
        if self._save is None:
            return
        self._unsaved = self._record().to_bytes()
        if self._idle.is_set():
            self._idle.clear()
            self._background.spawn(self._save_all(self._save))

    @property
    def has_begun(self) -> bool:
        """Return whether this process has written a record."""
        return self._has_begun

    async def saved(self) -> bool:
        """Wait until what is to be kept has been written, as ``ports.Record`` says."""
        await self._idle.wait()
        return self._is_written

    async def confirm(self) -> bool:
        """Write down which checkpoint counts; False: that is not certain. Does not return if another one leads.

        Where no other control plane can lead, the latest manifest in the store counts, and nothing is to be done.
        """
        if not self._is_shared:
            return True
        self.save()
        wanted = self._unsaved
        await self.saved()
        return wanted is None or self._written == wanted

    async def close(self) -> None:
        """Return when nothing is being written any more; called when the process ends."""
        if not self._is_refused:
            await self._idle.wait()

    def _record(self) -> JobRecord:
        job, rescale = self._job, self._rescales.current
        present = set(job.graph.subtasks())
        latest_id = self._checkpoints().latest_id
        # Without those of a rescale that was taken back, which may still have to end.
        placement = {s: place for s, place in job.machine.placement.items() if s in present}
        names, incarnations = set(placement.values()), self._incarnations()
        return JobRecord(
            job.identity.job_id,
            job.identity.fingerprint,
            job.identity.generation,
            job.started_us or 0,
            is_over=job.state.is_final,
            has_failed=job.state is JobState.FAILED,
            # What retired subtasks have still to deliver is known to this process only.
            is_steady=not self._checkpoints().is_anything_unsettled
            and job.state in (JobState.RUNNING, JobState.FINISHING)
            and (rescale is None or rescale.phase is RescalePhase.MIGRATING)
            and not job.locations.has_remote(),
            stages={stage.index: tuple(stage.subtask_indices) for stage in job.graph.stages},
            routing=dict(job.routing_tables),
            placement=placement,
            # Of one that is gone by now no process has the subtasks any more, whoever comes to its address.
            incarnations={name: incarnations.get(name, "") for name in sorted(names)},
            parameters=job.parameters,
            restarts=job.restarts,
            strategy=job.strategy,
            first_checkpoint_id=self._first_checkpoint_id,
            checkpoint_id=(latest_id or 0) if self._is_shared else None,
            rescales=tuple(reversed(self._rescales.to_list()[:_RESCALES_MAX])),
            used_by_rescales=dict(self._rescales.used),
            events_at_start=job.events_at_start,
            ended_as=job.state if job.state.is_final else None,
        )

    async def _save_all(self, save: Callable[[bytes], None]) -> None:
        """Write the latest record, again and again while there is a newer one."""
        try:
            while self._unsaved is not None:
                data, self._unsaved = self._unsaved, None
                try:
                    await self._background.in_thread(partial(save, data))
                    if not self._is_written:
                        log.info("the record of the job is written again")
                    self._written, self._is_written, self._has_begun = data, True, True
                except SupersededError as error:
                    # Whatever waits for the record must not happen: the job is the other one's.
                    log.error("%s", error)
                    self._is_refused = True
                    self._superseded()
                    return
                except WeirError as error:
                    # The job goes on, but a rescale must not begin: another control plane that takes the job over
                    # as it is on record must find it so, or start it again.
                    if self._is_written:
                        log.error("%s", error)
                        self._background.spawn(self._write_again())
                    self._is_written = False
        finally:
            if not self._is_refused:
                self._idle.set()

    async def _write_again(self) -> None:
        """Write until it could be done; whoever waits is told meanwhile that it could not."""
        while not (self._is_written or self._is_refused):
            await self._background.sleep(_WRITE_AGAIN_S)
            self.save()
            await self._idle.wait()
