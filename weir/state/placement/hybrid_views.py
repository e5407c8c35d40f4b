"""Ordered reads over a local store and peers: one merge for scans and for snapshots."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence

from weir.errors import StateError
from weir.state.api import StateReader, StateSnapshot
from weir.state.placement.group_places import (
    GROUP_OF,
    PREFIX_OF,
    GroupPlaces,
    MigratingGroup,
    Piece,
    pieces_span,
    tombstones_between,
)
from weir.state.stores.memory import MemoryBackend

Entries = Iterator[tuple[bytes, bytes]]
#: Opens a scan of a peer: address, its pieces, reverse. The peer's view is fixed when it returns.
OpenRemote = Callable[[str, Sequence[Piece], bool], Entries]


def open_scan(pieces: Sequence[Piece], local: StateReader, open_remote: OpenRemote, reverse: bool) -> Entries:
    """Entries of pieces that lie in several places, in key order or the reverse, each key once.

    Of a key that is both here and at a peer the local entry counts; tombstones hide the peer's.
    """
    remote: dict[str, list[Piece]] = {}
    here: list[Piece] = []
    for piece in pieces:
        if piece.place is None or isinstance(piece.place, MigratingGroup):
            here.append(piece)
        if piece.place is not None:
            address = piece.place.address if isinstance(piece.place, MigratingGroup) else piece.place
            remote.setdefault(address, []).append(piece)
    tombstones = tombstones_between(pieces)
    streams: list[Iterator[tuple[bytes, bytes | None]]] = []
    if here:
        streams.append(_local(here, local, reverse))
    streams.append((key, None) for key in sorted(tombstones, reverse=reverse))
    streams.extend(open_remote(address, parts, reverse) for address, parts in remote.items())
    return _merged(streams, reverse)


def _local(pieces: Sequence[Piece], local: StateReader, reverse: bool) -> Entries:
    start, stop = pieces_span(pieces)
    entries = local.scan(start, stop, reverse=reverse)
    if len(pieces) == 1:
        return entries
    wanted = frozenset(piece.prefix for piece in pieces)
    return (entry for entry in entries if entry[0][:4] in wanted)


def _merged(streams: Sequence[Iterator[tuple[bytes, bytes | None]]], reverse: bool) -> Entries:
    """Streams in the same order; of equal keys the first stream's entry counts, and None hides the key."""
    last: bytes | None = None
    # The merge is stable: of equal keys the one of the earlier stream comes first.
    for key, value in heapq.merge(*streams, key=lambda entry: entry[0], reverse=reverse):
        if key != last:
            last = key
            if value is not None:
                yield key, value


class HybridSnapshot(StateSnapshot):
    """A view of the local store, and a copy in memory of what is at peers.

    The copy makes it fit for tests and for stages with little remote state; a checkpoint takes a snapshot
    of each store where it is.
    """

    def __init__(self, places: GroupPlaces, local: StateSnapshot, open_remote: OpenRemote) -> None:
        self._places = places.frozen()
        self._local = local
        self._remote = MemoryBackend()
        remote: dict[str, list[Piece]] = {}
        for piece in self._places.pieces(None, None):
            if piece.place is not None:
                address = piece.place.address if isinstance(piece.place, MigratingGroup) else piece.place
                remote.setdefault(address, []).append(piece)
        for address, pieces in remote.items():
            self._remote.write(list(open_remote(address, pieces, False)))
        self._remote.delete_many(tombstones_between(self._places.pieces(None, None)))
        self._released = False

    def _check(self) -> None:
        if self._released:
            raise StateError("this snapshot was released; take a new one")

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; keys of groups that were not owned are refused (FencedError)."""
        self._check()
        self._places.check_owned(set(map(GROUP_OF, keys)))
        local, remote = self._local.get_many(keys), self._remote.get_many(keys)
        places = [self._places.by_group[group] for group in map(GROUP_OF, keys)]
        return [
            remote_value if isinstance(place, str) or (place is not None and value is None) else value
            for place, value, remote_value in zip(places, local, remote, strict=True)
        ]

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Entries:
        """Entries of a range of the groups that were owned."""
        self._check()
        pieces = self._places.pieces(start, stop)
        return open_scan(pieces, self._local, self._scan_copy, reverse)

    def _scan_copy(self, address: str, pieces: Collection[Piece], reverse: bool) -> Entries:
        start, stop = pieces_span(pieces)
        wanted = frozenset(piece.prefix for piece in pieces)
        entries = self._remote.scan(start, stop, reverse=reverse)
        return (entry for entry in entries if PREFIX_OF(entry[0]) in wanted)

    def release(self) -> None:
        """Free the view and the copy; safe to call twice."""
        self._released = True
        self._local.release()
        self._remote.close()
