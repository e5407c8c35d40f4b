"""The coordinator's part in a rescale: one explicit state machine per rescale, and the list of all of them.

Pure: the control plane's only thread for decisions calls :meth:`RescaleLog.handle` with every report, and
carries out the actions it returns, in order. Reports carry the id of their rescale, so that a late one of an
aborted rescale does not count for the next (docs/design/0001).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, get_args

from weir.errors import InvalidTransitionError
from weir.protocol.job.job_model import Assignment
from weir.protocol.rescale.rescale_model import (
    CancelNew,
    DeployNew,
    FailJob,
    GroupsMigrated,
    GroupsOwned,
    GroupsSent,
    InstallTable,
    JobStopped,
    NewSubtaskDeployed,
    NewSubtaskEnded,
    NewSubtaskRefused,
    PartyLost,
    Prepared,
    PrepareRefused,
    Rerouted,
    RescaleAction,
    RescaleEnded,
    RescaleEvent,
    RescalePhase,
    RetiredFinished,
    SendAbort,
    SendPrepare,
    SendProceed,
    SendReroute,
)
from weir.protocol.rescale.rescale_phases import RescalePhases
from weir.protocol.rescale.rescale_plan import RescalePlan
from weir.subtask_names import NameOf, numbered
from weir.types import SubtaskId

#: From the type of an event to the method of :class:`RescaleMachine` that handles it.
Handlers = Mapping[type, Callable[["RescaleMachine", Any], list[RescaleAction]]]
_HISTORY_ENTRIES_MAX = 64


class RescaleMachine(RescalePhases):
    """A rescale. Not safe for use by several threads at once."""

    def __init__(
        self, rescale_id: int, plan: RescalePlan, now_ms: int, *, migrates: bool, name_of: NameOf = numbered
    ) -> None:
        """Make a rescale that has not begun.

        Args:
            rescale_id: number of the rescale.
            plan: what is to be done.
            now_ms: when it begins.
            migrates: state follows its group in the background, and the rescale ends when it is there.
            name_of: what subtasks are called in causes.
        """
        super().__init__(rescale_id, plan, now_ms)
        self._name_of = name_of
        self._migrates = migrates and bool(plan.moves)
        self._now_ms = now_ms
        self._not_deployed = set(plan.new)
        self._not_prepared = set(plan.subtasks)
        self._not_rerouted = set(plan.upstream)
        self._not_retired = set(plan.retiring)
        #: New subtasks that may still run.
        self._new_live: set[SubtaskId] = set(plan.new)
        #: New subtasks that do not run and cannot tell their consumers.
        self._new_lost: set[SubtaskId] = set()
        self._targets = {move.group: SubtaskId(plan.stage_index, move.target) for move in plan.moves}
        self._not_owned = set(self._targets)
        self._not_migrated = set(self._targets)
        self._bytes_moved = 0
        self._bytes_sent = self._groups_relinked = 0
        self._history: deque[str] = deque(maxlen=_HISTORY_ENTRIES_MAX)

    def start(self) -> list[RescaleAction]:
        """Leave PLANNING; call once.

        Raises:
            InvalidTransitionError: it was called before.
        """
        self._move(RescalePhase.DEPLOYING)
        new = tuple(Assignment(subtask, self.plan.placement[subtask]) for subtask in self.plan.new)
        return [*([DeployNew(new)] if new else []), *self._advance()]

    def handle(self, event: RescaleEvent, now_ms: int) -> list[RescaleAction]:
        """Take one event in; returns what to do now, in order. Repeated reports change nothing.

        Raises:
            InvalidTransitionError: the event cannot happen in this phase. Nothing has changed.
        """
        handler = self.HANDLERS[self._phase].get(type(event))
        if handler is None:
            raise self._invalid(f"{event} in phase {self._phase.value}")
        self._now_ms = now_ms
        actions = handler(self, event)
        self._history.append(str(event))
        return [*actions, *self._advance()]

    def to_dict(self) -> dict[str, object]:
        """JSON-able: what ``GET /rescales/ID`` shows."""
        total = len(self._targets)
        return self._facts(
            groups=total,
            owned=total - len(self._not_owned),
            migrated=total - len(self._not_migrated),
            bytes_moved=self._bytes_moved,
            groups_relinked=self._groups_relinked,
            bytes_sent=self._bytes_sent,
        )

    def check_invariants(self) -> None:
        """Check what must hold between events.

        Raises:
            InvalidTransitionError: it does not; a bug in this module.
        """
        phase = self._phase
        ends_badly = phase in (RescalePhase.ABORTING, RescalePhase.ABORTED, RescalePhase.FAILED)
        rules = {
            "a rescale that ends badly has a cause, and only one that does": ends_badly == bool(self._cause),
            "nothing is owned before the point of no return": not phase.is_reversible
            or len(self._not_owned) == len(self._targets),
            "an aborted rescale leaves no new subtask": phase is not RescalePhase.ABORTED
            or not self._new_live,
            "complete means owned, rerouted and retired": phase is not RescalePhase.COMPLETE
            or not (self._not_owned or self._not_rerouted or self._not_retired),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise self._invalid(f"broken: {'; '.join(broken)}")

    # --- handlers -------------------------------------------------------------------------------------------

    def _deployed(self, event: NewSubtaskDeployed) -> list[RescaleAction]:
        self._check_party(event.subtask, self.plan.new, "a new subtask")
        self._not_deployed.discard(event.subtask)
        return []

    def _refused(self, event: NewSubtaskRefused) -> list[RescaleAction]:
        self._check_party(event.subtask, self.plan.new, "a new subtask")
        self._new_live.discard(event.subtask)
        self._new_lost.add(event.subtask)
        return self._abort(f"{self._name_of(event.subtask)} could not be deployed: {event.cause}")

    def _prepared(self, event: Prepared) -> list[RescaleAction]:
        self._check_party(event.subtask, self.plan.subtasks, "a subtask of the stage")
        self._not_prepared.discard(event.subtask)
        return []

    def _prepare_refused(self, event: PrepareRefused) -> list[RescaleAction]:
        self._check_party(event.subtask, self.plan.subtasks, "a subtask of the stage")
        return self._abort(f"{self._name_of(event.subtask)} cannot take part: {event.cause}")

    def _rerouted(self, event: Rerouted) -> list[RescaleAction]:
        self._check_party(event.subtask, self.plan.upstream, "an upstream subtask")
        self._not_rerouted.discard(event.subtask)
        return []

    def _owned(self, event: GroupsOwned) -> list[RescaleAction]:
        wrong = [group for group in event.groups if self._targets.get(group) != event.subtask]
        if wrong:
            raise self._invalid(
                f"subtask {event.subtask} took groups {wrong}, which the plan does not give it"
            )
        self._not_owned.difference_update(event.groups)
        return []

    def _migrated(self, event: GroupsMigrated) -> list[RescaleAction]:
        wrong = [group for group in event.groups if group not in self._targets]
        if wrong:
            raise self._invalid(f"groups {wrong} were migrated, which do not move")
        self._not_migrated.difference_update(event.groups)
        self._bytes_moved += event.bytes
        return []

    def _sent(self, event: GroupsSent) -> list[RescaleAction]:
        self._bytes_sent += event.bytes
        self._groups_relinked += event.relinked
        return []

    def _retired(self, event: RetiredFinished) -> list[RescaleAction]:
        self._check_party(event.subtask, self.plan.retiring, "a retiring subtask")
        self._not_retired.discard(event.subtask)
        return []

    def _lost_while_reversible(self, event: PartyLost) -> list[RescaleAction]:
        """Decide if the job can go on as it was: without a new subtask it can, or without one that has ended anyway."""
        is_new = event.subtask in self.plan.new
        if not is_new and not event.had_finished:
            return self._fail(event)
        if is_new:
            self._new_live.discard(event.subtask)
            self._new_lost.add(event.subtask)
        return self._abort(f"{self._name_of(event.subtask)} is lost: {event.cause}")

    def _lost_while_aborting(self, event: PartyLost) -> list[RescaleAction]:
        if event.subtask not in self.plan.new:
            return [] if event.had_finished else self._fail(event)
        if event.subtask not in self._new_live:
            return []
        self._new_live.discard(event.subtask)
        return [CancelNew((), (event.subtask,))]

    def _refused_while_aborting(self, event: NewSubtaskRefused) -> list[RescaleAction]:
        return self._lost_while_aborting(PartyLost(event.subtask, event.cause))

    def _lost_while_certain(self, event: PartyLost) -> list[RescaleAction]:
        """Who has ended is missed only if it still had to speak for itself, or kept what it gave away."""
        if event.had_finished and event.subtask not in (*self._not_rerouted, *self.plan.retiring):
            return []
        return self._fail(event)

    def _new_ended(self, event: NewSubtaskEnded) -> list[RescaleAction]:
        self._check_party(event.subtask, self.plan.new, "a new subtask")
        self._new_live.discard(event.subtask)
        return []

    def _job_stopped(self, event: JobStopped) -> list[RescaleAction]:
        if event.finished and not self._phase.is_reversible and self._phase is not RescalePhase.ABORTING:
            # No subtask ends before its part is done, so what has not been reported is on its way,
            # and nobody is left who would use what has not been pulled.
            for missing in (self._not_rerouted, self._not_owned, self._not_migrated, self._not_retired):
                missing.clear()
            return []
        self._cause = event.cause or "the job ended"
        return self._end(RescalePhase.FAILED)

    def _ignore(self, event: RescaleEvent) -> list[RescaleAction]:
        return []

    # --- parts of handlers ----------------------------------------------------------------------------------

    def _advance(self) -> list[RescaleAction]:
        """Make every move that is due."""
        actions: list[RescaleAction] = []
        while True:
            before = self._phase
            actions += self._advance_once()
            if self._phase is before:
                return actions

    def _advance_once(self) -> list[RescaleAction]:
        plan, phase = self.plan, self._phase
        if phase is RescalePhase.DEPLOYING and not self._not_deployed:
            if plan.table is None:
                return self._go_forward()
            self._move(RescalePhase.PREPARING)
            return [SendPrepare(plan.subtasks, plan.version, plan.moves, plan.retiring)]
        if phase is RescalePhase.PREPARING and not self._not_prepared:
            return self._go_forward()
        if phase is RescalePhase.REROUTING and not self._not_rerouted:
            self._move(RescalePhase.HANDING_OVER)
        elif phase is RescalePhase.HANDING_OVER and not self._not_owned:
            if self._migrates:
                self._move(RescalePhase.MIGRATING)
            elif not self._not_retired:
                return self._end(RescalePhase.COMPLETE)
        elif phase is RescalePhase.MIGRATING and not self._not_migrated and not self._not_retired:
            return self._end(RescalePhase.COMPLETE)
        elif phase is RescalePhase.ABORTING and not self._new_live:
            return self._end(RescalePhase.ABORTED)
        return []

    def _go_forward(self) -> list[RescaleAction]:
        plan = self.plan
        self._move(RescalePhase.REROUTING)
        actions: list[RescaleAction] = [
            InstallTable(plan.stage_index, plan.after, plan.table),
            SendReroute(plan.upstream, plan.version),
        ]
        if plan.table is not None:
            actions.append(SendProceed(plan.subtasks, plan.version))
        return actions

    def _abort(self, cause: str) -> list[RescaleAction]:
        was_preparing = self._phase is RescalePhase.PREPARING
        self._cause = cause
        self._move(RescalePhase.ABORTING)
        actions: list[RescaleAction] = []
        old = tuple(subtask for subtask in self.plan.subtasks if subtask not in self.plan.new)
        if was_preparing:
            actions.append(SendAbort(old, self.plan.version))
        if self._new_live or self._new_lost:
            actions.append(CancelNew(tuple(sorted(self._new_live)), tuple(sorted(self._new_lost))))
        return actions

    def _fail(self, event: PartyLost) -> list[RescaleAction]:
        self._cause = (
            f"{self._name_of(event.subtask)} is lost while rescale {self.rescale_id} of stage {self.plan.stage_index} "
            f"is in phase {self._phase.value}: {event.cause}"
        )
        return [FailJob(self._cause), *self._end(RescalePhase.FAILED)]

    def _end(self, phase: RescalePhase) -> list[RescaleAction]:
        self._move(phase)
        return [RescaleEnded(phase, self._cause)]

    def _check_party(self, subtask: SubtaskId, parties: tuple[SubtaskId, ...], role: str) -> None:
        if subtask not in parties:
            raise self._invalid(f"subtask {subtask} is not {role} of rescale {self.rescale_id}")

    def _move(self, target: RescalePhase) -> None:
        before = self._phase
        self._enter(target, self._now_ms)
        self._history.append(f"{before.value} -> {target.value}")

    def _invalid(self, what: str) -> InvalidTransitionError:
        return InvalidTransitionError(f"{what}; history: {' | '.join(self._history) or 'empty'}")

    _FORWARD: ClassVar[Handlers] = {
        Rerouted: _rerouted,
        GroupsOwned: _owned,
        GroupsMigrated: _migrated,
        GroupsSent: _sent,
        RetiredFinished: _retired,
        NewSubtaskDeployed: _deployed,
        Prepared: _prepared,
        PartyLost: _lost_while_certain,
        JobStopped: _job_stopped,
    }
    _FINAL: ClassVar[Handlers] = dict.fromkeys(get_args(RescaleEvent), _ignore)
    #: Which method handles which event in which phase; an absent entry is an illegal event. A retiring subtask
    #: that ends while the rescale can be taken back ended by itself: its answer to SendPrepare says so.
    HANDLERS: ClassVar[Mapping[RescalePhase, Handlers]] = {
        RescalePhase.PLANNING: {},
        RescalePhase.DEPLOYING: {
            NewSubtaskDeployed: _deployed,
            NewSubtaskRefused: _refused,
            RetiredFinished: _ignore,
            PartyLost: _lost_while_reversible,
            JobStopped: _job_stopped,
        },
        RescalePhase.PREPARING: {
            NewSubtaskDeployed: _deployed,
            Prepared: _prepared,
            PrepareRefused: _prepare_refused,
            GroupsSent: _sent,
            RetiredFinished: _ignore,
            PartyLost: _lost_while_reversible,
            JobStopped: _job_stopped,
        },
        RescalePhase.REROUTING: _FORWARD,
        RescalePhase.HANDING_OVER: _FORWARD,
        RescalePhase.MIGRATING: _FORWARD,
        RescalePhase.ABORTING: {
            NewSubtaskDeployed: _ignore,
            NewSubtaskRefused: _refused_while_aborting,
            NewSubtaskEnded: _new_ended,
            Prepared: _ignore,
            PrepareRefused: _ignore,
            GroupsSent: _ignore,
            RetiredFinished: _ignore,
            PartyLost: _lost_while_aborting,
            JobStopped: _job_stopped,
        },
        RescalePhase.COMPLETE: _FINAL,
        RescalePhase.ABORTED: _FINAL,
        RescalePhase.FAILED: _FINAL,
    }
