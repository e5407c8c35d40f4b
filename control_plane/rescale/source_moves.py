"""Gives sources other subtasks, or other places: a checkpoint after which nothing is read, then a new deployment."""

from __future__ import annotations

import logging
from collections.abc import Callable

from control_plane.job.running_job import RunningJob
from control_plane.ports import Background, Record
from weir.clock import Clock, wall_ms
from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord, CheckpointRefusal, CheckpointState
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.rescale.rescale_model import RescalePhase
from weir.protocol.rescale.rescale_plan import RefusalKind, RescalePlan, RescaleRefusal
from weir.protocol.rescale.rescale_source import SourceRescaleMachine

log = logging.getLogger("control_plane")

_POLL_S = 0.02


class SourceMoves:
    """The moves of a job's sources; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        rescales: RescaleLog,
        clock: Clock,
        background: Background,
        record: Record,
        request_checkpoint: Callable[[], CheckpointRecord | CheckpointRefusal],
    ) -> None:
        """Nothing moves yet.

        Args:
            job: the job.
            rescales: all rescales; this object adds to them.
            clock: wall clock.
            background: waits.
            record: of the job.
            request_checkpoint: asks for one after which the job is deployed anew, or returns why not.
        """
        self._job = job
        self._rescales = rescales
        self._clock = clock
        self._background = background
        self._record = record
        self._request_checkpoint = request_checkpoint
        #: What moves, the checkpoint for it, and the deployment in which it began.
        self._moving: tuple[SourceRescaleMachine, CheckpointRecord, int] | None = None

    def begin(self, plan: RescalePlan, name: str) -> SourceRescaleMachine | RescaleRefusal:
        """Ask for the checkpoint; ``name``: of the stage, for the refusal."""
        made = self._request_checkpoint()
        if isinstance(made, CheckpointRefusal):
            return RescaleRefusal(
                RefusalKind.SOURCE,
                f"stage {plan.stage_index} ({name}) is a source, which moves by a checkpoint: {made.message}",
            )
        rescale = self._rescales.add_of_source(plan, wall_ms(self._clock))
        if isinstance(rescale, RescaleRefusal):
            return rescale
        log.info(
            "rescale %d of stage %d, a source: %s -> %s, from checkpoint %d",
            *(rescale.rescale_id, plan.stage_index, list(plan.before), list(plan.after), made.checkpoint_id),
        )
        rescale.start(wall_ms(self._clock))
        self._moving = (rescale, made, self._job.identity.generation)
        self._record.save()
        self._background.spawn(self._follow(rescale))
        return rescale

    def look(self) -> None:
        """Look how far it is; called also before every new deployment, which has the new subtasks if it may."""
        if self._moving is None:
            return
        rescale, made, generation = self._moving
        job, now_ms = self._job, wall_ms(self._clock)
        if rescale.phase is RescalePhase.CHECKPOINTING and made.state.is_final:
            if made.state is not CheckpointState.COMPLETE:
                rescale.taken_back(made.cause, now_ms)
            elif job.identity.generation != generation:
                rescale.taken_back("the job started again in this moment", now_ms)
            else:
                job.moved_sources[rescale.plan.stage_index] = rescale.plan.after
                rescale.checkpoint_made(now_ms)
        if rescale.phase is RescalePhase.REDEPLOYING:
            if job.state.is_final:
                rescale.job_ended(job.machine.cause or job.state.value, now_ms)
            elif job.state is JobState.RUNNING and job.identity.generation > generation:
                rescale.job_runs(now_ms)
        if rescale.phase.is_final:
            self._moving = None
            suffix = f": {rescale.cause}" if rescale.cause else ""
            log.info("rescale %d ended, %s%s", rescale.rescale_id, rescale.phase.value.lower(), suffix)
            self._record.save()

    async def _follow(self, rescale: SourceRescaleMachine) -> None:
        while not rescale.phase.is_final:
            self.look()
            if not rescale.phase.is_final:
                await self._background.sleep(_POLL_S)
