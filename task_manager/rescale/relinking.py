"""A new owner's side of relinking: opens the images of a checkpoint that have the key groups which come.

It is a favour (docs/design/0019): groups whose images are not open when their handover comes are taken over as without
it. gRPC threads call, and files are opened in threads of this module.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from task_manager.job_stores import JobStores
from task_manager.ownership.group_state import RelinkedGroup
from task_manager.rescale.ports import LocalSubtask
from weir import threads
from weir.errors import WeirError
from weir.protocol.rescale.relink import RelinkOffer
from weir.protocol.routing import GroupMove
from weir.state.images.image_client import image_address
from weir.state.placement.remote import RemoteStateClient
from weir.types import SubtaskId

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Place:
    """Where the state of a group is, as of the checkpoint."""

    location: str
    tombstones: tuple[bytes, ...]


@dataclass(eq=False)
class _Coming:
    """The groups that come to the subtasks of one stage here in one rescale."""

    checkpoint_id: int
    #: By group: its new owner. Those that have come are taken out.
    groups: dict[int, SubtaskId]
    #: Once it is known, and the images are open.
    places: dict[int, _Place] = field(default_factory=dict)
    #: They keep the images open until their groups have come.
    clients: list[RemoteStateClient] = field(default_factory=list)
    is_over: bool = False


class Relinking:
    """Opens images for one deployed job; any thread may call it."""

    def __init__(
        self,
        address: str,
        subtasks: Mapping[SubtaskId, LocalSubtask],
        stores: JobStores,
        steps_of: Callable[[], Mapping[int, Sequence[str]]],
    ) -> None:
        """``subtasks`` are the job's own and change; ``steps_of`` returns the names of the steps of each stage."""
        self._address = address
        self._subtasks = subtasks
        self._stores = stores
        self._steps_of = steps_of
        self._pool = threads.pool(1, "relink")
        #: Held while a rescale is prepared: they come one at a time.
        self._preparing = threading.Lock()
        self._lock = threading.Lock()
        #: By stage: of its latest rescale, with the version.
        self._coming: dict[int, tuple[int, _Coming]] = {}
        self._closed = False

    def prepare(
        self,
        subtasks: Sequence[SubtaskId],
        version: int,
        checkpoint_id: int,
        moves: Iterable[GroupMove],
        locations: Mapping[SubtaskId, str],
    ) -> Future[None] | None:
        """Begin to open what comes to owners here from elsewhere; None: nothing does.

        Args:
            subtasks: the owners here, of one stage.
            version: of the routing table.
            checkpoint_id: whose images are meant.
            moves: of the rescale.
            locations: where every subtask runs.
        """
        here = {subtask.subtask_index: subtask for subtask in subtasks}
        groups = {
            move.group: here[move.target]
            for move in moves
            if move.target in here
            and locations.get(SubtaskId(here[move.target].stage_index, move.source)) != self._address
        }
        if not groups:
            return None
        stage_index, coming = subtasks[0].stage_index, _Coming(checkpoint_id, groups)
        with self._preparing:
            before = self._coming.get(stage_index)
            # A call that comes late must delete nothing of a later rescale.
            if (before is not None and before[0] >= version) or not self._is_cleared(groups):
                return None
            with self._lock:
                if self._closed:
                    return None
                self._coming[stage_index] = version, coming
        if before is not None:
            self._end(before[1])
        try:
            return self._pool.submit(self._open, coming, dict(groups))
        except RuntimeError:
            # The job ends.
            return None

    def accept(
        self,
        target: SubtaskId,
        version: int,
        groups: Mapping[int, int],
        offer: RelinkOffer | None,
        copy_at: str,
    ) -> dict[int, RelinkedGroup] | None:
        """Groups (with their epochs) come; returns what to adopt them with, or None: as without relinking.

        Args:
            target: their new owner here.
            version: of the routing table.
            groups: all of them or none are relinked.
            offer: what their old owner says; None: it does not relink them.
            copy_at: address of the store that has all of them, too.
        """
        with self._lock:
            found_version, coming = self._coming.get(target.stage_index, (0, None))
            if coming is None or found_version != version:
                return None
            places = {
                group: coming.places.get(group) for group in groups if coming.groups.get(group) == target
            }
            if offer is None or coming.checkpoint_id != offer.checkpoint_id or places.keys() != groups.keys():
                places = {}
            relinked = {
                group: RelinkedGroup(groups[group], place.location, place.tombstones, copy_at)
                for group, place in places.items()
                if place is not None
            }
            if offer is None or relinked.keys() != groups.keys():
                return None
        for key in offer.deleted_keys:
            relinked[int.from_bytes(key[:2], "big")].deleted.append(key)
        return relinked

    def came(self, target: SubtaskId, version: int, groups: Iterable[int]) -> None:
        """Groups have been adopted, or were taken over otherwise: their images are not held for them any more."""
        with self._lock:
            found_version, coming = self._coming.get(target.stage_index, (0, None))
            if coming is None or found_version != version:
                return
            for group in groups:
                coming.groups.pop(group, None)
            if coming.groups:
                return
        self._end(coming)

    def abort(self, stage_index: int, version: int) -> None:
        """A rescale is taken back."""
        with self._lock:
            found_version, coming = self._coming.get(stage_index, (0, None))
        if coming is not None and found_version == version:
            self._end(coming)

    def close(self) -> None:
        """The job ends; what is being opened is given up."""
        with self._lock:
            self._closed = True
            coming = [each for _, each in self._coming.values()]
        for each in coming:
            self._end(each)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _open(self, coming: _Coming, groups: Mapping[int, SubtaskId]) -> None:
        stage_index = next(iter(groups.values())).stage_index
        try:
            places = self._stores.places_at(coming.checkpoint_id, self._steps_of())
            found: dict[int, _Place] = {}
            for group in groups:
                place = places.get((stage_index, group))
                if place is not None:
                    location = image_address(place.image_id, place.base_image_id)
                    found[group] = _Place(location, tuple(map(bytes.fromhex, place.tombstones)))
            locations = sorted({place.location for place in found.values()})
            for location in locations:
                client = self._stores.image_client(location)
                if client is None or not self._hold(coming, client):
                    return
        except WeirError as error:
            log.warning("key groups cannot be relinked to checkpoint %d: %s", coming.checkpoint_id, error)
            return
        except Exception:
            log.exception("key groups cannot be relinked to checkpoint %d", coming.checkpoint_id)
            return
        with self._lock:
            if not coming.is_over:
                coming.places = found

    def _hold(self, coming: _Coming, client: RemoteStateClient) -> bool:
        """Keep images open for a rescale; False: it is over."""
        with self._lock:
            if not coming.is_over:
                coming.clients.append(client)
                return True
        client.close()
        return False

    def _is_cleared(self, groups: Mapping[int, SubtaskId]) -> bool:
        """Delete what is here of these groups: it is older than what comes.

        Before the rescale is answered, because their old owners begin to send after that.
        """
        try:
            for subtask in set(groups.values()):
                local = self._subtasks.get(subtask)
                group_state = None if local is None else local.group_state
                if group_state is not None:
                    listed = [group for group, owner in groups.items() if owner == subtask]
                    group_state.backend.ownership.clear_leftovers(listed)
        except WeirError as error:
            log.warning("key groups cannot be relinked: %s", error)
            return False
        return True

    def _end(self, coming: _Coming) -> None:
        with self._lock:
            coming.is_over = True
            clients, coming.clients, coming.places = coming.clients, [], {}
        for client in clients:
            client.close()
