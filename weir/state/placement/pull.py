"""Fetches the key groups of one subtask that are on their way here, chunk by chunk, beside its reads and writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from weir.state.api import StateBackend
from weir.state.images.image_client import is_image
from weir.state.layout import GROUP_OF
from weir.state.pieces import pieces_of
from weir.state.placement.group_places import MigratingGroup, group_bounds, state_bounds
from weir.state.placement.listed_peers import ListedPeers, bytes_of
from weir.state.placement.ownership import GroupOwnership


class Pull:
    """Made by ``PlacedStore``; called by the threads of ``weir.state.placement.migration`` and of heartbeats.

    Heartbeats do not wait for the lock: it is held while rows wait for a store elsewhere, which may take seconds.
    """

    def __init__(self, local: StateBackend, ownership: GroupOwnership, counters: ListedPeers) -> None:
        self._local = local
        self._ownership = ownership
        self._places = ownership.places
        self._lock = ownership.lock
        self._counters = counters

    def migrating(self) -> list[MigratingGroup]:
        """The groups that are on their way here; without the lock."""
        return self._places.migrating()

    def unsettled_count(self) -> int:
        """Groups that are migrating, or complete here but not yet gone from the peer; without the lock."""
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

    def fetch_groups(
        self, groups: Sequence[MigratingGroup], bytes_max: int
    ) -> tuple[list[MigratingGroup], int, int]:
        """Fetch small groups of one peer by one call, and keep what is neither here nor deleted here.

        Args:
            groups: of :meth:`migrating`.
            bytes_max: about how many bytes of keys and values.

        Returns:
            Those of which everything is here now, keys and bytes fetched.

        Raises:
            FencedError, ConnectionLostError, StateError: the peer or the local store failed.
        """
        in_order = sorted(groups, key=lambda migrating: migrating.group)
        versions = [migrating.version for migrating in in_order]
        bounds = [
            state_bounds(migrating.group, state_id)
            for migrating in in_order
            for state_id in self._places.state_ids
        ]
        prefixes = [prefix for prefix, _ in bounds]
        peer = self._ownership.client(in_order[0].address)
        chunk = list(peer.scan(bounds[0][0], bounds[-1][1], prefixes=prefixes, bytes_max=bytes_max))
        size_bytes = bytes_of(chunk)
        # Where the chunk is full, later groups are not in it, and of its last one there may be more.
        cut = GROUP_OF(chunk[-1][0]) if size_bytes >= bytes_max else None
        whole: list[MigratingGroup] = []
        start = 0
        for migrating, version in zip(in_order, versions, strict=True):
            group = migrating.group.to_bytes(2, "big")
            if cut is not None and group >= cut:
                break
            stop = bisect_right(chunk, group, start, key=lambda entry: GROUP_OF(entry[0]))
            found, start = chunk[start:stop], stop
            if all(self._keep_absent(migrating, version, piece) for piece in pieces_of(self._local, found)):
                whole.append(migrating)
        return whole, len(chunk), size_bytes

    def _is_void(self, migrating: MigratingGroup, version: int) -> bool:
        """Return whether what was read from the peer does not count any more; the caller has the lock."""
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

    def arrived(self, groups: Sequence[MigratingGroup]) -> None:
        """Every key of these groups is here: from now on they are local, and no read asks the peer.

        An image stays as it is; it is closed when no other group of this subtask needs it. The copy of a peer is to be
        deleted by :meth:`clean`.

        Raises:
            StateError: the local store failed.
        """
        ownership = self._ownership
        with self._lock:
            ownership.check_open()
            self._local.flush()
            for migrating in groups:
                if _copy_at(migrating):
                    # First: whoever counts without the lock does not miss it.
                    ownership.cleaning.add(migrating.group)
                self._places.put(migrating.group, None)
                migrating.tombstones.clear()
                if is_image(migrating.address):
                    ownership.peers.close_images({group.address for group in self._places.migrating()})

    def clean(self, migrating: MigratingGroup) -> None:
        """Delete the peer's copy of a group that has arrived; an image stays.

        Raises:
            FencedError, ConnectionLostError, StateError: it could not be deleted.
        """
        address = _copy_at(migrating)
        if not address:
            return
        peer = self._ownership.client(address)
        for start, stop in group_bounds(migrating.group, self._places.state_ids):
            peer.delete_range(start, stop)
        with self._lock:
            self._ownership.cleaning.discard(migrating.group)


def _copy_at(migrating: MigratingGroup) -> str:
    """Address of the peer whose copy is to be deleted; "": there is none."""
    return migrating.copy_at if is_image(migrating.address) else migrating.address
