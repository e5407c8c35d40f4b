"""Key groups that a new owner takes over from images of a checkpoint: real stores, files and state services.

Whatever is missing, late or damaged, the new owner has what the old one had.
"""

import random
import threading

import pytest

from task_manager.rescale.ownership_reports import OwnershipReports
from task_manager.rescale.relink_sender import RelinkSender
from task_manager.rescale.rescaling import RescaleParticipant
from tests.effort import cases
from tests.task_manager.rescale.two_owners import (
    GROUPS,
    MOVES,
    NAMES,
    NEW,
    OLD,
    STEPS,
    VERSION,
    Side,
    World,
    key,
)
from tests.weir.state.state_peer import STAGE
from weir.clock import SystemClock
from weir.protocol.checkpoints.manifest import GroupPlace, SubtaskPart
from weir.protocol.routing import GroupMove
from weir.state.images.image_client import image_address, joined_ids


@pytest.fixture
def make_world(tmp_path):
    made = []

    def make(seed=1):
        made.append(World(tmp_path / str(len(made)), seed))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.mark.parametrize("seed", range(cases(4)))
def test_the_new_owner_has_what_the_old_one_had(make_world, seed):
    """Changes before and after the checkpoint, after one that was given up, and at the new owner."""
    world = make_world(seed)
    chance = random.Random(seed)
    for _ in range(4):
        world.change()
    world.checkpoint(1)
    for checkpoint_id in range(2, 2 + chance.randrange(3)):
        world.change()
        world.take_image(checkpoint_id)
    world.change()
    ranged = {0, 3} if seed % 2 else set()
    for group in ranged:
        world.delete_range(group)
    world.change(count=10)
    # Of no use: from an earlier time at the new owner.
    world.new.store.write([(key(1, 2), b"leftover")])
    world.prepare(1)
    for _ in range(seed % 4):
        world.sender._ahead_bytes_max = chance.choice([500, 1 << 20])
        world.send_ahead()
        world.change(count=20)
    assert world.hand_over() == set(range(GROUPS)) - ranged
    world.check()
    for _ in range(3):
        world.change(world.new)
        world.check()
    world.complete()


def test_only_what_has_changed_is_sent(make_world):
    world = make_world()
    for _ in range(30):
        world.change()
    world.checkpoint(1)
    world.change(count=6)
    world.prepare(1)
    assert len(world.hand_over()) == GROUPS
    assert 0 < world.sent_bytes < 1_000 < sum(map(len, world.model.values()))
    world.check()


@pytest.mark.parametrize(
    "case", ["no checkpoint", "another checkpoint", "an early one", "not open", "aborted", "too much"]
)
def test_what_cannot_be_relinked_is_fetched(make_world, case, monkeypatch):
    world = make_world()
    world.change()
    world.checkpoint(1)
    world.change()
    world.checkpoint(2)
    world.change()
    if case == "no checkpoint":
        world.prepare(0)
    elif case == "another checkpoint":
        world.prepare(3)
    elif case == "an early one":
        # Complete, but nobody knows what has changed since.
        world.prepare(1)
    elif case == "not open":
        going_on = threading.Event()
        places_at = world.new.stores.places_at
        monkeypatch.setattr(
            world.new.stores, "places_at", lambda *args: going_on.wait(20) and places_at(*args)
        )
        world.prepare(2, waits=False)
    elif case == "aborted":
        world.prepare(2)
        world.new.relinking.abort(STAGE, VERSION)
    else:
        world.sender._bytes_max = 10
        world.prepare(2)
    assert world.hand_over() == set()
    if case == "not open":
        going_on.set()
    world.check()
    world.change(world.new)
    world.complete()


class Nothing:
    """Implements the ports of a participant that has nothing to copy, to hand over or to switch."""

    def copy(self, subtasks, version, moves):
        pass

    def close(self):
        pass


def test_images_are_opened_while_old_owners_send_ahead(make_world, monkeypatch):
    """Opening takes some round trips to the checkpoint store: the command to open does not wait for them."""
    world = make_world()
    world.change()
    world.checkpoint(1)
    going_on = threading.Event()
    places_at = world.new.stores.places_at
    monkeypatch.setattr(world.new.stores, "places_at", lambda *args: going_on.wait(20) and places_at(*args))
    address, nothing = world.new.peer.address, Nothing()
    participant = RescaleParticipant(
        *(address, world.new.subtasks, dict(world.locations), nothing, nothing, nothing, nothing),
        *(OwnershipReports(address, lambda: None), nothing.close, (world.sender, world.new.relinking)),
    )
    participant.open_images([NEW], VERSION, 1, MOVES, world.locations)
    preparing = threading.Thread(
        target=lambda: participant.prepare([NEW], VERSION, tuple(MOVES), (), world.locations, 1)
    )
    preparing.start()
    preparing.join(0.3)
    assert preparing.is_alive()
    going_on.set()
    preparing.join(20)
    assert world.hand_over() == set(range(GROUPS))
    world.check()


def test_one_group_has_changed_too_much(make_world):
    world = make_world()
    world.change()
    world.checkpoint(1)
    world.change()
    large = (key("large", 3), bytes(50_000))
    world.old.backend.write([large])
    world.model.update([large])
    world.sender._bytes_max = 40_000
    world.prepare(1)
    assert world.hand_over() == set(range(GROUPS)) - {3}
    world.check()
    world.complete()


def test_a_table_with_other_content_under_its_name_and_size_is_not_used(make_world, tmp_path):
    """The digest decides."""
    world = make_world()
    world.change()
    world.checkpoint(1)
    world.change()
    tables = sorted(tmp_path.glob("0/checkpoints/job/files/*/*/*.sst"))
    assert tables
    for table in tables:
        content = bytearray(table.read_bytes())
        content[10] ^= 1
        # Another file: the old owner's store has the one that was there.
        table.unlink()
        table.write_bytes(content)
    world.prepare(1)
    assert world.hand_over() == set()
    world.check()
    world.complete()


def test_images_stay_until_all_is_here_although_the_checkpoint_expires(make_world):
    world = make_world()
    world.change()
    world.checkpoint(1)
    world.change()
    world.prepare(1)
    assert len(world.hand_over()) == GROUPS
    world.files.remove()
    world.check()
    held = world.new.backend.ownership.held()
    assert {place.kind for place in held.values()} == {"migrating"}
    # What the next checkpoint names.
    (image_id,) = {place.address.partition(":")[2] for place in held.values()}
    assert image_id in world.new.stores.images_by_id
    world.complete()


def test_rescales_leave_no_images_behind(make_world):
    world = make_world()
    world.change()
    for checkpoint_id in range(1, 6):
        world.change()
        world.checkpoint(checkpoint_id)
        version = VERSION + checkpoint_id
        opening = world.new.relinking.prepare([NEW], version, checkpoint_id, MOVES, world.locations)
        opening.result(20)
        assert world.new.images.open_images()
        world.new.relinking.abort(STAGE, version)
    assert world.new.images.open_images() == []
    assert len(world.new.stores.images_by_id) <= 2


def test_rows_wait_only_for_what_has_changed_since_it_was_sent_ahead(make_world):
    world = make_world()
    world.change()
    world.checkpoint(1)
    for _ in range(10):
        world.change()
    world.prepare(1)
    ahead_bytes = world.send_ahead()
    world.change(count=6)
    assert world.hand_over() == set(range(GROUPS))
    assert 0 < world.sent_bytes - ahead_bytes < 1_000 < ahead_bytes
    # Notes of up to 64 MiB are not kept until the next rescale.
    assert not world.sender._ahead
    world.check()
    world.complete()


def test_what_was_sent_ahead_is_not_sent_again(make_world):
    """First beside the copies of caches, then what has changed meanwhile, while rows go on; they wait for the rest."""
    world = make_world()
    world.change()
    world.checkpoint(1)
    for _ in range(10):
        world.change()
    world.prepare(1)
    ahead_bytes = world.send_ahead()
    world.change(count=9)
    again_bytes = world.send_ahead()
    world.change(count=3)
    assert world.hand_over() == set(range(GROUPS))
    assert 0 < again_bytes < 1_000 < ahead_bytes
    assert 0 < world.sent_bytes - ahead_bytes - again_bytes < 300
    world.check()
    world.complete()


def test_a_key_that_is_sent_ahead_and_deleted_and_one_that_comes_back(make_world):
    world = make_world()
    gone, back, new = key("gone", 1), key("back", 1), key("new", 1)
    world.old.backend.write([(gone, b"1"), (back, b"1")])
    world.checkpoint(1)
    world.old.backend.write([(gone, b"2"), (new, b"2")], [back])
    world.prepare(1)
    assert world.send_ahead() > 0
    world.old.backend.write([(back, b"3")], [gone, new])
    world.model = {back: b"3"}
    assert world.hand_over() == set(range(GROUPS))
    world.check()
    # No tombstone hides what is here: a checkpoint would take it for deleted.
    assert not any(back in place.tombstones for place in world.new.backend.pull.migrating())
    world.complete()


def test_a_call_that_comes_late_deletes_nothing(make_world):
    world = make_world()
    world.change()
    world.checkpoint(1)
    world.change()
    world.prepare(1)
    world.send_ahead()
    assert world.new.relinking.prepare([NEW], VERSION, 1, MOVES, world.locations) is None
    assert world.new.relinking.prepare([NEW], VERSION - 1, 1, MOVES, world.locations) is None
    assert world.hand_over() == set(range(GROUPS))
    world.check()


def checkpoint_of(world, side, subtask, checkpoint_id):
    """A complete checkpoint of the groups of one side, which may still be on their way; returns their places."""
    image, held = side.take_image(checkpoint_id)
    places = {
        group: GroupPlace(
            image.image_id,
            joined_ids(place.address) if place.address else "",
            tuple(each.hex() for each in place.tombstones),
        )
        for group, place in held.items()
    }
    images = (image, *side.stores.images_by_id.values())
    world.commit(side, checkpoint_id, SubtaskPart(subtask, places, images))
    return places


@pytest.mark.parametrize("seed", range(cases(3)))
def test_groups_that_move_on_and_keys_that_come_back(make_world, seed, tmp_path):
    """The checkpoint names an image below another one, with tombstones; keys of these are written again since."""
    world = make_world(seed)
    world.change(count=200)
    world.checkpoint(1)
    world.change()
    world.prepare(1)
    assert world.hand_over() == set(range(GROUPS))
    world.change(world.new)
    places = checkpoint_of(world, world.new, NEW, 2)
    tombstones = [bytes.fromhex(each) for place in places.values() for each in place.tombstones]
    assert tombstones
    world.complete()
    back = [(each, b"back") for each in tombstones[::2]]
    world.new.backend.write(back)
    world.model.update(back)
    world.change(world.new, count=20)
    # To where they came from.
    sender = RelinkSender(
        world.new.store, lambda stage, at, epochs: world.old.peer.connect(at, epochs), SystemClock()
    )
    sender.prepare(STAGE, 3, 2)
    moves = [GroupMove(group, 1, 0) for group in range(GROUPS)]
    world.old.relinking.prepare([OLD], 3, 2, moves, world.locations).result(20)
    groups = dict.fromkeys(range(GROUPS), 3)
    given = world.new.state.give_groups(3, groups)
    for part in sender.send(NEW, 3, world.old.peer.address, groups, given.changed):
        found = world.old.relinking.accept(OLD, 3, part.groups, part.offer, world.new.peer.address)
        assert found is not None
        world.old.state.will_relink(found)
        world.old.state.adopt_groups(part.groups, world.new.peer.address)
    state = world.old.backend
    assert list(state.scan()) == sorted(world.model.items())
    world.change(world.old, count=30)
    assert list(state.scan()) == sorted(world.model.items())
    # A restart from what the next checkpoint says of them.
    places = checkpoint_of(world, world.old, OLD, 3)
    third = Side(tmp_path / "0", "third", world.files, OLD, {})
    try:
        third.stores.places_at(3, STEPS)
        for group, place in places.items():
            third.backend.ownership.adopt(
                {group: 4},
                image_address(place.image_id, place.base_image_id),
                tombstones={group: [bytes.fromhex(each) for each in place.tombstones]},
            )
        assert list(third.backend.scan()) == sorted(world.model.items())
        names = [key(name, group) for group in range(GROUPS) for name in range(NAMES)]
        assert third.backend.get_many(names) == [world.model.get(name) for name in names]
    finally:
        third.close()


def test_groups_that_have_moved_since_the_checkpoint_are_not_relinked_to_it(make_world):
    """Their owner does not know what the one before it has changed."""
    world = make_world()
    world.change()
    world.checkpoint(1)
    # The new owner takes part in the same checkpoint, with other groups.
    world.new.backend.image_taken(1)
    world.new.backend.committed(1)
    world.change()
    world.prepare(1)
    assert world.hand_over() == set(range(GROUPS))
    world.complete()
    world.change(world.new)
    sender = RelinkSender(
        world.new.store, lambda stage, at, epochs: world.old.peer.connect(at, epochs), SystemClock()
    )
    sender.prepare(STAGE, 3, 1)
    groups = dict.fromkeys(range(GROUPS), 3)
    given = world.new.state.give_groups(3, groups)
    (part,) = sender.send(NEW, 3, world.old.peer.address, groups, given.changed)
    assert (part.groups, part.offer) == (groups, None)
