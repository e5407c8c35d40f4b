"""The state of one keyed subtask, wherever it is: in the shared local store, in a peer's, or on its way here.

=========  ==============================  =====================================  =================================
place      read                            put                                    delete
=========  ==============================  =====================================  =================================
local      local store                     local store                            local store
remote     peer, one call per batch        peer                                   peer
migrating  local store; what is not there  local store                            local store, and a tombstone that
           comes from the peer and stays                                          hides the peer's copy
restored   as migrating, from images of a  local store                            as migrating
           checkpoint instead of a peer
=========  ==============================  =====================================  =================================

A write is atomic within each store that it touches. Keys of groups that the subtask does not own are refused
(FencedError): an owner that was replaced changes nothing, here or at a peer. See docs/design/0001.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from weir.errors import StateError
from weir.state.api import StateBackend, StateSnapshot, StoreStats
from weir.state.images.image_client import is_image
from weir.state.packed import PackedKeys
from weir.state.placement.group_places import (
    GROUP_OF,
    GroupPlaces,
    HeldGroup,
    MigratingGroup,
    Piece,
    Place,
    pieces_span,
    state_bounds,
)
from weir.state.placement.hybrid_views import HybridSnapshot, open_scan
from weir.state.placement.packed_peer import PackedPeers, Spans, spans_of
from weir.state.placement.remote import Connect, RemoteStateClient
from weir.state.tables.capture import WriteHold

#: Asks the control plane for the addresses of key groups.
Locate = Callable[[Sequence[int]], Mapping[int, str]]
#: Fetched keys that are kept at a time, while other threads wait for this backend: 1 to 2 ms.
_KEPT_AT_ONCE = 500
#: Fetched entries of this size or more are staged if they can be: below, a file of their own does not pay.
STAGED_BYTES_MIN = 128 << 10


def _held(place: Place) -> HeldGroup:
    if isinstance(place, MigratingGroup):
        return HeldGroup("migrating", place.address, tuple(place.tombstones))
    return HeldGroup("local") if place is None else HeldGroup("remote", place)


class HybridBackend(StateBackend):
    """See the module. One per keyed subtask, shared by its operators. Methods may be called from any thread.

    Args:
        local: the task manager's store; it stays open when this is closed.
        address: the task manager's own address: state located there is local.
        state_ids: the states of the subtask's stage; other entries of the store are invisible.
        connect: makes the client of a peer, or of images (``weir.state.images.image_client``).
        use_migrate: whether groups that are adopted from a peer are fetched (else they stay there).
        locate: asked before every batch of keys if given (no ``useCache``); None: what ``adopt`` said counts.
    """

    def __init__(
        self,
        local: StateBackend,
        address: str,
        state_ids: Iterable[int],
        connect: Connect,
        *,
        use_migrate: bool = False,
        locate: Locate | None = None,
    ) -> None:
        self.address = address
        self._local = local
        self._places = GroupPlaces(state_ids)
        self._connect = connect
        self._use_migrate = use_migrate
        self._locate = locate
        #: Live: the clients read it at every call.
        self._epochs: dict[int, int] = {}
        self._clients: dict[str, RemoteStateClient] = {}
        self._packed = PackedPeers(local, self.client)
        #: Groups that are complete here while the peer's copy is being deleted.
        self._cleaning: set[int] = set()
        self._lock = threading.RLock()
        self._hold: WriteHold | None = None
        self._closed = False
        self._gets = self._puts = self._deletes = 0
        self._remote_gets = self._remote_puts = self._remote_bytes = 0

    # --- ownership ---------------------------------------------------------------------------------------------

    def adopt(
        self,
        groups: Mapping[int, int],
        location: str | None = None,
        *,
        migrate: bool | None = None,
        tombstones: Mapping[int, Iterable[bytes]] | None = None,
        keeps_own: bool = False,
    ) -> None:
        """Own these groups from now on; called by the subtask when it deploys and at a handover.

        Calls nobody, but opens images of a checkpoint.

        Args:
            groups: owner epoch of each key group.
            location: address of the store, or of images (always fetched), where their state is; None or the own
                address: here.
            migrate: fetch them from there; None: as the strategy says.
            tombstones: by key group, keys that are there but were deleted since.
            keeps_own: what is here of these groups is newer than what is there; else it is of no use, and deleted.

        Raises:
            StateError: one of them is still being fetched from an earlier owner, or an image cannot be opened.
            CheckpointError: an image cannot be fetched.
        """
        fetch = self._use_migrate if migrate is None else migrate
        if location is not None and is_image(location):
            fetch = True
            # Now, and not at the first read: in the meantime the checkpoint may expire.
            self.client(location)
        with self._lock:
            self._check_open()
            self._check_settled(groups)
            for group, epoch in groups.items():
                place: Place = None
                if location is not None and location != self.address:
                    place = MigratingGroup(group, location) if fetch else location
                if isinstance(place, MigratingGroup):
                    place.tombstones.update((tombstones or {}).get(group, ()))
                    if not keeps_own:
                        self._clear_leftovers(group)
                self._epochs[group] = epoch
                self._places.put(group, place)

    def release(self, groups: Iterable[int]) -> dict[int, str]:
        """Own these groups no longer; gives the address where the state of each is, for the handover.

        The subtask has written its dirty keys before. Later calls that touch these groups raise FencedError.

        Raises:
            FencedError: one of them is not owned.
            StateError: one of them is still being fetched from an earlier owner. Nothing was released.
        """
        wanted = list(groups)
        with self._lock:
            self._check_open()
            self._check_settled(wanted)
            for group in wanted:
                self._places.get(group)
            # With the epochs that are in force until then.
            self._packed.settle()
            locations = {}
            for group in wanted:
                place = self._places.remove(group)
                locations[group] = place if isinstance(place, str) else self.address
                del self._epochs[group]
            return locations

    def migrate(self, groups: Iterable[int]) -> None:
        """Fetch groups that are in a peer's store, before that peer is drained. Local ones stay as they are."""
        with self._lock:
            self._packed.settle()
            for group in groups:
                place = self._places.get(group)
                if isinstance(place, str):
                    self._clear_leftovers(group)
                    self._places.put(group, MigratingGroup(group, place))

    def locations(self) -> dict[int, str]:
        """Address of the store of every owned group; of a migrating one the peer's, if it comes from a peer."""
        return {
            group: self.address if not held.address or is_image(held.address) else held.address
            for group, held in self.places().items()
        }

    def places(self) -> dict[int, HeldGroup]:
        """Where every owned group is now; cheap. At a checkpoint this comes first, then images of the stores.

        In that order no key is missed: keys move from a peer to the local store only.
        """
        with self._lock:
            self._check_open()
            return {
                int.from_bytes(group, "big"): _held(place) for group, place in self._places.by_group.items()
            }

    def epochs(self) -> dict[int, int]:
        """Owner epoch of every owned group."""
        with self._lock:
            return dict(self._epochs)

    def client(self, address: str) -> RemoteStateClient:
        """The client of a peer, with this subtask's owner epochs."""
        with self._lock:
            if address not in self._clients:
                self._clients[address] = self._connect(address, self._epochs)
            return self._clients[address]

    def _check_settled(self, groups: Iterable[int]) -> None:
        moving = {migrating.group for migrating in self._places.migrating()} | self._cleaning
        unsettled = moving.intersection(groups)
        if unsettled:
            place = self._places.get(min(unsettled))
            if isinstance(place, MigratingGroup) and is_image(place.address):
                raise StateError(
                    f"key group {min(unsettled)} is still being restored from its checkpoint; "
                    "it can move again when that is complete"
                )
            raise StateError(
                f"key group {min(unsettled)} is still being fetched from its former owner; "
                "it can move again when its migration is complete"
            )

    def _clear_leftovers(self, group: int) -> None:
        """What is here of a group that comes from elsewhere is older than that; it must not count as newer."""
        for state_id in self._places.state_ids:
            start, stop = state_bounds(group, state_id)
            if next(iter(self._local.scan(start, stop)), None) is not None:
                self._local.delete_range(start, stop)

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this subtask's state is closed")

    def hold_writes(self) -> WriteHold:
        """Let later writes wait until images of the stores are taken; called by the subtask's thread at a barrier."""
        self._wait_for_hold()
        self._hold = WriteHold()
        return self._hold

    def writes_wait(self) -> bool:
        """See ``StateBackend``."""
        return self._hold is not None and not self._hold.is_released

    def is_settled(self, group: int) -> bool:
        """See ``StateBackend``."""
        with self._lock:
            place = self._places.by_group.get(group.to_bytes(2, "big"), MigratingGroup(group, ""))
            return not isinstance(place, MigratingGroup)

    def give_back(self, group: int, state_id: int, size_bytes: int) -> None:
        """See ``StateBackend``; what is at a peer, its store gives back when it merges its files."""
        with self._lock:
            is_local = self._places.by_group.get(group.to_bytes(2, "big"), "") is None
        if is_local:
            self._local.give_back(group, state_id, size_bytes)

    def is_stalled(self) -> bool:
        """See ``StateBackend``; of the local store."""
        return self._local.is_stalled()

    def _wait_for_hold(self) -> None:
        """Before a write, and before the lock: whoever ends the hold may need that."""
        if self._hold is not None:
            self._hold.wait()

    # --- reads and writes --------------------------------------------------------------------------------------

    def _touched(self, keys: Sequence[bytes]) -> dict[bytes, Place] | None:
        """The places of the groups of keys; None: all are local.

        Raises:
            FencedError: a group is not owned.
        """
        return self._touched_groups(set(map(GROUP_OF, keys)))

    def _touched_groups(self, groups: set[bytes]) -> dict[bytes, Place] | None:
        """As :meth:`_touched`, of groups."""
        self._places.check_owned(groups)
        located: Mapping[int, str] = {}
        if self._locate is not None and groups:
            located = self._locate([int.from_bytes(group, "big") for group in groups])
        if self._places.all_local:
            return None
        places = {group: self._places.by_group[group] for group in groups}
        for group, place in places.items():
            number = int.from_bytes(group, "big")
            if isinstance(place, str) and number in located:
                places[group] = None if located[number] == self.address else located[number]
        return places if any(place is not None for place in places.values()) else None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; one call per peer, while the local store is read."""
        with self._lock:
            self._check_open()
            self._gets += len(keys)
            places = self._touched(keys)
            if places is None:
                return self._local.get_many(keys)
            self._packed.settle()
            at = [places[group] for group in map(GROUP_OF, keys)]
            remote: dict[str, list[int]] = {}
            here: list[int] = []
            for index, place in enumerate(at):
                if isinstance(place, str):
                    remote.setdefault(place, []).append(index)
                else:
                    here.append(index)
            values: list[bytes | None] = [None] * len(keys)
            local_keys = [keys[index] for index in here]
            for index, value in zip(here, self._fetch(keys, remote, local_keys, values), strict=True):
                values[index] = value
            missing: dict[str, list[int]] = {}
            for index in here:
                place = at[index]
                if (
                    values[index] is None
                    and isinstance(place, MigratingGroup)
                    and keys[index] not in place.tombstones
                ):
                    place.wanted += 1
                    missing.setdefault(place.address, []).append(index)
            if missing:
                self._fetch(keys, missing, [], values)
                found = [index for indexes in missing.values() for index in indexes]
                self._keep(keys, values, found)
            return values

    def _fetch(
        self,
        keys: Sequence[bytes],
        remote: Mapping[str, list[int]],
        local_keys: Sequence[bytes],
        values: list[bytes | None],
    ) -> list[bytes | None]:
        """Fill in values at the positions that each peer has; gives the local values of ``local_keys``."""
        if not local_keys and len(remote) == 1:
            # Nothing to overlap with; the plain call is the faster one.
            ((address, indexes),) = remote.items()
            wanted = [keys[index] for index in indexes]
            self._fill(values, indexes, wanted, self.client(address).get_many(wanted))
            return []
        waiting = []
        for address, indexes in remote.items():
            wanted = [keys[index] for index in indexes]
            waiting.append((indexes, wanted, self.client(address).start_get(wanted)))
        local_values = self._local.get_many(local_keys) if local_keys else []
        for indexes, wanted, wait in waiting:
            self._fill(values, indexes, wanted, wait())
        return local_values

    def _fill(
        self,
        values: list[bytes | None],
        indexes: list[int],
        wanted: list[bytes],
        answers: list[bytes | None],
    ) -> None:
        for index, value in zip(indexes, answers, strict=True):
            values[index] = value
        self._remote_gets += len(indexes)
        self._remote_bytes += sum(map(len, wanted)) + sum(len(value) for value in answers if value)

    def _keep(self, keys: Sequence[bytes], values: Sequence[bytes | None], indexes: Iterable[int]) -> None:
        """First use: a fetched value is local from now on. What is absent at the peer stays absent here."""
        puts = [(keys[index], value) for index in indexes if (value := values[index]) is not None]
        if puts:
            self._local.write(puts)

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes; atomic within each store."""
        self._wait_for_hold()
        with self._lock:
            self._check_open()
            places = self._touched([*(key for key, _ in puts), *deletes])
            if places is None:
                self._local.write(puts, deletes)
            else:
                self._write_to(places, puts, deletes)
            self._puts += len(puts)
            self._deletes += len(deletes)

    def _write_to(
        self,
        places: Mapping[bytes, Place],
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
    ) -> None:
        self._packed.settle()
        # The store of a key: a peer's address, or None for the local one.
        stores = {group: place if isinstance(place, str) else None for group, place in places.items()}
        store_puts: dict[str | None, list[tuple[bytes, bytes]]] = {None: []}
        store_deletes: dict[str | None, list[bytes]] = {None: []}
        for entry in puts:
            store_puts.setdefault(stores[entry[0][:2]], []).append(entry)
        for key in deletes:
            store_deletes.setdefault(stores[key[:2]], []).append(key)
        for address in (store_puts | store_deletes).keys() - {None}:
            if address is not None:
                there, gone = store_puts.get(address, []), store_deletes.get(address, [])
                self.client(address).write(there, gone)
                self._remote_puts += len(there)
                self._remote_bytes += sum(len(key) + len(value) for key, value in there)
        self._local.write(store_puts[None], store_deletes[None])
        for key, _ in store_puts[None]:
            if isinstance(place := places[key[:2]], MigratingGroup):
                place.tombstones.discard(key)
        for key in store_deletes[None]:
            if isinstance(place := places[key[:2]], MigratingGroup):
                place.tombstones.add(key)

    def get_packed(self, keys: PackedKeys, value_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """See ``StateBackend``; one call per peer, while the local store is read, with what was written before."""
        with self._lock:
            self._check_open()
            spans = self._spans(keys)
            if spans is None:
                return super().get_packed(keys, value_bytes)
            self._gets += len(keys)
            return self._packed.get(keys, value_bytes, spans)

    def put_packed(self, keys: PackedKeys, rows: np.ndarray) -> None:
        """See ``StateBackend``; writes to peers travel with a later call, or at :meth:`flush`."""
        self._wait_for_hold()
        with self._lock:
            self._check_open()
            spans = self._spans(keys)
            if spans is None:
                super().put_packed(keys, rows)
            else:
                self._puts += len(keys)
                self._packed.put(keys, rows, spans)

    def _spans(self, keys: PackedKeys) -> Spans | None:
        """Where the keys are; None: some are on their way here."""
        runs = [(group.to_bytes(2, "big"), start, stop) for group, start, stop in keys.runs()]
        places = self._touched_groups({group for group, _, _ in runs})
        if places is None:
            return {None: [(0, len(keys))]}
        if any(isinstance(place, MigratingGroup) for place in places.values()):
            return None
        return spans_of(runs, places)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range that belongs to the owned groups, wherever it is."""
        self._wait_for_hold()
        with self._lock:
            self._check_open()
            self._packed.settle()
            for piece in self._places.pieces(start, stop):
                place = piece.place
                if not isinstance(place, str):
                    self._local.delete_range(piece.start, piece.stop)
                if isinstance(place, MigratingGroup) and is_image(place.address):
                    # An image never changes; what it has of the range is hidden key by key.
                    peer = self.client(place.address)
                    entries = peer.scan(piece.start, piece.stop, prefixes=[piece.prefix])
                    place.tombstones.update(key for key, _ in entries)
                elif place is not None:
                    address = place if isinstance(place, str) else place.address
                    self.client(address).delete_range(piece.start, piece.stop)
                if isinstance(place, MigratingGroup):
                    place.version += 1

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of the owned groups in a range, as they are now. Exhaust or drop the iterator."""
        with self._lock:
            self._check_open()
            pieces = self._places.pieces(start, stop)
            if not pieces:
                return iter(())
            if len(pieces) == 1 and pieces[0].place is None:
                return self._local.scan(pieces[0].start, pieces[0].stop, reverse=reverse)
            self._packed.settle()
            return open_scan(pieces, self._local, self._scan_peer, reverse)

    def _scan_peer(
        self, address: str, pieces: Sequence[Piece], reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        start, stop = pieces_span(pieces)
        prefixes = [piece.prefix for piece in pieces]
        return self.client(address).scan(start, stop, prefixes=prefixes, reverse=reverse)

    def snapshot(self) -> StateSnapshot:
        """A consistent view of now; copies what is at peers into memory."""
        with self._lock:
            self._check_open()
            self._packed.settle()
            return HybridSnapshot(self._places, self._local.snapshot(), self._scan_peer)

    def flush(self) -> None:
        """Make every earlier write durable; a peer has done so before it answered."""
        with self._lock:
            self._check_open()
            self._packed.settle()
        self._local.flush()

    def stats(self) -> StoreStats:
        """Counters of this subtask; the sizes are those of the shared local store."""
        self._check_open()
        store = self._local.stats()
        return StoreStats(
            gets=self._gets,
            puts=self._puts,
            deletes=self._deletes,
            memory_bytes=store.memory_bytes,
            disk_bytes=store.disk_bytes,
            remote_gets=self._remote_gets + self._packed.gets,
            remote_puts=self._remote_puts + self._packed.puts,
            remote_bytes=self._remote_bytes + self._packed.bytes,
        )

    def close(self) -> None:
        """Refuse all later calls; the shared store and the connections stay open. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._packed.settle()
            finally:
                self._close_images(())

    def _close_images(self, needed: Collection[str]) -> None:
        for address in [address for address in self._clients if is_image(address) and address not in needed]:
            self._clients.pop(address).close()

    # --- migration, called by weir.state.placement.migration ---------------------------------------------------

    def migrating(self) -> list[MigratingGroup]:
        """The groups that are on their way here."""
        with self._lock:
            return self._places.migrating()

    def unsettled_count(self) -> int:
        """Groups that are migrating, or complete here but not yet gone from the peer."""
        with self._lock:
            return len(self._places.migrating()) + len(self._cleaning)

    def want(self, group: int, weight: int) -> None:
        """Raise the rank of a migrating group, by its parked rows for example; others are left alone."""
        with self._lock:
            place = self._places.get(group)
            if isinstance(place, MigratingGroup):
                place.wanted += weight

    def pull(self, migrating: MigratingGroup, start: bytes, bytes_max: int) -> tuple[bytes | None, int, int]:
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
        peer = self.client(migrating.address)
        chunk = list(peer.scan(first, bounds[-1][1], prefixes=prefixes, bytes_max=bytes_max))
        if not chunk:
            return None, 0, 0
        for _, entries in groupby(chunk, key=lambda entry: entry[0][:4]):
            if not self._take_in(migrating, version, list(entries)):
                return start, 0, 0
        return chunk[-1][0] + b"\0", len(chunk), _bytes_of(chunk)

    def _take_in(
        self, migrating: MigratingGroup, version: int, entries: Sequence[tuple[bytes, bytes]]
    ) -> bool:
        """Keep entries of one state of a group; False: they are void, read them again.

        Many at once if nothing of their range is here, which is true of state that is seldom used. Else bit by bit,
        because those must be left out that this subtask has written or deleted since.
        """
        first, last = entries[0][0], entries[-1][0]
        if _bytes_of(entries) >= STAGED_BYTES_MIN and self._is_untouched(migrating, first, last):
            staged = self._local.stage(entries)
            try:
                with self._lock:
                    self._check_open()
                    if self._is_void(migrating, version):
                        return False
                    if self._is_untouched(migrating, first, last):
                        staged.commit()
                        self._count_fetched(entries)
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
            self._check_open()
            if any(first <= key <= last for key in migrating.tombstones):
                return False
            return next(iter(self._local.scan(first, last + b"\0")), None) is None

    def _count_fetched(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._remote_gets += len(entries)
        self._remote_bytes += _bytes_of(entries)

    def _keep_absent(
        self, migrating: MigratingGroup, version: int, chunk: Sequence[tuple[bytes, bytes]]
    ) -> bool:
        """Keep what this subtask has not written or deleted since; False: the chunk is void, read it again."""
        with self._lock:
            self._check_open()
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
            self._count_fetched(chunk)
            return True

    def complete(self, migrating: MigratingGroup) -> None:
        """Every key of the group is here: from now on it is local, and the peer's copy is deleted.

        An image stays as it is; it is closed when no other group of this subtask needs it.

        Raises:
            FencedError, ConnectionLostError, StateError: the peer's copy could not be deleted.
        """
        with self._lock:
            self._check_open()
            self._local.flush()
            self._places.put(migrating.group, None)
            migrating.tombstones.clear()
            if is_image(migrating.address):
                self._close_images({group.address for group in self._places.migrating()})
                return
            self._cleaning.add(migrating.group)
        for state_id in self._places.state_ids:
            self.client(migrating.address).delete_range(*state_bounds(migrating.group, state_id))
        with self._lock:
            self._cleaning.discard(migrating.group)


def _bytes_of(entries: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(key) + len(value) for key, value in entries)
