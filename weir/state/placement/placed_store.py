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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from typing_extensions import override

from weir.state.api import StateBackend
from weir.state.images.image_client import ImageClient, is_image
from weir.state.layout import GROUP_OF
from weir.state.packed import PackedKeys
from weir.state.placement.changed_keys import ChangedKeys
from weir.state.placement.group_places import MigratingGroup, Piece, Place, pieces_span
from weir.state.placement.listed_peers import ListedPeers
from weir.state.placement.merged_scan import open_scan
from weir.state.placement.ownership import GroupOwnership
from weir.state.placement.packed_peer import PackedPeers, Spans, spans_of
from weir.state.placement.pull import Pull
from weir.state.placement.remote import Connect
from weir.state.tables.capture import WriteHold
from weir.types import StoreStats

#: The place of a group of other owners.
_NOWHERE = MigratingGroup(-1, "")
#: Asks the control plane for the addresses of key groups.
Locate = Callable[[Sequence[int]], Mapping[int, str]]


class PlacedStore(StateBackend):
    """A placed store, one per keyed subtask, shared by its operators. Methods may be called from any thread.

    Args:
        local: the task manager's store; it stays open when this is closed.
        address: the task manager's own address: state located there is local.
        state_ids: the states of the subtask's stage; other entries of the store are invisible.
        connect: makes the client of a peer, or of images (``weir.state.images.image_client``).
        fetches: whether groups that are adopted from a peer are fetched (else they stay there).
        locate: asked before every batch of keys if given; None: what ``adopt`` said counts.
        notes_changes: whether it is noted which keys have changed since images of checkpoints, to relink groups.
    """

    def __init__(
        self,
        local: StateBackend,
        address: str,
        state_ids: Iterable[int],
        connect: Connect,
        *,
        fetches: bool = False,
        locate: Locate | None = None,
        notes_changes: bool = False,
    ) -> None:
        #: What has changed since images of the local store; None: nobody asks.
        self.changes = ChangedKeys() if notes_changes else None
        #: Which groups are owned and where they are.
        self.ownership = GroupOwnership(local, address, state_ids, connect, fetches=fetches)
        self._client = self.ownership.client
        self._listed = ListedPeers(local, self._client)
        self._packed = PackedPeers(local, self._client)
        self.ownership.settle = self._packed.settle
        self.ownership.changes = self.changes
        #: Brings groups here that are on their way.
        self.pull = Pull(local, self.ownership, self._listed)
        self._local = local
        self._places = self.ownership.places
        self._lock = self.ownership.lock
        self._check_open = self.ownership.check_open
        self._locate = locate
        self._hold: WriteHold | None = None
        self._gets = self._puts = self._deletes = 0

    def hold_writes(self) -> WriteHold:
        """Let later writes wait until images of the stores are taken; called by the subtask's thread at a barrier."""
        self.wait_for_hold()
        self._hold = WriteHold()
        return self._hold

    @override
    def writes_wait(self) -> bool:
        return self._hold is not None and not self._hold.is_released

    @override
    def is_settled(self, group: int) -> bool:
        place = self._places.by_group.get(group.to_bytes(2, "big"), _NOWHERE)
        return not isinstance(place, MigratingGroup)

    @override
    def may_hold(self, prefix: bytes) -> bool:
        place = self._places.by_group.get(prefix[:2])
        if isinstance(place, MigratingGroup) and is_image(place.address):
            # Of what a job was restored from, groups without any key are rare, and a look may be a request.
            return True
        return super().may_hold(prefix)

    def give_back(self, group: int, state_id: int, size_bytes: int) -> None:
        """Let room be given back; what is at a peer, its store gives back when it merges its files."""
        with self._lock:
            is_local = self._places.by_group.get(group.to_bytes(2, "big"), "") is None
        if is_local:
            self._local.give_back(group, state_id, size_bytes)

    def is_stalled(self) -> bool:
        """Return whether the local store is stalled."""
        return self._local.is_stalled()

    def image_taken(self, checkpoint_id: int) -> None:
        """The image of the local store for a checkpoint is taken, and what :meth:`hold_writes` began still lasts."""
        if self.changes is not None:
            with self._lock:
                self.changes.image_taken(checkpoint_id)

    def committed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete."""
        if self.changes is not None:
            with self._lock:
                self.changes.committed(checkpoint_id)

    def writes_captured(self) -> bool:
        """Whether the calling thread writes what was captured at a barrier, before images of the stores are taken."""
        return self._hold is not None and self._hold.is_passed_here

    def wait_for_hold(self) -> None:
        """Wait before a write, and before taking the lock: whoever ends the hold may need the lock."""
        if self._hold is not None:
            self._hold.wait()

    def _touched(self, groups: set[bytes]) -> dict[bytes, Place] | None:
        """The places of groups; None: all are local.

        Raises:
            FencedError: a group is not owned.
        """
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
                places[group] = None if located[number] == self.ownership.address else located[number]
        return places if any(place is not None for place in places.values()) else None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; one call per peer, while the local store is read."""
        with self._lock:
            self._check_open()
            self._gets += len(keys)
            places = self._touched(set(map(GROUP_OF, keys)))
            if places is None:
                return self._local.get_many(keys)
            self._packed.settle()
            return self._listed.get(keys, places)

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes; atomic within each store."""
        self.wait_for_hold()
        with self._lock:
            self._check_open()
            places = self._touched({key[:2] for key, _ in puts} | set(map(GROUP_OF, deletes)))
            if self.changes is not None:
                self.changes.note([*(key for key, _ in puts), *deletes])
            if places is None:
                self._local.write(puts, deletes)
            else:
                self._packed.settle()
                self._listed.write(puts, deletes, places)
            self._puts += len(puts)
            self._deletes += len(deletes)

    def get_packed(self, keys: PackedKeys, value_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return packed values; one call per peer goes out while the local store is read, with earlier writes."""
        with self._lock:
            self._check_open()
            spans = self._spans(keys)
            if spans is None:
                return super().get_packed(keys, value_bytes)
            self._gets += len(keys)
            return self._packed.get(keys, value_bytes, spans)

    def put_packed(self, keys: PackedKeys, rows: np.ndarray) -> None:
        """Write packed rows; writes to peers travel with a later call, or at :meth:`flush`."""
        self.wait_for_hold()
        with self._lock:
            self._check_open()
            spans = self._spans(keys)
            if spans is None:
                super().put_packed(keys, rows)
            else:
                self._puts += len(keys)
                if self.changes is not None:
                    self.changes.note(keys.to_list())
                self._packed.put(keys, rows, spans)

    def check_owned(self, groups: set[bytes]) -> None:
        """Refuse key groups (2 bytes each) of other owners.

        Raises:
            FencedError: one of them is not owned.
        """
        with self._lock:
            self._check_open()
            self._places.check_owned(groups)

    def pieces(self, start: bytes | None, stop: bytes | None) -> list[Piece]:
        """What of a range belongs to this subtask, in key order."""
        with self._lock:
            self._check_open()
            return self._places.pieces(start, stop)

    def drop_equal(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Delete entries that still have these values and are in the local store, whole groups of which are here.

        For changes of state that a database has meanwhile. It does not wait for images: with or without these
        entries an image says the same. Groups that are on their way stay as they are, since an older value of a key
        could come with them.
        """
        with self._lock:
            if self.ownership.is_closed:
                return
            by_group = self._places.by_group
            here = [entry for entry in entries if by_group.get(entry[0][:2], "") is None]
            found = self._local.get_many([key for key, _ in here])
            same = [key for (key, value), now in zip(here, found, strict=True) if now == value]
            if same:
                self._local.write((), same)

    def _spans(self, keys: PackedKeys) -> Spans | None:
        """Where the keys are; None: some are on their way here."""
        runs = [(group.to_bytes(2, "big"), start, stop) for group, start, stop in keys.runs()]
        places = self._touched({group for group, _, _ in runs})
        if places is None:
            return {None: [(0, len(keys))]}
        if any(isinstance(place, MigratingGroup) for place in places.values()):
            return None
        return spans_of(runs, places)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range that belongs to the owned groups, wherever it is."""
        self.wait_for_hold()
        with self._lock:
            self._check_open()
            self._packed.settle()
            for piece in self._places.pieces(start, stop):
                if self.changes is not None:
                    self.changes.forget([int.from_bytes(piece.prefix[:2], "big")])
                self._delete_piece(piece)

    def _delete_piece(self, piece: Piece) -> None:
        place = piece.place
        if not isinstance(place, str):
            self._local.delete_range(piece.start, piece.stop)
        if isinstance(place, MigratingGroup) and is_image(place.address):
            # An image never changes; what it has of the range is hidden key by key.
            peer = self._client(place.address)
            entries = peer.scan(piece.start, piece.stop, prefixes=[piece.prefix])
            place.tombstones.update(key for key, _ in entries)
        elif place is not None:
            address = place if isinstance(place, str) else place.address
            self._client(address).delete_range(piece.start, piece.stop)
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

    @override
    def will_scan(self, ranges: Iterable[tuple[bytes, bytes | None]], bytes_max: int) -> None:
        """Prepare for scans of ranges, each within a key group: those of images in an object store begin together."""
        with self._lock:
            self._check_open()
            if self._places.all_local:
                return
            by_address: dict[str, list[tuple[bytes, bytes | None]]] = {}
            for start, stop in ranges:
                place = self._places.by_group.get(start[:2])
                if isinstance(place, MigratingGroup) and is_image(place.address):
                    by_address.setdefault(place.address, []).append((start, stop))
            clients = [(self._client(address), listed) for address, listed in by_address.items()]
        # As a scan, without the lock: it takes long, and nothing in an image changes.
        for client, listed in clients:
            if isinstance(client, ImageClient):
                client.will_scan(listed, bytes_max)

    def _scan_peer(
        self, address: str, pieces: Sequence[Piece], reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        start, stop = pieces_span(pieces)
        prefixes = [piece.prefix for piece in pieces]
        return self._client(address).scan(start, stop, prefixes=prefixes, reverse=reverse)

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
            remote_gets=self._listed.gets + self._packed.gets,
            remote_puts=self._listed.puts + self._packed.puts,
            remote_bytes=self._listed.bytes + self._packed.bytes,
            tables=store.tables,
        )

    def close(self) -> None:
        """Refuse all later calls; the shared store and the connections stay open. Safe to call twice."""
        with self._lock:
            if self.ownership.close():
                try:
                    self._packed.settle()
                finally:
                    self.ownership.peers.close_images()
