"""Which key groups a subtask owns, with which epochs, and in which store the state of each is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from weir.errors import StateError
from weir.state.api import StateBackend
from weir.state.images.image_client import is_image
from weir.state.placement.changed_keys import NO_CHANGES_KNOWN, ChangedKeys, ChangesSince
from weir.state.placement.group_places import GroupPlaces, HeldGroup, MigratingGroup, Place, state_bounds
from weir.state.placement.remote import Connect, RemoteStateClient


class Peers:
    """Clients by address, made at first use. Not thread-safe: the lock of the subtask's state guards it."""

    def __init__(self, connect: Connect, epochs: Mapping[int, int]) -> None:
        """``connect`` makes the client of a peer, or of images; ``epochs`` are the owner's and change."""
        self._connect = connect
        self._epochs = epochs
        self._clients: dict[str, RemoteStateClient] = {}

    def client(self, address: str) -> RemoteStateClient:
        """The client of an address, with this subtask's owner epochs.

        Raises:
            CheckpointError, StateError: an image cannot be fetched or opened.
        """
        if address not in self._clients:
            self._clients[address] = self._connect(address, self._epochs)
        return self._clients[address]

    def close_images(self, needed: Collection[str] = ()) -> None:
        """Close the images that are not among ``needed``; connections to peers are shared and stay open."""
        for address in [address for address in self._clients if is_image(address) and address not in needed]:
            self._clients.pop(address).close()


#: Of every group whose state is here: a checkpoint asks for thousands.
_HERE = HeldGroup("local")


class GroupOwnership:
    """Made by ``PlacedStore``, which reads and writes what is owned. Methods may be called from any thread.

    Args:
        local: the task manager's store.
        address: the task manager's own address: state located there is local.
        state_ids: the states of the subtask's stage.
        connect: makes the client of a peer, or of images.
        fetches: groups that are adopted from a peer are fetched (else they stay there).
    """

    def __init__(
        self, local: StateBackend, address: str, state_ids: Iterable[int], connect: Connect, *, fetches: bool
    ) -> None:
        self.address = address
        #: Guards everything of the subtask's state; held for a read or a write, never while a chunk is fetched.
        self.lock = threading.RLock()
        self.places = GroupPlaces(state_ids)
        #: Groups that are complete here while the peer's copy is being deleted.
        self.cleaning: set[int] = set()
        #: Called before a group changes its place: peers must have what was written with the epochs until then.
        self.settle: Callable[[], None] = lambda: None
        #: What has changed since images of the local store; None: nobody asks.
        self.changes: ChangedKeys | None = None
        self._local = local
        self._fetches = fetches
        #: Live: the clients read it at every call.
        self._epochs: dict[int, int] = {}
        self.peers = Peers(connect, self._epochs)
        self._closed = False

    def adopt(
        self,
        groups: Mapping[int, int],
        location: str | None = None,
        *,
        migrate: bool | None = None,
        tombstones: Mapping[int, Iterable[bytes]] | None = None,
        keeps_own: bool = False,
        copy_at: str = "",
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
            copy_at: address of a peer that has a copy, to be deleted when all is here; "": the one at ``location``.

        Raises:
            StateError: one of them is still being fetched from an earlier owner, or an image cannot be opened.
            CheckpointError: an image cannot be fetched.
        """
        fetch = self._fetches if migrate is None else migrate
        if location is not None and is_image(location):
            fetch = True
            # Now, and not at the first read: in the meantime the checkpoint may expire.
            self.client(location)
        with self.lock:
            self.check_open()
            self._check_settled(groups)
            if self.changes is not None:
                self.changes.forget(groups)
            for group, epoch in groups.items():
                place: Place = None
                if location is not None and location != self.address:
                    place = MigratingGroup(group, location) if fetch else location
                if isinstance(place, MigratingGroup):
                    place.tombstones.update((tombstones or {}).get(group, ()))
                    place.copy_at = copy_at
                    if not keeps_own:
                        self._clear_leftovers(group)
                self._epochs[group] = epoch
                self.places.put(group, place)

    def changed(self) -> ChangesSince:
        """What has changed since images of checkpoints, for groups that are about to be released."""
        with self.lock:
            return NO_CHANGES_KNOWN if self.changes is None else self.changes.sealed()

    def absent(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of the keys, of groups that are about to be adopted, that are not in the local store.

        Of a key that is here no tombstone may hide the older one elsewhere: a checkpoint would hide both.

        Raises:
            StateError: the local store failed.
        """
        listed = list(keys)
        with self.lock:
            values = self._local.get_many(listed)
        return [key for key, value in zip(listed, values, strict=True) if value is None]

    def clear_leftovers(self, groups: Iterable[int]) -> None:
        """Delete what is here of groups that are not owned, before anything of them comes.

        Raises:
            StateError: the local store failed.
        """
        with self.lock:
            self.check_open()
            for group in groups:
                if not self.owns(group):
                    self._clear_leftovers(group)

    def release(self, groups: Iterable[int]) -> dict[int, str]:
        """Own these groups no longer; returns the address where the state of each is, for the handover.

        The subtask has written its dirty keys before. Later calls that touch these groups raise FencedError.

        Raises:
            FencedError: one of them is not owned.
            StateError: one of them is still being fetched from an earlier owner. Nothing was released.
        """
        wanted = list(groups)
        with self.lock:
            self.check_open()
            self._check_settled(wanted)
            for group in wanted:
                self.places.get(group)
            self.settle()
            locations = {}
            for group in wanted:
                place = self.places.remove(group)
                locations[group] = place if isinstance(place, str) else self.address
                del self._epochs[group]
            return locations

    def migrate(self, groups: Iterable[int]) -> None:
        """Fetch groups that are in a peer's store, before that peer is drained. Local ones stay as they are."""
        with self.lock:
            self.settle()
            for group in groups:
                place = self.places.get(group)
                if isinstance(place, str):
                    self._clear_leftovers(group)
                    self.places.put(group, MigratingGroup(group, place))

    def locations(self) -> dict[int, str]:
        """Address of the store of every owned group; of a migrating one the peer's, if it comes from a peer."""
        return {
            group: self.address if not held.address or is_image(held.address) else held.address
            for group, held in self.held().items()
        }

    def held(self) -> dict[int, HeldGroup]:
        """Where every owned group is now; cheap. At a checkpoint this comes first, then images of the stores.

        In that order no key is missed: keys move from a peer to the local store only.
        """
        with self.lock:
            self.check_open()
            return {
                int.from_bytes(group, "big"): _held(place) for group, place in self.places.by_group.items()
            }

    def epochs(self) -> dict[int, int]:
        """Owner epoch of every owned group."""
        with self.lock:
            return dict(self._epochs)

    def owns(self, group: int) -> bool:
        """Return whether a group is owned; any thread may call it."""
        return group in self._epochs

    def epoch(self, group: int) -> int | None:
        """Return the epoch with which a group is owned; None: it is not. Any thread may call it."""
        return self._epochs.get(group)

    def client(self, address: str) -> RemoteStateClient:
        """The client of a peer or of images, with this subtask's owner epochs; see :meth:`Peers.client`."""
        with self.lock:
            return self.peers.client(address)

    def check_open(self) -> None:
        """Refuse calls after the end.

        Raises:
            StateError: it was closed.
        """
        if self._closed:
            raise StateError("this subtask's state is closed")

    @property
    def is_closed(self) -> bool:
        """Return whether all calls are refused."""
        return self._closed

    def close(self) -> bool:
        """Refuse all later calls; False if they are refused already. The caller has the lock."""
        was_open, self._closed = not self._closed, True
        return was_open

    def _check_settled(self, groups: Iterable[int]) -> None:
        moving = {migrating.group for migrating in self.places.migrating()} | self.cleaning
        unsettled = moving.intersection(groups)
        if unsettled:
            place = self.places.get(min(unsettled))
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
        """Delete what is here of a group that comes from elsewhere: it is older, and must not count as newer."""
        for state_id in self.places.state_ids:
            start, stop = state_bounds(group, state_id)
            if next(iter(self._local.scan(start, stop)), None) is not None:
                self._local.delete_range(start, stop)


def _held(place: Place) -> HeldGroup:
    if isinstance(place, MigratingGroup):
        return HeldGroup("migrating", place.address, tuple(place.tombstones))
    return _HERE if place is None else HeldGroup("remote", place)
