"""The rescales of a job: at most one runs, the latest ones are remembered. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.protocol.rescale.rescale_coordinator import RescaleMachine
from weir.protocol.rescale.rescale_model import RescaleAction, RescaleEvent, RescalePhase
from weir.protocol.rescale.rescale_plan import RefusalKind, RescalePlan, RescaleRefusal
from weir.protocol.rescale.rescale_source import SourceRescaleMachine
from weir.subtask_names import NameOf, numbered

#: Rescales that are remembered at most.
RESCALES_MAX = 64


@dataclass(frozen=True)
class StageNumbers:
    """What rescales of a stage have used, those that were taken back included."""

    #: One more than the highest subtask index: files and late reports of a subtask that is gone keep its index.
    next_index: int = 0
    #: Highest version of a plan: late orders keep it.
    last_version: int = 0


_NONE_USED = StageNumbers()


#: Of a stage with inputs, or of a source.
AnyRescale = RescaleMachine | SourceRescaleMachine


class RescaleLog:
    """Gives rescales their ids, 1, 2, 3 and so on, and reports their way to the right one."""

    def __init__(
        self, earlier: Iterable[Mapping[str, object]] = (), used: Mapping[int, StageNumbers] | None = None
    ) -> None:
        """Go on after what another process led.

        Args:
            earlier: reports (:meth:`to_list`) of its rescales, in any order; ids go on.
            used: numbers that it used (:attr:`used`).
        """
        self._rescales: dict[int, AnyRescale] = {}
        self._earlier = {int(str(report["id"])): _ended(report) for report in earlier}
        self._last_id = max(self._earlier, default=0)
        #: What no further rescale may use again, by stage.
        self.used: dict[int, StageNumbers] = dict(used or {})

    @property
    def current(self) -> AnyRescale | None:
        """The rescale that runs."""
        latest = self._rescales.get(self._last_id)
        return None if latest is None or latest.phase.is_final else latest

    def last_version(self, stage_index: int) -> int:
        """Highest version that a rescale of this stage had, for ``plan_rescale``; 0 before the first."""
        return self.used.get(stage_index, _NONE_USED).last_version

    def next_index(self, stage_index: int) -> int:
        """Return from which subtask index on no rescale of this stage gave one to a subtask, taken back or not."""
        return self.used.get(stage_index, _NONE_USED).next_index

    def busy(self) -> RescaleRefusal | None:
        """The refusal of a further request while a rescale runs."""
        current = self.current
        if current is None:
            return None
        return RescaleRefusal(
            RefusalKind.BUSY,
            f"rescale {current.rescale_id} of stage {current.plan.stage_index} is in phase "
            f"{current.phase.value}; ask again when it has ended (/rescales/{current.rescale_id})",
        )

    def add(
        self, plan: RescalePlan, now_ms: int, *, migrates: bool, name_of: NameOf = numbered
    ) -> tuple[RescaleMachine, list[RescaleAction]] | RescaleRefusal:
        """Start a rescale; returns its machine and its first actions, or the refusal while another one runs.

        Raises:
            ValueError: the plan's version was used before; it was not made with ``last_version``.
        """
        busy = self.busy()
        if busy is not None:
            return busy
        self._reserve(plan)
        machine = RescaleMachine(self._last_id, plan, now_ms, migrates=migrates, name_of=name_of)
        self._rescales[self._last_id] = machine
        return machine, machine.start()

    def add_of_source(self, plan: RescalePlan, now_ms: int) -> SourceRescaleMachine | RescaleRefusal:
        """Start a rescale of a source, or refuse it while another one runs; as :meth:`add`."""
        busy = self.busy()
        if busy is not None:
            return busy
        self._reserve(plan)
        machine = SourceRescaleMachine(self._last_id, plan, now_ms)
        self._rescales[self._last_id] = machine
        return machine

    def _reserve(self, plan: RescalePlan) -> None:
        if plan.version <= self.last_version(plan.stage_index):
            raise ValueError(f"stage {plan.stage_index}: version {plan.version} was used before")
        highest = max(*plan.before, *plan.after, self.next_index(plan.stage_index) - 1)
        self.used[plan.stage_index] = StageNumbers(highest + 1, plan.version)
        self._last_id += 1
        self._rescales.pop(self._last_id - RESCALES_MAX, None)
        self._earlier.pop(self._last_id - RESCALES_MAX, None)

    def handle(self, rescale_id: int, event: RescaleEvent, now_ms: int) -> list[RescaleAction]:
        """Pass a report on to its rescale; one about a rescale that is over has no effect.

        Raises:
            InvalidTransitionError: the event cannot happen in the rescale's phase. Nothing has changed.
        """
        current = self.current
        if current is None or current.rescale_id != rescale_id:
            return []
        return current.handle(event, now_ms)

    def get(self, rescale_id: int) -> AnyRescale | None:
        """The rescale of that id, if this process led it and it is remembered."""
        return self._rescales.get(rescale_id)

    def report(self, rescale_id: int) -> Mapping[str, object] | None:
        """The JSON-able report of the rescale of that id, if it is remembered."""
        rescale = self._rescales.get(rescale_id)
        return self._earlier.get(rescale_id) if rescale is None else rescale.to_dict()

    def to_list(self) -> list[Mapping[str, object]]:
        """JSON-able reports of the remembered rescales, latest first."""
        ids = sorted([*self._earlier, *self._rescales], reverse=True)
        return [report for rescale_id in ids if (report := self.report(rescale_id)) is not None]


def _ended(report: Mapping[str, object]) -> Mapping[str, object]:
    """A report of another process, which cannot go on with its rescale."""
    phase = RescalePhase(str(report["phase"]))
    if phase.is_final:
        return report
    cause = f"the control plane that led it ended while it was in phase {phase.value}"
    return {**report, "phase": RescalePhase.FAILED.value, "cause": cause}
