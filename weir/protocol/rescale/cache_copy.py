"""Cached state goes ahead of its key groups in a rescale: what may be used of it, and what must not. Pure.

Every subtask of a keyed stage has one machine, as old owner of some groups and as new owner of others. Its thread calls
:meth:`CacheCopyMachine.handle` with each event, in the order in which they happen to it, and carries out the actions.

The copy is a favour: the store has everything. So anything may be lost, late or given up, and only one thing must
never happen, namely that an entry counts which is older than the store's (docs/design/0001, "The cache goes ahead").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from weir.errors import InvalidTransitionError
from weir.protocol.rescale.cache_copy_model import (
    COPY_TRANSITIONS,
    CopyAborted,
    CopyAction,
    CopyArrived,
    CopyEvent,
    CopyPhase,
    CopyResumed,
    CopyTaken,
    CopyWanted,
    Enter,
    Forget,
    GroupsCome,
    GroupsLeave,
    Keep,
    SendRest,
)

__all__ = [
    "CacheCopyMachine",
    "CopyAborted",
    "CopyAction",
    "CopyArrived",
    "CopyEvent",
    "CopyPhase",
    "CopyResumed",
    "CopyTaken",
    "CopyWanted",
    "Enter",
    "Forget",
    "GroupsCome",
    "GroupsLeave",
    "Keep",
    "SendRest",
]

_HISTORY_ENTRIES_MAX = 32
#: A rescale concerns the groups that have one of these phases only while it runs.
_OF_A_RESCALE = {
    CopyPhase.WANTED: CopyPhase.OWNED,
    CopyPhase.TAKEN: CopyPhase.OWNED,
    CopyPhase.AHEAD: CopyPhase.FOREIGN,
    CopyPhase.LATE: CopyPhase.FOREIGN,
    CopyPhase.COMPLETE: CopyPhase.FOREIGN,
}


class CacheCopyMachine:
    """What one subtask gives and gets of cached state. Not safe for use by several threads at once."""

    def __init__(self, owned: Iterable[int]) -> None:
        """``owned``: key groups at the start; of these nothing is to be copied yet."""
        #: Groups that are not here are FOREIGN.
        self._phases: dict[int, CopyPhase] = dict.fromkeys(owned, CopyPhase.OWNED)
        #: Of groups that are COMPLETE: the owner epoch that this is for.
        self._epochs: dict[int, int] = {}
        #: The rescale that phases other than OWNED and FOREIGN are of.
        self._version = 0
        #: Up to this version nothing of a rescale counts any more.
        self._aborted_version = 0
        self._history: deque[str] = deque(maxlen=_HISTORY_ENTRIES_MAX)

    def phase(self, group: int) -> CopyPhase:
        """Where a group is."""
        return self._phases.get(group, CopyPhase.FOREIGN)

    def taken(self, version: int, groups: Iterable[int]) -> list[int]:
        """Return those of these groups of which the new owner has a copy; ascending.

        Asked before :class:`GroupsLeave` and :class:`CopyResumed`.
        """
        return self._in(groups, CopyPhase.TAKEN) if version == self._version else []

    def wanted(self, version: int, groups: Iterable[int]) -> list[int]:
        """Return those of these groups of which the new owner is to have a copy and has none; ascending."""
        return self._in(groups, CopyPhase.WANTED) if version == self._version else []

    def handle(self, event: CopyEvent) -> list[CopyAction]:
        """Take one event in; returns what to do now, in order.

        Raises:
            InvalidTransitionError: the event cannot happen here. Nothing has changed.
        """
        match event:
            case CopyWanted():
                actions = self._wanted(event)
            case CopyTaken():
                actions = self._taken(event)
            case CopyResumed():
                self._move(self.taken(event.version, event.groups), CopyPhase.WANTED)
                actions = []
            case GroupsLeave():
                actions = self._leave(event)
            case CopyArrived():
                actions = self._arrived(event)
            case GroupsCome():
                actions = self._come(event.groups)
            case CopyAborted():
                self._aborted_version = max(self._aborted_version, event.version)
                actions = self._end_rescale() if self._version <= event.version else []
        self._history.append(str(event))
        return actions

    def check_invariants(self) -> None:
        """Check what must hold between events.

        Raises:
            InvalidTransitionError: it does not; a bug in this module.
        """
        complete = {group for group, phase in self._phases.items() if phase is CopyPhase.COMPLETE}
        rules = {
            "a group is complete for an owner epoch": complete == self._epochs.keys(),
            "nothing is under way for a rescale that was aborted": self._version > self._aborted_version
            or not self._phases.values() & _OF_A_RESCALE.keys(),
            "only what differs from FOREIGN is noted": CopyPhase.FOREIGN not in self._phases.values(),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise self._invalid(f"broken: {'; '.join(broken)}")

    # --- the old owner's handlers ---------------------------------------------------------------------------

    def _wanted(self, event: CopyWanted) -> list[CopyAction]:
        if self._is_late(event.version):
            return []
        actions = self._enter_rescale(event.version)
        # A command that comes late finds groups that are gone.
        self._move(self._in(event.groups, CopyPhase.OWNED), CopyPhase.WANTED)
        return actions

    def _taken(self, event: CopyTaken) -> list[CopyAction]:
        if event.version == self._version:
            self._move(self._in(event.groups, CopyPhase.WANTED), CopyPhase.TAKEN)
        return []

    def _leave(self, event: GroupsLeave) -> list[CopyAction]:
        missing = [group for group in event.groups if not self.phase(group).is_owner]
        if missing:
            raise self._invalid(f"rescale {event.version} gives away groups {missing}, which are not owned")
        actions = self._enter_rescale(event.version) if event.version > self._version else []
        taken = self.taken(event.version, event.groups)
        wanted = self.wanted(event.version, event.groups)
        self._move(event.groups, CopyPhase.FOREIGN)
        changed = tuple(group for group in taken if group in event.good)
        anew = tuple(sorted({*wanted, *taken}.difference(changed)))
        return [*actions, SendRest(changed, anew)] if changed or anew else actions

    # --- the new owner's handlers ---------------------------------------------------------------------------

    def _arrived(self, event: CopyArrived) -> list[CopyAction]:
        if self._is_late(event.version):
            return []
        actions = self._enter_rescale(event.version)
        over = {CopyPhase.OWNED, CopyPhase.WANTED, CopyPhase.TAKEN}
        if not event.at_handover:
            over |= {CopyPhase.LATE, CopyPhase.COMPLETE}
        groups = [group for group in sorted(event.groups) if self.phase(group) not in over]
        # What is left of a group that was owned here once is older than its store.
        stale = tuple(group for group in groups if event.anew or self.phase(group) is CopyPhase.FOREIGN)
        for group in groups:
            if event.complete:
                self._move([group], CopyPhase.COMPLETE)
                self._epochs[group] = event.groups[group]
            elif self.phase(group) is not CopyPhase.COMPLETE:
                self._move([group], CopyPhase.LATE if event.at_handover else CopyPhase.AHEAD)
        if stale:
            actions.append(Forget(stale))
        if groups:
            actions.append(Enter(tuple(groups)))
        return actions

    def _come(self, groups: Mapping[int, int]) -> list[CopyAction]:
        known = [group for group in groups if self.phase(group).is_owner]
        if known:
            raise self._invalid(f"groups {known} come, which are owned")
        kept = [group for group, epoch in sorted(groups.items()) if self._epochs.get(group) == epoch]
        self._move(groups, CopyPhase.OWNED)
        return [Keep(tuple(kept))] if kept else []

    # --- parts of handlers ----------------------------------------------------------------------------------

    def _is_late(self, version: int) -> bool:
        return version < self._version or version <= self._aborted_version

    def _enter_rescale(self, version: int) -> list[CopyAction]:
        """Rescales come one at a time: news of a later one says that the last one is over."""
        if version == self._version:
            return []
        actions = self._end_rescale()
        self._version = version
        return actions

    def _end_rescale(self) -> list[CopyAction]:
        entered = []
        for group, phase in list(self._phases.items()):
            if phase in _OF_A_RESCALE:
                entered += [] if phase.is_owner else [group]
                self._move([group], _OF_A_RESCALE[phase])
        return [Forget(tuple(sorted(entered)))] if entered else []

    def _in(self, groups: Iterable[int], phase: CopyPhase) -> list[int]:
        return sorted(group for group in groups if self.phase(group) is phase)

    def _move(self, groups: Iterable[int], phase: CopyPhase) -> None:
        for group in groups:
            before = self.phase(group)
            if phase not in COPY_TRANSITIONS[before]:
                raise self._invalid(f"group {group}: {before.value} -> {phase.value}; a bug in this module")
            self._epochs.pop(group, None)
            if phase is CopyPhase.FOREIGN:
                self._phases.pop(group, None)
            else:
                self._phases[group] = phase

    def _invalid(self, what: str) -> InvalidTransitionError:
        history = " | ".join(self._history) or "empty"
        return InvalidTransitionError(f"cached state of a rescale: {what}; history: {history}")
