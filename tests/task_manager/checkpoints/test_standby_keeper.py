"""State of another task manager is kept here: a takeover opens the right one, and fetches nothing of it."""

import contextlib
import random
import shutil
import threading
import time
from dataclasses import replace

import pytest

from experiments.simulation.places import MemoryPlace
from task_manager.checkpoints.standby_keeper import StandbyKeeper, StandbyOrder, StandbyProgress
from task_manager.job_stores import JobStores
from tests.weir.checkpoints.manifests import manifest_of
from tests.weir.state.conftest import SMALL_SETTINGS
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.layout import manifest_path
from weir.clock import SystemClock
from weir.protocol.checkpoints.manifest import GroupPlace, SubtaskPart
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images
from weir.state.layout import encode_key
from weir.state.stores.directory_lock import PUBLISHED_NAME, STANDBY_NAME
from weir.state.stores.memory import MemoryBackend
from weir.types import SubtaskId

OWNER = SubtaskId(1, 0)
PLENTY = 1 << 40
STEPS = 16


def until(condition):
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "the condition does not come true"
        time.sleep(0.002)


class World:
    """A task manager whose store is in checkpoints, and another one that keeps it."""

    def __init__(self, tmp_path, settings=SMALL_SETTINGS):
        self.place = MemoryPlace()
        self.store = CheckpointStore(self.place)
        self.settings, self.directory = settings, tmp_path / "standby"
        self.owner_images = Images(self.store, tmp_path / "owner", settings)
        self.backend = self.owner_images.open_main(None)
        self.publisher = ImagePublisher(self.store, self.backend, tmp_path / "owner", "owner")
        self.model, self.latest, self.image = {}, 0, None
        self.free_bytes = PLENTY
        self.deploy(None)

    def deploy(self, image, bytes_per_second=PLENTY):
        """At the standby; with the image of the one that was lost, or empty."""
        self.images = Images(self.store, self.directory, self.settings)
        self.main = self.images.open_main(image)
        self.keeper = StandbyKeeper(
            self.store,
            self.images.standby_copies(self.store),
            bytes_per_second,
            SystemClock(),
            lambda directory: (self.free_bytes, PLENTY),
        )

    def stop(self):
        self.keeper.close()
        self.images.close()
        self.main.close()

    def close(self):
        self.stop()
        self.owner_images.close()
        self.backend.close()

    def change(self, chance):
        puts = [
            (encode_key(0, 2, b"%d" % chance.randrange(300)), chance.randbytes(chance.choice([20, 2_000])))
            for _ in range(200)
        ]
        deletes = [encode_key(0, 2, b"%d" % chance.randrange(300)) for _ in range(20)]
        self.backend.write(puts, deletes)
        self.model.update(puts)
        for key in deletes:
            self.model.pop(key, None)

    def checkpoint(self):
        """Complete one; of earlier ones nothing stays that is not in it."""
        self.latest += 1
        self.image, _ = self.publisher.take(self.latest).publish()
        part = SubtaskPart(OWNER, {0: GroupPlace(self.image.image_id)}, (self.image,))
        self.store.write_manifest(replace(manifest_of(self.latest), parts=(part,)))
        self.publisher.committed(self.latest)
        self.store.expire(1)

    def order(self, checkpoint_id=None, subtasks=(OWNER,)):
        number = checkpoint_id or self.latest
        self.keeper.keep(StandbyOrder(number, manifest_path(number), subtasks, disk_hold_bytes=1 << 20))

    @property
    def progress(self):
        return self.keeper.progress

    def kept(self):
        return sorted((self.directory / STANDBY_NAME).glob("*"))

    def take_over(self):
        """Returns how many files were fetched."""
        self.stop()
        self.deploy(self.image)
        assert dict(self.main.scan()) == self.model
        fetched, size_bytes = self.images.fetched
        assert bool(fetched) == bool(size_bytes)
        # The job goes on elsewhere, from the same checkpoint, and this one keeps it again.
        self.stop()
        shutil.rmtree(self.directory / PUBLISHED_NAME, ignore_errors=True)
        self.deploy(None)
        return fetched


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_a_takeover_is_right_and_quick_where_all_is_here(world, seed):
    chance = random.Random(seed)
    world.change(chance)
    world.checkpoint()
    takeovers = 0
    for _ in range(STEPS):
        match chance.choice(
            ["checkpoint", "order", "order", "busy", "damage", "no room", "gone", "take over"]
        ):
            case "checkpoint":
                world.change(chance)
                world.checkpoint()
            case "order":
                world.order()
                until(lambda: world.progress.checkpoint_id == world.latest)
                assert world.progress.missing_bytes == 0
                assert world.progress.problem == ""
                sizes = [file.size_bytes for file in {f.path: f for f in world.image.files.values()}.values()]
                assert world.progress.held_bytes == sum(sizes)
                assert sorted(path.stat().st_size for path in world.kept()) == sorted(sizes)
                takeovers += 1
                assert world.take_over() == 0
            case "busy":
                # Nobody waits for it: it is behind, or in the middle of it.
                world.order()
            case "damage" if world.kept():
                # The keeper may let go of it at this moment.
                with contextlib.suppress(FileNotFoundError):
                    path = chance.choice(world.kept())
                    path.write_bytes(bytes(path.stat().st_size))
                world.take_over()
            case "no room":
                world.change(chance)
                world.checkpoint()
                world.free_bytes = 1000
                world.order()
                until(lambda: "free of copies" in world.progress.problem)
                world.free_bytes = PLENTY
                world.take_over()
            case "gone" if world.latest > 1:
                world.order(world.latest - 1)
                until(lambda: "does not exist" in world.progress.problem)
            case "take over":
                world.take_over()
    assert takeovers


def test_a_damaged_copy_is_fetched(world):
    world.change(random.Random(3))
    world.checkpoint()
    world.order()
    until(lambda: world.progress.checkpoint_id == 1)
    table = next(path for path in world.kept() if path.name.endswith(".sst"))
    table.write_bytes(bytes(table.stat().st_size))
    assert world.take_over() == 1
    # It has no place among the copies any more.
    assert not table.exists()


def test_the_rate_is_bounded_and_other_orders_let_everything_go(world):
    world.change(random.Random(4))
    world.checkpoint()
    size_bytes = sum(file.size_bytes for file in world.image.files.values())
    world.stop()
    world.deploy(None, bytes_per_second=size_bytes * 5)
    began_s = time.monotonic()
    world.order()
    until(lambda: world.progress.checkpoint_id == 1)
    assert time.monotonic() - began_s >= 0.2
    world.order(subtasks=())
    until(lambda: world.progress == StandbyProgress())
    assert world.kept() == []


def test_what_is_here_of_one_is_not_said_of_another(world):
    world.change(random.Random(7))
    world.checkpoint()
    world.order(subtasks=(SubtaskId(1, 1),))
    until(lambda: world.progress == StandbyProgress(1))
    world.free_bytes = 0
    world.order()
    until(lambda: world.progress.problem)
    assert world.progress.checkpoint_id == 0
    assert world.progress.missing_bytes > 0


def test_where_files_come_as_links_nothing_is_kept(tmp_path):
    store = CheckpointStore.open(str(tmp_path / "checkpoints"), "job")
    images = Images(store, tmp_path / "store", None)
    keeper = StandbyKeeper(store, images.standby_copies(store), 1, SystemClock())
    keeper.keep(StandbyOrder(7, manifest_path(7), (OWNER,)))
    assert keeper.progress == StandbyProgress(7)
    keeper.close()
    images.close()


def test_a_job_from_a_savepoint_on_this_disk_keeps_what_its_own_checkpoints_elsewhere_have(tmp_path):
    state = JobStores(
        MemoryBackend(),
        CheckpointStore(MemoryPlace()),
        None,
        Images(CheckpointStore.open(str(tmp_path / "savepoint"), "job"), tmp_path / "store", None),
    )
    assert state.standby_copies().folder == tmp_path / "store" / STANDBY_NAME
    state.close()


def test_a_job_with_checkpoints_on_this_disk_removes_copies_of_earlier_ones(world, tmp_path):
    world.change(random.Random(5))
    world.checkpoint()
    world.order()
    until(lambda: world.progress.checkpoint_id == 1)
    assert world.kept()
    world.stop()
    linked = Images(CheckpointStore.open(str(tmp_path / "checkpoints"), "job"), world.directory, None)
    store = linked.open_main(None)
    assert world.kept() == []
    linked.close()
    store.close()
    world.deploy(None)


@pytest.mark.parametrize("moment", ["the manifest", "a file"])
def test_after_its_end_a_keeper_neither_adds_nor_removes_files(world, moment):
    world.change(random.Random(6))
    world.checkpoint()

    class Store(CheckpointStore):
        def look_at_manifest(self, path):
            if moment == "the manifest":
                keeper.close()
            return super().look_at_manifest(path)

        def fetch_all(self, items, **named):
            keeper.close()
            super().fetch_all(items, **named)

    store = Store(world.place)
    copies = world.images.standby_copies(store)
    copies.folder.mkdir()
    (copies.folder / "left").touch()
    keeper = StandbyKeeper(store, copies, PLENTY, SystemClock(), lambda directory: (PLENTY, PLENTY))
    keeper.keep(StandbyOrder(1, manifest_path(1), (OWNER,)))
    until(lambda: all(thread.name != "standby" for thread in threading.enumerate()))
    assert [path.name for path in world.kept()] == (["left"] if moment == "the manifest" else [])
