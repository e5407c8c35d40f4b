"""A subtask's state from images of a checkpoint: served at once, fetched in the background, right at every moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.effort import cases
from tests.weir.state.conftest import SMALL_SETTINGS
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.clock import SystemClock
from weir.errors import StateError
from weir.protocol.checkpoints.manifest import StoreImage
from weir.state import pieces
from weir.state.api import StateBackend
from weir.state.images.image_client import image_address, image_ids_of
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images
from weir.state.layout import encode_key
from weir.state.placement.group_places import HeldGroup
from weir.state.placement.migration import Migrator
from weir.state.placement.placed_store import PlacedStore

STATE = 2
HERE = "here:1"


def key(name: str, group: int = 5) -> bytes:
    return encode_key(group, STATE, name.encode())


class Machine:
    """A task manager: a store, its images, and one subtask's state."""

    def __init__(self, root: Path, store: CheckpointStore, name: str) -> None:
        self.images = Images(store, root / name, SMALL_SETTINGS)
        self.store = store
        self.directory = root / name
        self.name = name
        self.main: StateBackend | None = None

    def start(self, main: StoreImage | None = None, *others: StoreImage) -> PlacedStore:
        self.images.register([image for image in (main, *others) if image is not None])
        self.main = self.images.open_main(main)
        self.publisher = ImagePublisher(self.store, self.main, self.directory, self.name)
        self.state = PlacedStore(self.main, HERE, [STATE], lambda at, _: self.images.connect(at))
        return self.state

    def image(self, checkpoint_id: int) -> StoreImage:
        image, _ = self.publisher.take(checkpoint_id).publish()
        return image

    def stop(self) -> None:
        if self.main is not None:
            self.state.close()
            self.images.close()
            self.main.close()


class Machines:
    def __init__(self, root: Path) -> None:
        self.store = CheckpointStore.open(str(root / "checkpoints"), "job")
        self.root = root
        self.running: list[Machine] = []

    def __call__(self, name: str) -> Machine:
        self.running.append(Machine(self.root, self.store, name))
        return self.running[-1]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    yield machines
    for machine in machines.running:
        machine.stop()


def fill(state: PlacedStore, model: dict[bytes, bytes], seed: int, groups: int = 4) -> None:
    chance = random.Random(seed)
    names = [key(str(chance.randrange(300)), chance.randrange(groups)) for _ in range(200)]
    puts = [(name, chance.randbytes(20)) for name in names]
    deletes = [key(str(chance.randrange(300)), chance.randrange(groups)) for _ in range(60)]
    state.write(puts, deletes)
    model.update(puts)
    for name in deletes:
        model.pop(name, None)


def check(state: PlacedStore, model: dict[bytes, bytes], groups: int = 4) -> None:
    names = [key(str(number), group) for group in range(groups) for number in range(300)]
    assert state.get_many(names) == [model.get(name) for name in names]
    assert list(state.scan()) == sorted(model.items())
    assert list(state.scan(reverse=True)) == sorted(model.items(), reverse=True)


def pull(state: PlacedStore, groups: int, bytes_max: int = 1000) -> None:
    for group in state.pull.migrating()[:groups]:
        position: bytes | None = b""
        while position is not None:
            position, _, _ = state.pull.fetch(group, position, bytes_max)
        state.pull.arrived([group])
        state.pull.clean(group)


def test_groups_are_served_from_an_image_and_end_up_here(machines):
    model: dict[bytes, bytes] = {}
    old = machines("old")
    state = old.start()
    state.ownership.adopt(dict.fromkeys(range(4), 1))
    fill(state, model, 1)
    image = old.image(1)
    new = machines("new")
    state = new.start(None, image)
    address = image_address(image.image_id)
    # What is here of them is older than the checkpoint.
    new.main.write([(key("leftover", 1), b"x")])
    state.ownership.adopt(dict.fromkeys(range(4), 2), address)
    check(state, model)
    fill(state, model, 2)
    check(state, model)
    assert state.ownership.locations() == dict.fromkeys(range(4), HERE)
    held = state.ownership.held()
    assert {place.kind for place in held.values()} == {"migrating"}
    assert {place.address for place in held.values()} == {address}
    pull(state, 3)
    assert new.images.open_images() == [image.image_id]
    assert state.ownership.held()[0] == HeldGroup("local")
    fill(state, model, 3)
    check(state, model)
    pull(state, 1)
    assert new.images.open_images() == []
    assert not list((machines.root / "new/images").iterdir())
    assert set(state.ownership.held().values()) == {HeldGroup("local")}
    check(state, model)
    assert dict(new.main.scan()) == model


def test_migrator_restores_while_the_subtask_goes_on(machines):
    model: dict[bytes, bytes] = {}
    old = machines("old")
    state = old.start()
    state.ownership.adopt(dict.fromkeys(range(4), 1))
    for seed in range(10):
        fill(state, model, seed)
    image = old.image(1)
    new = machines("new")
    state = new.start(None, image)
    state.ownership.adopt(dict.fromkeys(range(4), 2), image_address(image.image_id))
    done, errors = [], []
    complete = threading.Event()

    def one_more(group: int) -> None:
        done.append(group)
        if len(done) == 4:
            complete.set()

    migrator = Migrator(100 << 20, 500, SystemClock())
    migrator.add(state, on_complete=one_more, on_error=errors.append)
    for seed in range(20, 40):
        fill(state, model, seed)
        check(state, model)
    assert complete.wait(60)
    migrator.close()
    assert not errors
    assert sorted(done) == [0, 1, 2, 3]
    check(state, model)
    assert new.images.open_images() == []


@pytest.mark.parametrize("in_small_pieces", [False, True])
@pytest.mark.parametrize("seed", range(cases(3)))
def test_restored_again_and_again_while_groups_are_on_their_way(machines, seed, in_small_pieces, monkeypatch):
    """Each generation takes its image at a random moment of the restoring, as the manifest describes it."""
    if in_small_pieces:
        monkeypatch.setattr(pieces, "PIECE_ENTRIES_MAX", 3)
    chance = random.Random(seed)
    model: dict[bytes, bytes] = {}
    machine = machines("generation-0")
    state = machine.start()
    state.ownership.adopt(dict.fromkeys(range(4), 1))
    fill(state, model, seed)
    known: dict[str, StoreImage] = {}
    for generation in range(1, 7):
        held = state.ownership.held()
        if chance.random() < 0.5:
            # The migration goes on between the notes and the image.
            pull(state, 1)
        own = machine.image(generation)
        saved = dict(model)
        known[own.image_id] = own
        fill(state, model, 999)
        model = saved
        machine.stop()
        machines.running.clear()

        machine = machines(f"generation-{generation}")
        opens_own = chance.random() < 0.5
        state = machine.start(own if opens_own else None, *known.values())
        for group, place in held.items():
            base = "+".join(image_ids_of(place.address)) if place.address else ""
            if opens_own and not base:
                state.ownership.adopt({group: generation})
            elif opens_own:
                gone = {group: place.tombstones}
                state.ownership.adopt(
                    {group: generation}, image_address(base), tombstones=gone, keeps_own=True
                )
            else:
                gone = {group: place.tombstones}
                state.ownership.adopt({group: generation}, image_address(own.image_id, base), tombstones=gone)
        check(state, model)
        fill(state, model, seed * 100 + generation)
        # Chunks of one to three entries: some lie where nothing was written here, some do not.
        pull(state, chance.randrange(4), 60 if in_small_pieces else 1000)
        fill(state, model, seed * 100 + 50 + generation)
        check(state, model)
    pull(state, 4)
    check(state, model)
    assert machine.images.open_images() == []


def test_range_deletes_hide_what_an_image_has(machines):
    old = machines("old")
    state = old.start()
    state.ownership.adopt({1: 1, 2: 1})
    state.put_many([key(name, group) for group in (1, 2) for name in "abcd"], [b"1"] * 8)
    image = old.image(1)
    new = machines("new")
    state = new.start(None, image)
    state.ownership.adopt({1: 2, 2: 2}, image_address(image.image_id))
    assert state.get_many([key("c", 1)]) == [b"1"]
    state.delete_range(key("b", 1), key("b", 2))
    left = [(key("a", 1), b"1"), *((key(name, 2), b"1") for name in "bcd")]
    assert list(state.scan()) == left
    assert set(state.ownership.held()[1].tombstones) == {key(name, 1) for name in "bcd"}
    pull(state, 2)
    assert list(state.scan()) == left
    assert list(old.main.scan(key("a", 1), key("z", 1)))


def test_group_cannot_move_while_it_is_restored(machines):
    old = machines("old")
    old.start().ownership.adopt({1: 1})
    image = old.image(1)
    new = machines("new")
    state = new.start(None, image)
    state.ownership.adopt({1: 2}, image_address(image.image_id))
    for move in (lambda: state.ownership.release([1]), lambda: state.ownership.adopt({1: 3})):
        with pytest.raises(StateError, match="key group 1 is still being restored from its checkpoint"):
            move()
    pull(state, 1)
    assert state.ownership.release([1]) == {1: HERE}


def test_images_are_closed_with_the_subtask(machines):
    old = machines("old")
    old.start().ownership.adopt({1: 1})
    image = old.image(1)
    new = machines("new")
    state = new.start(None, image)
    state.ownership.adopt({1: 2}, image_address(image.image_id))
    assert new.images.open_images() == [image.image_id]
    state.close()
    state.close()
    assert new.images.open_images() == []
