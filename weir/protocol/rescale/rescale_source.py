"""The rescale of a source: splits move between a checkpoint and the deployment after it, while nothing is read. Pure.

Positions are in the checkpoint, with the splits of all subtasks, and the next deployment shares them among the subtasks
that there are then. So nothing of a split is read twice or passed over, and its watermark goes on where it was. Nothing
is read between the barrier and the new deployment, and sinks deliver what the checkpoint covers before it: no sink sees
a row twice, whatever it guarantees after failures.
"""

from __future__ import annotations

from weir.protocol.rescale.rescale_model import (
    JobStopped,
    RescaleAction,
    RescaleEnded,
    RescaleEvent,
    RescalePhase,
)
from weir.protocol.rescale.rescale_phases import RescalePhases


class SourceRescaleMachine(RescalePhases):
    """A rescale of a source; used as ``RescaleMachine`` is. Not safe for use by several threads at once.

    The caller asks for a checkpoint after which sources read nothing, and tells what becomes of it and of the job.
    """

    def start(self, now_ms: int) -> None:
        """The checkpoint has been asked for."""
        self._enter(RescalePhase.CHECKPOINTING, now_ms)

    def checkpoint_made(self, now_ms: int) -> None:
        """The rescale is complete: the next deployment has the new subtasks, whatever leads to it."""
        self._enter(RescalePhase.REDEPLOYING, now_ms)

    def taken_back(self, cause: str, now_ms: int) -> None:
        """There is no checkpoint: the source goes on as it was."""
        self._end(RescalePhase.ABORTED, cause, now_ms)

    def job_runs(self, now_ms: int) -> None:
        """The job runs with the new subtasks."""
        self._enter(RescalePhase.COMPLETE, now_ms)

    def job_ended(self, cause: str, now_ms: int) -> None:
        """The job came to its end meanwhile."""
        self._end(RescalePhase.FAILED, cause, now_ms)

    def handle(self, event: RescaleEvent, now_ms: int) -> list[RescaleAction]:
        """What befalls subtasks is of no consequence, as all are deployed anew; the end of the job is."""
        if isinstance(event, JobStopped) and event.finished and not self._phase.is_final:
            self._end(RescalePhase.ABORTED, "the source has come to the end of its stream", now_ms)
            return [RescaleEnded(self._phase, self._cause)]
        return []

    def to_dict(self) -> dict[str, object]:
        """JSON-able: what ``GET /rescales/ID`` shows."""
        return self._facts()

    def _end(self, phase: RescalePhase, cause: str, now_ms: int) -> None:
        self._enter(phase, now_ms)
        self._cause = cause
