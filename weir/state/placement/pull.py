"""Fetches the key groups of one subtask that are on their way here, chunk by chunk, beside its reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

from weir.state.api import StateBackend
from weir.state.images.image_client import is_image
from weir.state.pieces import pieces_of
from weir.state.placement.group_places import MigratingGroup, group_bounds, state_bounds
from weir.state.placement.listed_peers import ListedPeers, bytes_of
from weir.state.placement.ownership import GroupOwnership


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
            Start of the next chunk (None: that was the end, which a chunk shows that is smaller than asked for), keys
            and bytes fetched.

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
        for piece in pieces_of(self._local, chunk):
            if not self._keep_absent(migrating, version, piece):
                return start, 0, 0
        size_bytes = bytes_of(chunk)
        return chunk[-1][0] + b"\0" if size_bytes >= bytes_max else None, len(chunk), size_bytes

    def _is_void(self, migrating: MigratingGroup, version: int) -> bool:
        """Whether what was read from the peer does not count any more; the caller has the lock."""
        return migrating.version != version or self._places.get(migrating.group) is not migrating

    def _is_untouched(self, migrating: MigratingGroup, first: bytes, last: bytes) -> bool:
        """Whether no key of the range (ends included) was fetched, written or deleted here; the caller has the lock."""
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
            puts = chunk
            # Nothing is, as a rule, of state that is seldom used: one look is cheaper than one for each key.
            if not self._is_untouched(migrating, chunk[0][0], chunk[-1][0]):
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
        peer = ownership.client(migrating.address)
        for start, stop in group_bounds(migrating.group, self._places.state_ids):
            peer.delete_range(start, stop)
        with self._lock:
            ownership.cleaning.discard(migrating.group)
