"""Phases, legal moves, events and actions of an owner in a rescale; ``rescale_owner`` has the machine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum

from weir.protocol.routing import GroupMove


class OwnerPhase(Enum):
    """Where a subtask is in the rescale of its stage."""

    #: No rescale concerns it: it has what it owns, and gives nothing away.
    SETTLED = "SETTLED"
    #: A marker or a handover came, but the plan that explains it has not.
    UNPLANNED = "UNPLANNED"
    #: It knows a plan that may still be aborted; nothing has changed hands.
    PREPARED = "PREPARED"
    #: The plan is certain; some groups still have to be given away or to arrive.
    MOVING = "MOVING"


#: Legal moves of an owner; ``SETTLED -> SETTLED`` is a plan without a group of this subtask.
OWNER_TRANSITIONS: Mapping[OwnerPhase, frozenset[OwnerPhase]] = {
    OwnerPhase.SETTLED: frozenset({OwnerPhase.SETTLED, OwnerPhase.UNPLANNED, OwnerPhase.PREPARED}),
    OwnerPhase.UNPLANNED: frozenset({OwnerPhase.SETTLED, OwnerPhase.UNPLANNED, OwnerPhase.MOVING}),
    OwnerPhase.PREPARED: frozenset(OwnerPhase),
    OwnerPhase.MOVING: frozenset({OwnerPhase.SETTLED, OwnerPhase.MOVING}),
}


# --- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """The coordinator announces a rescale. Answer "prepared" when the actions are done."""

    version: int
    #: All moves of the rescale, also those of other subtasks.
    moves: tuple[GroupMove, ...]
    #: Whether this subtask gives everything away and ends.
    retiring: bool = False


@dataclass(frozen=True)
class Proceed:
    """The coordinator passed the point of no return: sent to every owner with the reroute commands.

    Markers say the same; a subtask whose inputs all ended before they switched learns it only from this.
    """

    version: int


@dataclass(frozen=True)
class MarkerReceived:
    """A route marker came in-band: no row of a moved group follows it on this input to the old owner."""

    input: Hashable
    version: int


@dataclass(frozen=True)
class InputAdded:
    """A channel was opened. One that had ended may be opened again by a new producer of the same name."""

    input: Hashable


@dataclass(frozen=True)
class InputEnded:
    """The end of the stream came on an input."""

    input: Hashable


@dataclass(frozen=True)
class HandoverReceived:
    """An old owner hands over groups; those of one rescale may come in several messages."""

    version: int
    #: New owner epoch by group.
    groups: Mapping[int, int]
    #: Where the state is; only passed on.
    location: Hashable


@dataclass(frozen=True)
class Abort:
    """The coordinator takes a rescale back, before any upstream subtask was told to switch."""

    version: int


OwnerEvent = Prepare | Proceed | MarkerReceived | InputAdded | InputEnded | HandoverReceived | Abort


# --- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartFlush:
    """Start to write dirty keys of these groups, ascending, so that little is left for the handover."""

    version: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class HandOver:
    """Write the rest of these groups, forget them, and send their handover to subtask index ``target``.

    They are not owned any more. One action per target, ascending.
    """

    version: int
    target: int
    #: New owner epoch by group, ascending by group.
    groups: Mapping[int, int]


@dataclass(frozen=True)
class TakeOwnership:
    """Groups are owned from now on: process their parked rows, in order, and tell the coordinator."""

    version: int
    #: Owner epoch by group.
    groups: Mapping[int, int]
    location: Hashable


@dataclass(frozen=True)
class Retired:
    """Everything was given away and every input has ended: end the subtask. ``may_finish`` is true."""

    version: int


OwnerAction = StartFlush | HandOver | TakeOwnership | Retired
