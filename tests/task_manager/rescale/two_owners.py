"""Two task managers between which key groups are relinked: real stores, files and state services."""

import random
from concurrent.futures import Future
from pathlib import Path

from task_manager.job_stores import JobStores
from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.rescale.relink_sender import RelinkSender
from task_manager.rescale.relinking import Relinking
from tests.weir.state.conftest import SMALL_SETTINGS
from tests.weir.state.state_peer import STAGE, serving
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.clock import SystemClock
from weir.protocol.checkpoints.manifest import GroupPlace, Manifest, SubtaskPart
from weir.protocol.routing import GroupMove
from weir.state.images.image_client import is_image
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images
from weir.state.layout import encode_key
from weir.state.placement.placed_store import PlacedStore
from weir.types import SubtaskId

STATE, GROUPS, NAMES = 2, 6, 80
OLD, NEW = SubtaskId(STAGE, 0), SubtaskId(STAGE, 1)
MOVES = [GroupMove(group, 0, 1) for group in range(GROUPS)]
STEPS = {STAGE: ["count"]}
#: The routing version of the rescale.
VERSION = 2


def key(name, group):
    return encode_key(group, STATE, str(name).encode())


class Subtask:
    """As ``ports.LocalSubtask``: of a test, which runs commands itself."""

    is_over = False

    def __init__(self, group_state):
        self.group_state = group_state

    def tell(self, event):
        told = Future()
        told.set_result(None)
        return told


class Side:
    """A task manager with one subtask of the stage."""

    def __init__(self, root: Path, name: str, files: CheckpointStore, subtask: SubtaskId, owned):
        self.images = Images(files, root / name, SMALL_SETTINGS)
        self.store = self.images.open_main(None)
        self.publisher = ImagePublisher(files, self.store, root / name, name)
        self.stores = JobStores(self.store, files, self.publisher, self.images)
        self._serving = serving(self.store)
        self.peer = self._serving.__enter__()
        #: The other side's peer.
        self.other = None
        self.backend = PlacedStore(
            self.store, self.peer.address, [STATE], self.connect, fetches=True, notes_changes=True
        )
        self.state = SubtaskGroupState(self.backend, [STATE], owned, lambda _: None)
        self.subtasks = {subtask: Subtask(self.state)}
        self.relinking = Relinking(self.peer.address, self.subtasks, self.stores, lambda: STEPS)

    def connect(self, address, epochs):
        return self.stores.image_client(address) or self.other.connect(address, epochs)

    def take_image(self, checkpoint_id):
        """As a checkpoint that may be given up; also returns where groups were."""
        hold = self.backend.hold_writes()
        held = self.backend.ownership.held()
        image, _ = self.publisher.take(checkpoint_id).publish()
        self.backend.image_taken(checkpoint_id)
        hold.release()
        return image, held

    def close(self):
        self.relinking.close()
        self.backend.close()
        self._serving.__exit__(None, None, None)
        self.stores.close()


class World:
    """Two task managers, and what the state must be."""

    def __init__(self, root, seed, uri="", job="job"):
        self.chance = random.Random(seed)
        self.files = CheckpointStore.open(uri or str(root / "checkpoints"), job)
        self.old = Side(root, "old", self.files, OLD, dict.fromkeys(range(GROUPS), 1))
        self.new = Side(root, "new", self.files, NEW, {})
        self.old.other, self.new.other = self.new.peer, self.old.peer
        self.model: dict[bytes, bytes] = {}
        self.images = []
        self.locations = {OLD: self.old.peer.address, NEW: self.new.peer.address}
        self.sender = RelinkSender(
            self.old.store, lambda stage, at, epochs: self.new.peer.connect(at, epochs), SystemClock()
        )

    def change(self, side=None, count=60):
        state = (side or self.old).backend
        puts = {
            key(self.chance.randrange(NAMES), self.chance.randrange(GROUPS)): self.chance.randbytes(
                self.chance.choice([3, 50])
            )
            for _ in range(count)
        }
        deletes = [
            key(self.chance.randrange(NAMES), self.chance.randrange(GROUPS)) for _ in range(count // 3)
        ]
        state.write(list(puts.items()), deletes)
        self.model.update(puts)
        for each in deletes:
            self.model.pop(each, None)

    def delete_range(self, group):
        start, stop = key("1", group), key("5", group)
        self.old.backend.delete_range(start, stop)
        for each in [each for each in self.model if start <= each < stop]:
            del self.model[each]

    def take_image(self, checkpoint_id):
        """As a checkpoint that may be given up."""
        return self.old.take_image(checkpoint_id)[0]

    def checkpoint(self, checkpoint_id):
        image = self.take_image(checkpoint_id)
        self.images.append(image)
        groups = dict.fromkeys(range(GROUPS), GroupPlace(image.image_id))
        self.commit(self.old, checkpoint_id, SubtaskPart(OLD, groups, (image,)))

    def commit(self, side, checkpoint_id, part):
        self.files.write_manifest(
            Manifest(
                checkpoint_id, "job", "f00d", 1, 0, 1, GROUPS, {STAGE: (0,)}, {}, (part,), {STAGE: ("count",)},
                {"count": STATE},
            )
        )  # fmt: skip
        side.backend.committed(checkpoint_id)

    def prepare(self, checkpoint_id, *, waits=True):
        self.sender.prepare(STAGE, VERSION, checkpoint_id)
        opening = self.new.relinking.prepare([NEW], VERSION, checkpoint_id, MOVES, self.locations)
        if waits and opening is not None:
            opening.result(20)

    def send_ahead(self, until_s=float("inf")):
        """Returns the bytes."""
        changed = self.old.backend.ownership.changed()
        groups = dict.fromkeys(range(GROUPS), 2)
        return self.sender.send_ahead(OLD, VERSION, self.new.peer.address, groups, changed, until_s)

    def hand_over(self):
        """Returns the groups that were relinked."""
        groups = dict.fromkeys(range(GROUPS), 2)
        given = self.old.state.give_groups(VERSION, groups)
        relinked = set()
        parts = self.sender.send(OLD, VERSION, self.new.peer.address, groups, given.changed)
        assert sorted(group for part in parts for group in part.groups) == list(groups)
        for part in parts:
            found = self.new.relinking.accept(NEW, VERSION, part.groups, part.offer, self.old.peer.address)
            if found is not None:
                self.new.state.will_relink(found)
                relinked |= found.keys()
            self.new.state.adopt_groups(part.groups, self.old.peer.address)
            self.new.relinking.came(NEW, VERSION, part.groups)
        places = {place.group: place.address for place in self.new.backend.pull.migrating()}
        assert {group for group, at in places.items() if is_image(at)} == relinked
        self.sent_bytes = sum(part.bytes_sent for part in parts)
        return relinked

    def check(self):
        state = self.new.backend
        names = [key(name, group) for group in range(GROUPS) for name in range(NAMES)]
        assert list(state.scan()) == sorted(self.model.items())
        assert list(state.scan(reverse=True)) == sorted(self.model.items(), reverse=True)
        assert state.get_many(names) == [self.model.get(name) for name in names]

    def complete(self):
        """All state is brought to its new owner, and the old copies are deleted."""
        state = self.new.backend
        for group in state.pull.migrating():
            position = b""
            while position is not None:
                position, _, _ = state.pull.fetch(group, position, 700)
            state.pull.arrived([group])
            state.pull.clean(group)
        self.check()
        assert dict(self.new.store.scan()) == self.model
        assert list(self.old.store.scan()) == []
        assert self.new.images.open_images() == []

    def close(self):
        self.new.close()
        self.old.close()
