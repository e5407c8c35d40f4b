"""Checkpoints are opened once, kept open for those who read them, and told apart from those that are gone."""

import pytest

from task_manager.queries.open_checkpoints import IDLE_S, OPEN_MAX, OpenCheckpoints
from tests.task_manager.queries.fake_images import FakeImages
from weir.protocol.checkpoints.manifest import GroupPlace, Manifest, SubtaskPart
from weir.protocol.queries import QueryError
from weir.savepoints.checkpoint_reading import CheckpointReading
from weir.state.stores.memory import MemoryBackend
from weir.state.ttl import Ttl
from weir.testing import ManualClock
from weir.types import SubtaskId


def manifest(checkpoint_id, groups=None, operators=None):
    part = SubtaskPart(SubtaskId(1, 0), groups or {}, (), operators=operators or {})
    return Manifest(
        checkpoint_id, "job", "f", 1, 0, 0, 2, {1: (0,)}, {}, (part,), operator_names={1: ("step",)}
    )


class World:
    """Manifests by their path, and the images that were opened."""

    def __init__(self):
        self.clock, self.images, self.manifests = ManualClock(), [], {}
        self.open = OpenCheckpoints(self.manifests.__getitem__, self.make, self.clock)

    def make(self):
        self.images.append(FakeImages())
        return self.images[-1]

    def use(self, checkpoint_id, path=None):
        self.manifests.setdefault(f"m{checkpoint_id}", manifest(checkpoint_id))
        return self.open.using(checkpoint_id, f"m{checkpoint_id}" if path is None else path)


def test_a_checkpoint_is_opened_once_and_closed_when_nobody_asks_any_more():
    world = World()
    for _ in range(2):
        with world.use(1):
            pass
    with world.use(1, path=""):
        assert len(world.images) == 1
    world.clock.advance_ms((IDLE_S + 1) * 1e3)
    with pytest.raises(QueryError, match="begin again") as gone, world.use(1, path=""):
        pass
    assert gone.value.status == 410
    assert world.images[0].is_closed


def test_files_of_idle_checkpoints_are_let_go_without_a_question():
    world = World()
    with world.use(1):
        world.clock.advance_ms((IDLE_S + 1) * 1e3)
        world.open.tidy()
        assert not world.images[0].is_closed
    world.open.tidy()
    assert not world.images[0].is_closed
    world.clock.advance_ms((IDLE_S + 1) * 1e3)
    world.open.tidy()
    assert world.images[0].is_closed


def test_the_one_that_was_used_longest_ago_makes_room():
    world = World()
    with world.use(1), world.use(2), world.use(3):
        assert len(world.images) == OPEN_MAX
        with pytest.raises(QueryError, match="try again"), world.use(4):
            pass
    world.clock.advance_ms(1)
    with world.use(1):
        pass
    with world.use(4):
        assert [images.is_closed for images in world.images[:3]].count(True) == 1
        assert not world.images[0].is_closed


def test_the_end_of_the_job_closes_them_when_they_are_not_in_use():
    world = World()
    with world.use(1):
        with world.use(2):
            pass
        world.open.close()
        assert [images.is_closed for images in world.images] == [False, True]
    assert world.images[0].is_closed
    with pytest.raises(QueryError), world.use(3):
        pass


def test_a_group_on_its_way_is_read_from_both_images_without_what_was_deleted():
    key = b"\0\1\0\2\0"
    stores = {"a": MemoryBackend(), "b": MemoryBackend()}
    stores["a"].write([(key + b"new", b"1"), (key + b"same", b"2")])
    stores["b"].write([(key + b"old", b"3"), (key + b"same", b"4"), (key + b"gone", b"5")])
    world = World()
    place = GroupPlace("a", "b", tombstones=((key + b"gone").hex(),))
    times = {"times": {"watermark_ms": 100, "since_ms": {"state": 40}}}
    world.manifests["m1"] = manifest(1, {1: place}, {"step": times})
    world.make = lambda: FakeImages(stores)
    opened = OpenCheckpoints(world.manifests.__getitem__, world.make, world.clock)
    with opened.using(1, "m1") as checkpoint:
        reading = CheckpointReading(checkpoint, "step", "state", Ttl("50ms"), world.clock)
        assert reading.watermark_ms == 100
        assert [reading.is_expired(at) for at in (50, 51, -(2**63))] == [True, False, True]
        assert reading.get_many([key + name for name in (b"new", b"same", b"old", b"gone", b"no")]) == [
            b"1", b"2", b"3", None, None,
        ]  # fmt: skip
        everything = [(key + b"new", b"1"), (key + b"old", b"3"), (key + b"same", b"2")]
        assert list(reading.scan(key, key + b"\xff")) == everything
        assert list(reading.scan(key, key + b"\xff", reverse=True)) == everything[::-1]
        assert reading.get_many([b"\0\0\0\2\0x"]) == [None]
        assert list(reading.scan(b"\0\0\0\2\0", b"\0\0\0\2\1")) == []
