"""Where a rescale is: what the machines of both kinds of rescales share. Pure."""

from __future__ import annotations

from weir.errors import InvalidTransitionError
from weir.protocol.rescale.rescale_model import RESCALE_TRANSITIONS, RescalePhase
from weir.protocol.rescale.rescale_plan import RescalePlan


class RescalePhases:
    """Base of the machines: the phase, since when, and why it is not complete.

    Args:
        rescale_id: number of the rescale.
        plan: what is to be done.
        now_ms: when it begins.
    """

    def __init__(self, rescale_id: int, plan: RescalePlan, now_ms: int) -> None:
        self.rescale_id = rescale_id
        self.plan = plan
        self._phase = RescalePhase.PLANNING
        self._cause = ""
        self._phase_times_ms = {self._phase: now_ms}

    @property
    def phase(self) -> RescalePhase:
        """Where the rescale is."""
        return self._phase

    @property
    def cause(self) -> str:
        """Why it is not COMPLETE; one line, empty if nothing is wrong."""
        return self._cause

    def _enter(self, target: RescalePhase, now_ms: int) -> None:
        """Go to another phase.

        Raises:
            InvalidTransitionError: there is no way from this one to it.
        """
        if target not in RESCALE_TRANSITIONS[self._phase]:
            raise self._invalid(f"rescale {self.rescale_id}: {self._phase.value} -> {target.value}")
        self._phase = target
        self._phase_times_ms[target] = now_ms

    def _invalid(self, what: str) -> InvalidTransitionError:
        return InvalidTransitionError(what)

    def _facts(
        self,
        *,
        groups: int = 0,
        owned: int = 0,
        migrated: int = 0,
        bytes_moved: int = 0,
        groups_relinked: int = 0,
        bytes_sent: int = 0,
    ) -> dict[str, object]:
        """JSON-able: what ``GET /rescales/ID`` shows."""
        return {
            "id": self.rescale_id,
            "stage": self.plan.stage_index,
            "from": len(self.plan.before),
            "to": len(self.plan.after),
            "subtasks_before": list(self.plan.before),
            "subtasks_after": list(self.plan.after),
            "phase": self._phase.value,
            "cause": self._cause,
            "groups_total": groups,
            "groups_owned": owned,
            "groups_migrated": migrated,
            "bytes_moved": bytes_moved,
            "groups_relinked": groups_relinked,
            "bytes_sent": bytes_sent,
            "started_ms": self._phase_times_ms[RescalePhase.PLANNING],
            "phases": {phase.value: time_ms for phase, time_ms in self._phase_times_ms.items()},
        }
