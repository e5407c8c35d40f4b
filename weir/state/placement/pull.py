"""Fetches the key groups of one subtask that are on their way here, chunk by chunk, beside its reads and writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from weir.state.api import StateBackend
from weir.state.images.image_client import is_image
from weir.state.placement.group_places import MigratingGroup, state_bounds
from weir.state.placement.listed_peers import ListedPeers, bytes_of
from weir.state.placement.ownership import GroupOwnership

#: Fetched keys that are kept at a time, while other threads wait for the subtask's state: 1 to 2 ms.
_KEPT_AT_ONCE = 500
#: Fetched entries of this size or more are staged if they can be: below, a file of their own does not pay.
STAGED_BYTES_MIN = 128 << 10


class Pull:
    """Made by ``PlacedStore``; called by the threads of ``weir.state.placement.migration`` and of heartbeats."""

    def __init__(self, local: StateBackend, ownership: GroupOwnership, counters: ListedPeers) -> None:
        self._local = local
        self._ownership = ownership
        self._places = ownership.places
        self._lock = ownership.lock
        self._counters = counters

    def migrating(self) -> list[MigratingGroup]:
        """The groups that are on their way here."""
        with self._lock:
            return self._places.migrating()

    def unsettled_count(self) -> int:
        """Groups that are migrating, or complete here but not yet gone from the peer."""
        with self._lock:
            return len(self._places.migrating()) + len(self._ownership.cleaning)

    def fetch(self, migrating: MigratingGroup, start: bytes, bytes_max: int) -> tuple[bytes | None, int, int]:
        """Fetch a chunk of a group and keep what is neither here nor deleted here.

        Other threads wait only while a part of the chunk is written, not while it is fetched.

        Args:
            migrating: one of :meth:`migrating`.
            start: first key of the chunk; ``b""``: the group's first.
            bytes_max: about how many bytes of keys and values.

        Returns:
            Start of the next chunk (None: that was the end), keys and bytes fetched.

        Raises:
            FencedError, ConnectionLostError, StateError: the peer or the local store failed.
        """
        version = migrating.version
        bounds = [state_bounds(migrating.group, state_id) for state_id in self._places.state_ids]
        prefixes = [prefix for prefix, _ in bounds]
        first = max(start, bounds[0][0])
        peer = self._ownership.client(migrating.address)
        chunk = list(peer.scan(first, bounds[-1][1], prefixes=prefixes, bytes_max=bytes_max))
        if not chunk:
            return None, 0, 0
        for _, entries in groupby(chunk, key=lambda entry: entry[0][:4]):
            if not self._take_in(migrating, version, list(entries)):
                return start, 0, 0
        return chunk[-1][0] + b"\0", len(chunk), bytes_of(chunk)

    def _take_in(
        self, migrating: MigratingGroup, version: int, entries: Sequence[tuple[bytes, bytes]]
    ) -> bool:
        """Keep entries of one state of a group; False: they are void, read them again.

        Many at once if nothing of their range is here, which is true of state that is seldom used. Else bit by bit,
        because those must be left out that this subtask has written or deleted since.
        """
        first, last = entries[0][0], entries[-1][0]
        if bytes_of(entries) >= STAGED_BYTES_MIN and self._is_untouched(migrating, first, last):
            staged = self._local.stage(entries)
            try:
                with self._lock:
                    self._ownership.check_open()
                    if self._is_void(migrating, version):
                        return False
                    if self._is_untouched(migrating, first, last):
                        staged.commit()
                        self._counters.count_fetched(entries)
                        return True
            finally:
                staged.discard()
        for begin in range(0, len(entries), _KEPT_AT_ONCE):
            if not self._keep_absent(migrating, version, entries[begin : begin + _KEPT_AT_ONCE]):
                return False
            # Whoever waits for the lock or the GIL goes first.
            time.sleep(0)
        return True

    def _is_void(self, migrating: MigratingGroup, version: int) -> bool:
        """Whether what was read from the peer does not count any more; the caller has the lock."""
        return migrating.version != version or self._places.get(migrating.group) is not migrating

    def _is_untouched(self, migrating: MigratingGroup, first: bytes, last: bytes) -> bool:
        """Whether no key of the range (ends included) was fetched, written or deleted here."""
        with self._lock:
            self._ownership.check_open()
            if any(first <= key <= last for key in migrating.tombstones):
                return False
            return next(iter(self._local.scan(first, last + b"\0")), None) is None

    def _keep_absent(
        self, migrating: MigratingGroup, version: int, chunk: Sequence[tuple[bytes, bytes]]
    ) -> bool:
        """Keep what this subtask has not written or deleted since; False: the chunk is void, read it again."""
        with self._lock:
            self._ownership.check_open()
            if self._is_void(migrating, version):
                return False
            here = self._local.get_many([key for key, _ in chunk])
            puts = [
                entry
                for entry, value in zip(chunk, here, strict=True)
                if value is None and entry[0] not in migrating.tombstones
            ]
            if puts:
                self._local.write(puts)
            self._counters.count_fetched(chunk)
            return True

    def complete(self, migrating: MigratingGroup) -> None:
        """Every key of the group is here: from now on it is local, and the peer's copy is deleted.

        An image stays as it is; it is closed when no other group of this subtask needs it.

        Raises:
            FencedError, ConnectionLostError, StateError: the peer's copy could not be deleted.
        """
        ownership = self._ownership
        with self._lock:
            ownership.check_open()
            self._local.flush()
            self._places.put(migrating.group, None)
            migrating.tombstones.clear()
            if is_image(migrating.address):
                ownership.peers.close_images({group.address for group in self._places.migrating()})
                return
            ownership.cleaning.add(migrating.group)
        for state_id in self._places.state_ids:
            ownership.client(migrating.address).delete_range(*state_bounds(migrating.group, state_id))
        with self._lock:
            ownership.cleaning.discard(migrating.group)
