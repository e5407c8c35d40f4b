"""Ordered reads over a local store and peers, in one merge."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from weir.state.api import StateReader
from weir.state.placement.group_places import (
    MigratingGroup,
    Piece,
    pieces_span,
    tombstones_between,
)

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
