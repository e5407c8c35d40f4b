"""Packed keys of a subtask at its peers: writes gather and travel with the next read, one call at a time for each peer.

So reads see all earlier writes, although the writer does not wait for them; and a batch of rows costs one round trip,
not one for each thing that its cache evicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from weir.errors import WeirError
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys, join_keys
from weir.state.placement.group_places import Place
from weir.state.placement.remote import PackedReply, RemoteStateClient

#: Gathered writes leave when they are this many bytes; one more call of as many may be under way.
_PUT_BYTES = 128 << 10
#: Bytes of keys and values of one read; with the writes before it they stay below half of the lowest message limit.
_GET_BYTES = 320 << 10
#: What an entry adds to a message beside its key and value.
_ENTRY_BYTES = 5

#: Ranges ``start <= i < stop`` of keys.
Ranges = list[tuple[int, int]]
#: Which keys are at which address; None: here.
Spans = dict[str | None, Ranges]


class PackedPeer:
    """Reads and writes at one peer. Not thread-safe: the backend's lock guards it.

    After a failure it is unknown what the peer has: every later call raises the same.
    """

    def __init__(self, client: RemoteStateClient) -> None:
        self._client = client
        self._gathered: list[tuple[PackedKeys, np.ndarray]] = []
        self._gathered_bytes = 0
        self._under_way: Callable[[], PackedReply] | None = None
        self._failure: WeirError | None = None

    def put(self, keys: PackedKeys, rows: np.ndarray) -> None:
        """Write; the peer has it at the next read or :meth:`settle` at the latest.

        Raises:
            FencedError, ConnectionLostError, StateError: an earlier call failed.
        """
        if self._failure is not None:
            raise self._failure
        width = rows.shape[1]
        if self._gathered and self._gathered[0][1].shape[1] != width:
            self._start(None, width)
        for start, stop in keys.cut(_PUT_BYTES, width + _ENTRY_BYTES):
            part = keys.part(start, stop)
            self._gathered.append((part, rows[start:stop]))
            self._gathered_bytes += part.size_bytes + (width + _ENTRY_BYTES) * len(part)
            if self._gathered_bytes >= _PUT_BYTES:
                self._start(None, width)

    def start_get(self, keys: PackedKeys, value_bytes: int) -> Callable[[], PackedReply]:
        """Send a read, or the first part of it; the function that is returned waits for the values."""
        cuts = list(keys.cut(_GET_BYTES, value_bytes + _ENTRY_BYTES))
        self._start(keys.part(*cuts[0]), value_bytes)

        def wait() -> PackedReply:
            replies = []
            for cut in cuts[1:]:
                replies.append(self._wait())
                self._start(keys.part(*cut), value_bytes)
            replies.append(self._wait())
            if len(replies) == 1:
                return replies[0]
            return np.concatenate([reply[0] for reply in replies]), np.concatenate(
                [reply[1] for reply in replies]
            )

        return wait

    def settle(self) -> None:
        """Return when the peer has every write.

        Raises:
            FencedError, ConnectionLostError, StateError: it has not.
        """
        if self._gathered:
            self._start(None, self._gathered[0][1].shape[1])
        self._wait()

    def _start(self, keys: PackedKeys | None, value_bytes: int) -> None:
        """Send what was gathered, and a read of ``keys``."""
        if self._gathered and self._gathered[0][1].shape[1] != value_bytes:
            self.settle()
        self._wait()
        puts = None
        if self._gathered:
            puts = (
                join_keys([part for part, _ in self._gathered]),
                np.concatenate([rows for _, rows in self._gathered]),
            )
        self._gathered, self._gathered_bytes = [], 0
        self._under_way = self._client.start_put_and_get(puts, keys, value_bytes)

    def _wait(self) -> PackedReply:
        """The reply of the call under way; without one an empty one."""
        if self._failure is not None:
            raise self._failure
        under_way, self._under_way = self._under_way, None
        try:
            return under_way() if under_way is not None else _NOTHING
        except WeirError as error:
            self._failure = error
            raise


_NOTHING: PackedReply = (np.empty(0, dtype=np.bool_), np.empty((0, 0), dtype=np.uint8))


class PackedPeers:
    """The local store and the peers of one backend. Not thread-safe: the backend's lock guards it."""

    def __init__(self, local: StateBackend, client: Callable[[str], RemoteStateClient]) -> None:
        self._local = local
        self._client = client
        self._peers: dict[str, PackedPeer] = {}
        #: Keys read from and written to peers, and bytes of them and their values.
        self.gets = self.puts = self.bytes = 0

    def get(self, keys: PackedKeys, value_bytes: int, spans: Spans) -> PackedReply:
        """Read packed values, as ``StateBackend.get_packed``."""
        waiting = [
            (ranges, self._peer(address).start_get(keys.parts(ranges), value_bytes))
            for address, ranges in spans.items()
            if address is not None
        ]
        if not waiting:
            return self._local.get_packed(keys, value_bytes)
        if len(spans) == 1:
            return self._count(keys, spans, waiting[0][1]())
        present = np.zeros(len(keys), dtype=np.bool_)
        rows = np.zeros((len(keys), value_bytes), dtype=np.uint8)
        here = spans.get(None)
        if here is not None:
            _scatter(present, rows, here, self._local.get_packed(keys.parts(here), value_bytes))
        for ranges, wait in waiting:
            _scatter(present, rows, ranges, self._count(keys, {"": ranges}, wait()))
        return present, rows[present]

    def put(self, keys: PackedKeys, rows: np.ndarray, spans: Spans) -> None:
        """Write packed rows, as ``StateBackend.put_packed``; peers get them later."""
        for address, ranges in spans.items():
            if address is not None:
                for start, stop in ranges:
                    self._peer(address).put(keys.part(start, stop), rows[start:stop])
                    self.puts += stop - start
                    self.bytes += keys.part(start, stop).size_bytes + (stop - start) * rows.shape[1]
            elif len(spans) == 1:
                self._local.put_packed(keys, rows)
            else:
                here = np.concatenate([rows[start:stop] for start, stop in ranges])
                self._local.put_packed(keys.parts(ranges), here)

    def _count(self, keys: PackedKeys, spans: Spans, reply: PackedReply) -> PackedReply:
        """Account for the reply of a peer."""
        self.gets += len(reply[0])
        self.bytes += reply[1].size
        self.bytes += sum(keys.part(*bounds).size_bytes for ranges in spans.values() for bounds in ranges)
        return reply

    def settle(self) -> None:
        """Return when every peer has what was written."""
        for peer in self._peers.values():
            peer.settle()

    def _peer(self, address: str) -> PackedPeer:
        if address not in self._peers:
            self._peers[address] = PackedPeer(self._client(address))
        return self._peers[address]


def spans_of(runs: Iterable[tuple[bytes, int, int]], places: Mapping[bytes, Place]) -> Spans:
    """Where the keys of runs ``(group, start, stop)`` are, none of them on its way here; neighbours in one range."""
    spans: Spans = {}
    for group, start, stop in runs:
        place = places[group]
        ranges = spans.setdefault(place if isinstance(place, str) else None, [])
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    return spans


def _scatter(
    present: np.ndarray, rows: np.ndarray, ranges: Sequence[tuple[int, int]], reply: PackedReply
) -> None:
    """Enter the reply for the keys of ``ranges`` at their places."""
    at = np.concatenate([np.arange(start, stop) for start, stop in ranges])
    found = at[reply[0]]
    present[found] = True
    rows[found] = reply[1]
