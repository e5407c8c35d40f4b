"""Which key groups a subtask owns, and where their state is."""

from __future__ import annotations

import pytest

from tests.weir.state.placement.worlds import GROUP, HERE, complete_all, key
from weir.errors import FencedError, StateError
from weir.state.placement.group_places import HeldGroup
from weir.state.placement.ownership import GroupOwnership
from weir.state.stores.memory import MemoryBackend


def test_a_replaced_owner_can_write_neither_here_nor_at_the_peer(world):
    zombie = world.another()
    zombie.ownership.adopt({GROUP: 1, 6: 1}, world.peer.address)
    zombie.put_many([key("k")], [b"zombie"])
    world.state.ownership.adopt({GROUP: 2}, world.peer.address)
    world.state.put_many([key("k")], [b"owner"])
    calls = [
        lambda: zombie.put_many([key("k"), key("k", 6)], [b"zombie", b"zombie"]),
        lambda: zombie.get_many([key("k")]),
        lambda: zombie.delete_range(key("a"), key("z")),
        lambda: list(zombie.scan_prefix(key("k"))),
    ]
    for call in calls:
        with pytest.raises(FencedError, match="replaced by 2"):
            call()
    zombie.ownership.release([GROUP])
    with pytest.raises(FencedError, match="key group 5 does not belong to this subtask"):
        zombie.put_many([key("k")], [b"zombie"])
    assert list(world.there.scan()) == [(key("k"), b"owner")]


def test_a_group_cannot_move_on_before_it_has_arrived(world):
    world.state.ownership.adopt({GROUP: 1, 6: 1}, world.peer.address, migrate=True)
    with pytest.raises(StateError, match="key group 5 is still being fetched"):
        world.state.ownership.release([GROUP, 6])
    complete_all(world.state)
    assert world.state.ownership.release([GROUP, 6]) == {GROUP: HERE, 6: HERE}


def test_a_remote_group_is_handed_on_with_the_address_of_its_store(world):
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    world.state.ownership.adopt({6: 1})
    assert world.state.ownership.locations() == {GROUP: world.peer.address, 6: HERE}
    assert world.state.ownership.release([GROUP, 6]) == {GROUP: world.peer.address, 6: HERE}


def test_a_remote_group_can_be_fetched_later(world):
    world.there.put_many([key("k")], [b"1"])
    world.state.ownership.adopt({GROUP: 1, 6: 1}, world.peer.address)
    world.state.ownership.migrate([GROUP])
    complete_all(world.state)
    assert world.state.ownership.locations() == {GROUP: HERE, 6: world.peer.address}
    assert list(world.here.scan()) == [(key("k"), b"1")]


def unreachable(address, epochs):
    raise AssertionError("nobody is called")


@pytest.fixture
def ownership():
    return GroupOwnership(MemoryBackend(), HERE, [2], unreachable, fetches=True)


def test_places_of_all_kinds_are_told(ownership):
    ownership.adopt({1: 3})
    ownership.adopt({2: 3}, HERE)
    ownership.adopt({3: 4}, "peer:1", migrate=False)
    ownership.adopt({4: 5}, "peer:1", tombstones={4: [key("gone", 4)], 9: [key("other", 9)]})
    assert ownership.held() == {
        1: HeldGroup("local"),
        2: HeldGroup("local"),
        3: HeldGroup("remote", "peer:1"),
        4: HeldGroup("migrating", "peer:1", (key("gone", 4),)),
    }
    assert ownership.epochs() == {1: 3, 2: 3, 3: 4, 4: 5}
    assert ownership.locations() == {1: HERE, 2: HERE, 3: "peer:1", 4: "peer:1"}


def test_what_was_written_reaches_peers_before_a_group_changes_its_place(ownership):
    settled = []
    ownership.settle = lambda: settled.append(dict(ownership.epochs()))
    ownership.adopt({3: 4}, "peer:1", migrate=False)
    ownership.migrate([3])
    assert settled == [{3: 4}]
    ownership.adopt({5: 1})
    ownership.release([5])
    assert settled[1:] == [{3: 4, 5: 1}]


def test_a_group_that_is_being_deleted_at_the_peer_cannot_move_on(ownership):
    ownership.adopt({3: 4})
    ownership.cleaning.add(3)
    with pytest.raises(StateError, match="key group 3 is still being fetched from its former owner"):
        ownership.release([3])
    assert ownership.held() == {3: HeldGroup("local")}


def test_after_the_end_nothing_is_owned_any_more(ownership):
    assert (ownership.close(), ownership.close()) == (True, False)
    for call in (lambda: ownership.adopt({1: 1}), lambda: ownership.release([1]), ownership.held):
        with pytest.raises(StateError, match="closed"):
            call()
