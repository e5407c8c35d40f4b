"""Where the state of each key group of a subtask is, and what of a range is where. Pure bookkeeping, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from weir.errors import FencedError
from weir.state.layout import STATE_ID_MAX, state_prefix


@dataclass(eq=False)
class MigratingGroup:
    """A key group that is on its way here. What is in the local store is newer than the peer's copy."""

    group: int
    #: The peer that still has the keys that were not fetched yet.
    address: str
    #: Keys that were deleted here and may still be at the peer.
    tombstones: set[bytes] = field(default_factory=set)
    #: Grows when a range is deleted: what was read from the peer before is void.
    version: int = 0
    #: Keys that had to be fetched: the group that is wanted most is pulled first.
    wanted: int = 0
    #: A peer with a copy that is to be deleted when all is here, where ``address`` is that of images; "": none has.
    copy_at: str = ""


#: None: in the local store; an address: in that peer's store.
Place = str | MigratingGroup | None


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Where the state of an owned key group is, as a checkpoint notes it."""

    #: "migrating": what is in the local store counts before what is at ``address``.
    kind: Literal["local", "remote", "migrating"]
    #: Of the peer's store or of images; "" if everything is here.
    address: str = ""
    #: Keys that may be at ``address`` but were deleted since.
    tombstones: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a range that lies in one state of one group: ``start <= key < stop``."""

    prefix: bytes
    place: Place
    start: bytes
    stop: bytes


class GroupPlaces:
    """The places of the groups that a subtask owns, by the group's two bytes."""

    def __init__(self, state_ids: Iterable[int], places: dict[bytes, Place] | None = None) -> None:
        self.state_ids = tuple(sorted(state_ids))
        self.by_group: dict[bytes, Place] = {} if places is None else places
        #: The store of each group in turn; fewer lookups while nothing was moved.
        self.all_local = all(place is None for place in self.by_group.values())

    def put(self, group: int, place: Place) -> None:
        """Own a group, or change its place."""
        self.by_group[group.to_bytes(2, "big")] = place
        self._look()

    def get(self, group: int) -> Place:
        """The place of an owned group.

        Raises:
            FencedError: it is not owned.
        """
        key = group.to_bytes(2, "big")
        self.check_owned({key})
        return self.by_group[key]

    def remove(self, group: int) -> Place:
        """Own a group no longer; returns the place it had.

        Raises:
            FencedError: it was not owned.
        """
        place = self.get(group)
        del self.by_group[group.to_bytes(2, "big")]
        self._look()
        return place

    def _look(self) -> None:
        self.all_local = all(place is None for place in self.by_group.values())

    def check_owned(self, groups: set[bytes]) -> None:
        """Refuse keys of other owners.

        Raises:
            FencedError: one of the groups is not owned.
        """
        if not groups <= self.by_group.keys():
            group = min(groups - self.by_group.keys())
            raise FencedError(f"key group {int.from_bytes(group, 'big')} does not belong to this subtask")

    def migrating(self) -> list[MigratingGroup]:
        """The groups that are on their way here; any thread may ask while places change."""
        return [place for place in list(self.by_group.values()) if isinstance(place, MigratingGroup)]

    def pieces(self, start: bytes | None, stop: bytes | None) -> list[Piece]:
        """What of a range belongs to this subtask, in key order: owned groups, states of its stage."""
        first = b"" if start is None else start
        found = []
        for group in self._groups_between(first, stop):
            # A scan of one state of one group, of which there are many, must not look at all others.
            low = int.from_bytes(first[2:4], "big") if group == first[:2] and len(first) >= 4 else 0
            ends_here = stop is not None and group == stop[:2] and len(stop) >= 4
            high = int.from_bytes(stop[2:4], "big") if stop is not None and ends_here else STATE_ID_MAX
            for state_id in self.state_ids:
                if not low <= state_id <= high:
                    continue
                prefix, end = state_bounds(int.from_bytes(group, "big"), state_id)
                piece_start = max(prefix, first)
                piece_stop = end if stop is None else min(end, stop)
                if piece_start < piece_stop:
                    found.append(Piece(prefix, self.by_group[group], piece_start, piece_stop))
        return found

    def _groups_between(self, first: bytes, stop: bytes | None) -> Sequence[bytes]:
        """Owned groups that a range may have, ascending."""
        group = first[:2]
        if stop is not None and len(group) == 2 and stop[:2] == group:
            return [group] if group in self.by_group else []
        return sorted(each for each in self.by_group if each >= group and (stop is None or each <= stop))


def state_bounds(group: int, state_id: int) -> tuple[bytes, bytes]:
    """Range (start, stop) of the keys of one state in one group."""
    prefix = state_prefix(group, state_id)
    # Groups end at 4095, so there is always a next prefix.
    return prefix, (int.from_bytes(prefix, "big") + 1).to_bytes(4, "big")


def group_bounds(group: int, state_ids: Iterable[int]) -> list[tuple[bytes, bytes]]:
    """Return as few ranges as have the keys of these states in one group, and of no other state.

    The states of a stage mostly follow each other. Deleting a range costs a call to a peer, and there are many groups.
    """
    return joined_bounds(state_bounds(group, state_id) for state_id in state_ids)


def joined_bounds(bounds: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Ranges (start, stop) in key order, those that follow each other as one."""
    joined: list[tuple[bytes, bytes]] = []
    for start, stop in sorted(bounds):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined


def tombstones_between(pieces: Collection[Piece]) -> list[bytes]:
    """Keys of the pieces that were deleted here and may still be at a peer; sorted."""
    groups = {piece.place: None for piece in pieces if isinstance(piece.place, MigratingGroup)}
    if not any(group.tombstones for group in groups):
        return []
    start, stop = pieces_span(pieces)
    return sorted(key for group in groups for key in group.tombstones if start <= key < stop)


def pieces_span(pieces: Collection[Piece]) -> tuple[bytes, bytes]:
    """The smallest range that holds all pieces, of which there is one at least."""
    return min(piece.start for piece in pieces), max(piece.stop for piece in pieces)
