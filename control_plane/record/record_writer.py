"""Keeps the record with which another control plane takes over: writes it whenever the job changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from control_plane.job.running_job import RunningJob
from control_plane.ports import Background
from control_plane.record.job_record import JobRecord
from weir.errors import WeirError
from weir.protocol.job import JobState
from weir.protocol.rescale_log import RescaleLog
from weir.protocol.rescale_model import RescalePhase

log = logging.getLogger("control_plane")

#: Rescales that the record keeps, the latest ones.
_RESCALES_MAX = 16


class RecordWriter:
    """One per job; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        rescales: RescaleLog,
        background: Background,
        save: Callable[[bytes], None] | None,
    ) -> None:
        """``save``: keeps the record, and blocks meanwhile; None: there is none."""
        self._job = job
        self._rescales = rescales
        self._background = background
        self._save = save
        self._unsaved: bytes | None = None
        #: Set while nothing is being written.
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

    async def saved(self) -> None:
        """Return when what is to be kept has been written."""
        await self._idle.wait()

    def _record(self) -> JobRecord:
        job, rescale = self._job, self._rescales.current
        return JobRecord(
            job.identity.job_id,
            job.identity.fingerprint,
            job.identity.generation,
            job.started_us or 0,
            is_over=job.state.is_final,
            has_failed=job.state is JobState.FAILED,
            is_steady=job.state in (JobState.RUNNING, JobState.FINISHING)
            and (rescale is None or rescale.phase is RescalePhase.MIGRATING)
            and not job.locations.has_remote(),
            stages={stage.index: tuple(stage.subtask_indices) for stage in job.graph.stages},
            routing=dict(job.routing_tables),
            placement=dict(job.machine.placement),
            parameters=job.parameters,
            restarts=job.restarts,
            strategy=job.strategy,
            rescales=tuple(reversed(self._rescales.to_list()[:_RESCALES_MAX])),
        )

    async def _save_all(self, save: Callable[[bytes], None]) -> None:
        """Write the latest record, again and again while there is a newer one."""
        try:
            while self._unsaved is not None:
                data, self._unsaved = self._unsaved, None
                try:
                    await self._background.in_thread(partial(save, data))
                except WeirError as error:
                    # The job goes on; what is lost is that another control plane could take it over as it is.
                    log.error("%s", error)
        finally:
            self._idle.set()
