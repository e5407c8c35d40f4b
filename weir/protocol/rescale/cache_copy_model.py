"""Phases, legal moves, events and actions of cached state that goes ahead of its key groups.

``weir.protocol.rescale.cache_copy`` has the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class CopyPhase(Enum):
    """Where one key group is, as one subtask sees it. The first three are an owner's, the others a stranger's."""

    #: The group is owned and stays, as far as is known here.
    OWNED = "OWNED"
    #: The group will leave, and its new owner is to have what is cached of it.
    WANTED = "WANTED"
    #: The new owner has entered a copy; what changed since is missing there.
    TAKEN = "TAKEN"
    #: The group is not owned, and nothing that is cached of it counts.
    FOREIGN = "FOREIGN"
    #: Parts of a copy are entered that was made before the handover.
    AHEAD = "AHEAD"
    #: Parts are entered that were sent at the handover; what was sent before counts no more if it comes now.
    LATE = "LATE"
    #: All that was cached at the handover and is worth having is entered.
    COMPLETE = "COMPLETE"

    @property
    def is_owner(self) -> bool:
        """Return whether the subtask owns the group."""
        return self in (CopyPhase.OWNED, CopyPhase.WANTED, CopyPhase.TAKEN)


#: Legal moves of a group.
COPY_TRANSITIONS: Mapping[CopyPhase, frozenset[CopyPhase]] = {
    CopyPhase.OWNED: frozenset({CopyPhase.OWNED, CopyPhase.WANTED, CopyPhase.FOREIGN}),
    # Back to OWNED by an abort or a later rescale.
    CopyPhase.WANTED: frozenset({CopyPhase.WANTED, CopyPhase.TAKEN, CopyPhase.OWNED, CopyPhase.FOREIGN}),
    CopyPhase.TAKEN: frozenset({CopyPhase.TAKEN, CopyPhase.WANTED, CopyPhase.OWNED, CopyPhase.FOREIGN}),
    CopyPhase.FOREIGN: frozenset(
        {CopyPhase.FOREIGN, CopyPhase.AHEAD, CopyPhase.LATE, CopyPhase.COMPLETE, CopyPhase.OWNED}
    ),
    CopyPhase.AHEAD: frozenset(
        {CopyPhase.AHEAD, CopyPhase.LATE, CopyPhase.COMPLETE, CopyPhase.FOREIGN, CopyPhase.OWNED}
    ),
    CopyPhase.LATE: frozenset({CopyPhase.LATE, CopyPhase.COMPLETE, CopyPhase.FOREIGN, CopyPhase.OWNED}),
    CopyPhase.COMPLETE: frozenset({CopyPhase.COMPLETE, CopyPhase.FOREIGN, CopyPhase.OWNED}),
}


# --- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyWanted:
    """A rescale takes these groups to new owners that are to have what is cached; before the first copy is made."""

    version: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class CopyTaken:
    """The new owner has confirmed that it entered everything that :class:`CopyWanted` groups had cached."""

    version: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class CopyResumed:
    """What changed in these groups since they were copied goes ahead, too: until :class:`CopyTaken` it is missing."""

    version: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class GroupsLeave:
    """Groups are handed over now."""

    version: int
    groups: tuple[int, ...]
    #: Those of which the tables know everything that was used since the copy.
    good: frozenset[int]


@dataclass(frozen=True)
class CopyArrived:
    """A message of an old owner; messages may be lost, and those that it gave up may come at any time."""

    version: int
    #: The owner epochs that the groups will have here.
    groups: Mapping[int, int]
    #: Whether it was sent at the handover, so after everything for which this does not hold.
    at_handover: bool = False
    #: Whether what came of these groups before is void.
    anew: bool = False
    #: Whether the old owner knows that everything of these groups was entered before this.
    complete: bool = False


@dataclass(frozen=True)
class GroupsCome:
    """Groups are owned from now on."""

    #: Owner epoch by group.
    groups: Mapping[int, int]


@dataclass(frozen=True)
class CopyAborted:
    """The rescale was taken back; groups stay where they are."""

    version: int


CopyEvent = CopyWanted | CopyTaken | CopyResumed | GroupsLeave | CopyArrived | GroupsCome | CopyAborted


# --- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forget:
    """Forget what is cached of these groups, which are not owned."""

    groups: tuple[int, ...]


@dataclass(frozen=True)
class Enter:
    """Cache the entries that came, as far as they are of these groups."""

    groups: tuple[int, ...]


@dataclass(frozen=True)
class Keep:
    """What is cached of these groups counts from now on; of others that come it is forgotten."""

    groups: tuple[int, ...]


@dataclass(frozen=True)
class SendRest:
    """Send the new owner what it still needs, then the word that this is everything."""

    #: Groups of which it needs what was used since the copy.
    changed: tuple[int, ...]
    #: Groups of which it needs everything; what it has of them is void.
    anew: tuple[int, ...]


CopyAction = Forget | Enter | Keep | SendRest
