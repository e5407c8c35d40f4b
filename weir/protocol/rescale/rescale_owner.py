"""The part of a subtask in the rescale of its stage: what it owns, what it gives away, what it waits for.

Pure: the subtask's loop calls :meth:`OwnerMachine.handle` with every event in the order in which they happen
to it, and carries out the actions it returns, in order, before it takes the next element. Every subtask of
the stage has one, and every one gets a ``Prepare``, even if no group of its own moves.

Commands of the coordinator travel beside the data and may overtake each other: a version that is over is
remembered, and whatever comes late for it is without effect. The versions of a stage's rescales grow, and one
that was aborted is not used again (docs/design/0001).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from weir.errors import FencedError, InvalidTransitionError
from weir.protocol.rescale.rescale_owner_model import (
    OWNER_TRANSITIONS,
    Abort,
    HandOver,
    HandoverReceived,
    InputAdded,
    InputEnded,
    MarkerReceived,
    OwnerAction,
    OwnerEvent,
    OwnerPhase,
    Prepare,
    Proceed,
    Retired,
    StartFlush,
    TakeOwnership,
)
from weir.protocol.routing import RoutingTable

__all__ = [
    "Abort",
    "HandOver",
    "HandoverReceived",
    "InputAdded",
    "InputEnded",
    "MarkerReceived",
    "OwnerAction",
    "OwnerEvent",
    "OwnerMachine",
    "OwnerPhase",
    "Prepare",
    "Proceed",
    "Retired",
    "StartFlush",
    "TakeOwnership",
]

_HISTORY_ENTRIES_MAX = 32


@dataclass
class _Plan:
    """The part of a rescale that is left for this subtask."""

    version: int
    #: Groups to give away, by target.
    gives: dict[int, list[int]]
    #: Groups that have not arrived.
    receives: set[int]
    retiring: bool


class OwnerMachine:
    """What one subtask of a keyed stage owns. Not safe for use by several threads at once."""

    def __init__(self, subtask_index: int, table: RoutingTable, inputs: Iterable[Hashable]) -> None:
        """``table`` is the one in force: a new subtask is not in it yet, so it owns nothing.

        ``inputs`` are all channels that end here and have not ended.
        """
        self._subtask_index = subtask_index
        self._epochs = np.array(table.owner_epochs, dtype=np.int64)
        #: Version of the rescale that brought a group here last.
        self._taken_in = np.zeros(table.max_parallelism, dtype=np.int64)
        self._owned: np.ndarray = table.group_to_subtask == subtask_index
        self._owned.flags.writeable = False
        #: Latest marker version of every live input; 0: none.
        self._markers: dict[Hashable, int] = dict.fromkeys(inputs, 0)
        self._plan: _Plan | None = None
        #: Up to this version nothing is left to do, or it was aborted.
        self._closed_version = table.version
        #: Up to this version it is certain that the rescale goes forward.
        self._certain_version = table.version
        #: Version in which this subtask retires, once it gave everything away.
        self._retired_in: int | None = None
        self._history: deque[str] = deque(maxlen=_HISTORY_ENTRIES_MAX)

    # --- queries: cheap, for every batch --------------------------------------------------------------------

    @property
    def owned_mask(self) -> np.ndarray:
        """Read-only bool array (max_parallelism,): True for owned groups; rows of all others are parked.

        A new array replaces it when ownership changes, so ``is`` tells whether it did.
        """
        return self._owned

    @property
    def owner_epochs(self) -> np.ndarray:
        """int64 array (max_parallelism,): owner epochs, right where owned, else the latest known. A copy."""
        return self._epochs.copy()

    @property
    def phase(self) -> OwnerPhase:
        """Where this subtask is."""
        if self._plan is not None:
            certain = self._certain_version >= self._plan.version
            return OwnerPhase.MOVING if certain else OwnerPhase.PREPARED
        return OwnerPhase.UNPLANNED if self._certain_version > self._closed_version else OwnerPhase.SETTLED

    @property
    def is_moving(self) -> bool:
        """Return whether a rescale concerns this subtask now."""
        return self._plan is not None or self._certain_version > self._closed_version

    @property
    def holds_watermark(self) -> bool:
        """Return whether groups have begun to move that are to leave here or to come here.

        From the first marker on, an input's rows of a group that is to be given away go to the new owner, and wait
        there. If the watermark went on here, as it does when that input ends or is ahead, state would leave that
        those rows need. If it went on at the new owner, what is due in the group would be told after the watermark.
        """
        if self.phase is OwnerPhase.UNPLANNED:
            return True
        plan = self._plan
        return self.phase is OwnerPhase.MOVING and plan is not None and bool(plan.gives or plan.receives)

    @property
    def may_finish(self) -> bool:
        """Return whether the subtask may end: every input ended, nothing to give away, nothing on its way here.

        While a plan may still be aborted this waits for ``Proceed`` or ``Abort``. Rows that are parked
        when this is true can never be processed: the caller must fail instead of ending.
        """
        return not self._markers and not self.is_moving

    # --- events ---------------------------------------------------------------------------------------------

    def handle(self, event: OwnerEvent) -> list[OwnerAction]:
        """Take one event in; returns what to do now, in order.

        Raises:
            FencedError: a handover carries an owner epoch that is not higher than the known one: it is
                a repetition, or its sender was replaced. Nothing has changed.
            InvalidTransitionError: the event cannot happen here. Nothing has changed.
        """
        before = self.phase
        match event:
            case MarkerReceived():
                actions = self._marker(event)
            case InputEnded():
                actions = self._input_ended(event)
            case InputAdded():
                actions = self._input_added(event)
            case Prepare():
                actions = self._prepare(event)
            case Proceed():
                self._make_certain(event.version)
                actions = []
            case HandoverReceived():
                actions = self._handover(event)
            case Abort():
                actions = self._abort(event)
        self._history.append(str(event))
        actions += [*self._give_away(), *self._close()]
        if self.phase not in OWNER_TRANSITIONS[before]:
            raise self._invalid(f"{before.value} -> {self.phase.value}; a bug in this module")
        return actions

    def check_invariants(self) -> None:
        """Check what must hold between events.

        Raises:
            InvalidTransitionError: it does not; a bug in this module.
        """
        gives = [group for groups in self._plan.gives.values() for group in groups] if self._plan else []
        receives = sorted(self._plan.receives) if self._plan else []
        rules = {
            "an owned group has an epoch": bool((self._epochs[self._owned] > 0).all()),
            "what is to be given away is owned": bool(self._owned[gives].all()),
            "what is to arrive is not owned": not self._owned[receives].any(),
            "an open plan is not over": self._plan is None or self._plan.version > self._closed_version,
            "an open plan has something left to do": self._plan is None or bool(gives or receives),
            "an aligned owner of a certain plan has given away": not gives
            or self.phase is not OwnerPhase.MOVING
            or not self._is_aligned(self._plan.version if self._plan else 0),
            "who retired owns nothing": self._retired_in is None or not self._owned.any(),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise self._invalid(f"broken: {'; '.join(broken)}")

    # --- handlers -------------------------------------------------------------------------------------------

    def _prepare(self, event: Prepare) -> list[OwnerAction]:
        current = self._plan.version if self._plan is not None else 0
        if event.version <= self._closed_version or event.version <= current:
            return []  # aborted, done or known: a late or repeated command
        if self._plan is not None and self.phase is OwnerPhase.MOVING:
            raise self._invalid(f"rescale {event.version} before rescale {current} has ended")
        gives: dict[int, list[int]] = {}
        for move in sorted(event.moves, key=lambda move: (move.target, move.group)):
            if move.source == self._subtask_index:
                gives.setdefault(move.target, []).append(move.group)
        giving = sorted(group for groups in gives.values() for group in groups)
        foreign = [group for group in giving if not self._owned[group]]
        if foreign:
            raise self._invalid(f"rescale {event.version} gives away groups {foreign}, which are not owned")
        if event.retiring and len(giving) != int(self._owned.sum()):
            raise self._invalid(f"rescale {event.version} retires an owner that keeps groups")
        receives = {move.group for move in event.moves if move.target == self._subtask_index}
        receives = {group for group in receives if self._taken_in[group] < event.version}
        self._forget_aborted(event.version)
        self._plan = _Plan(event.version, gives, receives, event.retiring)
        return [StartFlush(event.version, tuple(giving))] if giving else []

    def _marker(self, event: MarkerReceived) -> list[OwnerAction]:
        if event.input not in self._markers:
            raise self._invalid(f"a route marker on input {event.input}, which is not open")
        self._markers[event.input] = max(self._markers[event.input], event.version)
        self._make_certain(event.version)
        return []

    def _input_added(self, event: InputAdded) -> list[OwnerAction]:
        self._markers.setdefault(event.input, 0)
        return []

    def _input_ended(self, event: InputEnded) -> list[OwnerAction]:
        if event.input not in self._markers:
            raise self._invalid(f"the end of input {event.input}, which is not open")
        del self._markers[event.input]
        return []

    def _handover(self, event: HandoverReceived) -> list[OwnerAction]:
        for group, epoch in event.groups.items():
            if epoch <= self._epochs[group]:
                raise FencedError(
                    f"subtask index {self._subtask_index}, key group {group}: a handover with owner epoch {epoch}, "
                    f"but epoch {self._epochs[group]} is known; its sender no longer owns this group"
                )
        expected = self._plan.receives if self._plan and self._plan.version == event.version else None
        late = event.version <= self._closed_version
        if late or (expected is not None and not event.groups.keys() <= expected):
            raise self._invalid(f"a handover of groups {sorted(event.groups)}, which no rescale brings here")
        groups = dict(sorted(event.groups.items()))
        self._make_certain(event.version)
        self._set_owned(groups, owned=True)
        for group, epoch in groups.items():
            self._epochs[group] = epoch
            self._taken_in[group] = event.version
        if expected is not None:
            expected.difference_update(groups)
        return [TakeOwnership(event.version, groups, event.location)]

    def _abort(self, event: Abort) -> list[OwnerAction]:
        if event.version <= self._closed_version:
            return []
        if event.version <= self._certain_version:
            raise self._invalid(f"the abort of rescale {event.version}, which can only go forward")
        self._closed_version = event.version
        if self._plan is not None and self._plan.version <= event.version:
            self._plan = None
        return []

    # --- parts of handlers ----------------------------------------------------------------------------------

    def _make_certain(self, version: int) -> None:
        self._forget_aborted(version)
        self._certain_version = max(self._certain_version, version)

    def _forget_aborted(self, version: int) -> None:
        """Rescales come one at a time: news of a later one says that a plan in preparation was aborted."""
        if self._plan is not None and self._plan.version < version and self.phase is OwnerPhase.PREPARED:
            self._closed_version = self._plan.version
            self._plan = None

    def _is_aligned(self, version: int) -> bool:
        """Return whether every live input sent the marker of this version; an ended one sends nothing any more."""
        return all(seen >= version for seen in self._markers.values())

    def _give_away(self) -> list[OwnerAction]:
        """The linearisation point: whatever the plan gives away is not owned after this."""
        plan = self._plan
        if plan is None or not plan.gives or self.phase is not OwnerPhase.MOVING:
            return []
        if not self._is_aligned(plan.version):
            return []
        actions: list[OwnerAction] = []
        for target, groups in plan.gives.items():
            self._set_owned(groups, owned=False)
            self._epochs[groups] += 1
            epochs = {group: int(self._epochs[group]) for group in groups}
            actions.append(HandOver(plan.version, target, epochs))
        plan.gives = {}
        return actions

    def _close(self) -> list[OwnerAction]:
        """End a plan with nothing left to do, and the subtask if it retires."""
        plan = self._plan
        if plan is not None and not plan.gives and not plan.receives:
            self._closed_version = plan.version
            self._plan = None
            if plan.retiring:
                self._retired_in = plan.version
        if self._retired_in is None or self._markers:
            return []
        version, self._retired_in = self._retired_in, None
        return [Retired(version)]

    def _set_owned(self, groups: Iterable[int], *, owned: bool) -> None:
        changed = self._owned.copy()
        changed[list(groups)] = owned
        changed.flags.writeable = False
        self._owned = changed

    def _invalid(self, what: str) -> InvalidTransitionError:
        history = " | ".join(self._history) or "empty"
        return InvalidTransitionError(f"subtask index {self._subtask_index}: {what}; history: {history}")
