"""A subtask's state in several places. Each fault of the predecessor's hybrid provider has a test of its name."""

from __future__ import annotations

from random import Random

import pytest

from task_manager.state.state_client import REQUEST_BYTES_MAX
from tests.weir.state.placement.worlds import GROUP, HERE, OTHER_STATE, STATE, complete_all, key
from tests.weir.state.state_peer import MESSAGE_BYTES_MAX
from weir.errors import ConnectionLostError, StateError
from weir.state.images.image_client import ImageClient
from weir.state.layout import encode_key, state_prefix
from weir.state.placement.group_places import GroupPlaces, state_bounds
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend

# --- the predecessor's faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("migrate", [False, True])
def test_first_touch_put_keeps_the_new_value(world, migrate):
    world.there.put_many([key("k")], [b"old"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=migrate)
    world.state.put_many([key("k")], [b"new"])
    assert world.state.get_many([key("k")]) == [b"new"]
    complete_all(world.state)
    assert world.state.get_many([key("k")]) == [b"new"]
    assert (world.here if migrate else world.there).get_many([key("k")]) == [b"new"]


def test_fetching_one_state_of_a_record_key_leaves_its_other_states_reachable(world):
    world.there.put_many([key("k"), key("k", state_id=OTHER_STATE), key("l")], [b"1", b"2", b"3"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    assert world.state.get_many([key("k")]) == [b"1"]
    assert world.state.get_many([key("k", state_id=OTHER_STATE), key("l"), key("k")]) == [b"2", b"3", b"1"]


def test_another_reconfiguration_does_not_bring_back_stale_remote_values(world):
    world.there.put_many([key("k"), key("gone")], [b"old", b"old"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    world.state.write([(key("k"), b"new")], [key("gone")])
    complete_all(world.state)
    # The group goes to a subtask beside it, and from there to the store where it came from.
    assert world.state.ownership.release([GROUP]) == {GROUP: HERE}
    beside = world.another(migrate=True)
    beside.ownership.adopt({GROUP: 2}, HERE)
    assert beside.get_many([key("k"), key("gone")]) == [b"new", None]
    assert world.there.get_many([key("k"), key("gone")]) == [None, None]


def test_an_old_local_copy_does_not_count_as_newer_than_what_comes_back(world):
    world.here.put_many([key("k"), key("gone")], [b"left over", b"left over"])
    world.there.put_many([key("k")], [b"newest"])
    world.state.ownership.adopt({GROUP: 3}, world.peer.address, migrate=True)
    assert world.state.get_many([key("k"), key("gone")]) == [b"newest", None]
    assert [value for _, value in world.state.scan()] == [b"newest"]


@pytest.mark.parametrize("migrate", [False, True])
def test_an_absent_remote_key_stays_absent(world, migrate):
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=migrate)
    assert world.state.get_many([key("k"), key("k")]) == [None, None]
    assert world.state.get_many([key("k")]) == [None]
    assert list(world.here.scan()) == list(world.there.scan()) == []
    complete_all(world.state)
    assert world.state.get_many([key("k")]) == [None]


@pytest.mark.parametrize("fetched_first", [False, True])
def test_a_deleted_key_does_not_come_back(world, fetched_first):
    world.there.put_many([key("k"), key("l")], [b"1", b"2"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    if fetched_first:
        world.state.get_many([key("k")])
    world.state.write(deletes=[key("k")])
    assert world.state.get_many([key("k")]) == [None]
    assert world.state.get_many([key("k"), key("l")]) == [None, b"2"]
    assert list(world.state.scan()) == [(key("l"), b"2")]
    complete_all(world.state)
    assert world.state.get_many([key("k"), key("l")]) == [None, b"2"]
    assert list(world.here.scan()) == [(key("l"), b"2")]
    assert list(world.there.scan()) == []


def test_a_key_put_after_its_deletion_is_there(world):
    world.there.put_many([key("k")], [b"1"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    world.state.write(deletes=[key("k")])
    world.state.put_many([key("k")], [b"again"])
    assert list(world.state.scan()) == [(key("k"), b"again")]
    complete_all(world.state)
    assert list(world.state.scan()) == [(key("k"), b"again")]


def test_listings_hold_local_and_remote_keys_exactly_once_both_ways(world):
    world.here.put_many([key("a", 1), key("x", 9)], [b"a1", b"not ours"])
    world.there.put_many([key(name, group) for group in (2, 3) for name in "bcd"], [b"r"] * 6)
    world.there.put_many([key("x", 4), key("x", 2, 6)], [b"not ours"] * 2)
    world.state.ownership.adopt({1: 1})
    world.state.ownership.adopt({2: 1}, world.peer.address)
    world.state.ownership.adopt({3: 1}, world.peer.address, migrate=True)
    world.state.get_many([key("b", 3)])
    world.state.write([(key("c", 3), b"new"), (key("e", 3), b"e")], [key("d", 3)])
    want = [(key("a", 1), b"a1"), *((key(name, 2), b"r") for name in "bcd")]
    want += [(key("b", 3), b"r"), (key("c", 3), b"new"), (key("e", 3), b"e")]
    assert list(world.state.scan()) == want
    assert list(world.state.scan(reverse=True)) == want[::-1]
    assert list(world.state.scan_prefix(state_prefix(3, STATE))) == want[4:]
    assert world.state.get_many([key("d", 3), key("c", 3), key("b", 2)]) == [None, b"new", b"r"]
    world.state.delete_range(None, None)
    assert list(world.state.scan()) == []
    assert len(list(world.there.scan())) == 2
    assert list(world.here.scan()) == [(key("x", 9), b"not ours")]


def test_the_last_key_of_a_range_of_groups_moves_with_it_and_the_next_group_does_not(world):
    last, following = encode_key(GROUP, STATE, b"\xff" * 9), encode_key(GROUP + 1, 0, b"")
    first = encode_key(GROUP, STATE, b"")
    world.there.put_many([first, last, following], [b"first", b"last", b"next"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    complete_all(world.state)
    assert list(world.here.scan()) == [(first, b"first"), (last, b"last")]
    assert list(world.there.scan()) == [(following, b"next")]


def test_without_a_cache_every_batch_asks_for_the_groups_that_it_touches(world):
    asked = []

    def locate(groups):
        asked.append(sorted(groups))
        return dict.fromkeys(groups, world.peer.address)

    state = PlacedStore(world.here, HERE, [STATE], world.peer.connect, locate=locate)
    state.ownership.adopt({GROUP: 1}, "moved:1")
    state.ownership.adopt({6: 1})
    state.put_many([key("k"), key("k", 6)], [b"1", b"2"])
    assert state.get_many([key("k")]) == [b"1"]
    assert asked == [[GROUP, 6], [GROUP]]
    assert list(world.here.scan()) == [(key("k", 6), b"2")]


# --- the wire --------------------------------------------------------------------------------------------------------


def test_one_batch_makes_one_call_per_peer(world):
    calls = []
    get = world.there.get_many
    world.there.get_many = lambda keys: calls.append(len(keys)) or get(keys)
    world.state.ownership.adopt({1: 1, 2: 1}, world.peer.address)
    world.state.ownership.adopt({3: 1})
    world.state.get_many([key(str(number), 1 + number % 3) for number in range(999)])
    assert calls == [666]
    stats = world.state.stats()
    assert (stats.gets, stats.remote_gets, stats.remote_puts) == (999, 666, 0)
    assert stats.remote_bytes > 666 * 6


def test_requests_and_replies_larger_than_a_message_are_cut(world):
    value = bytes(MESSAGE_BYTES_MAX // 10)
    keys = [key(f"{number:03}") for number in range(30)]
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    world.state.put_many(keys, [value] * 30)
    assert world.state.get_many(keys) == [value] * 30
    assert world.state.get_many([key("x"), *keys]) == [None] + [value] * 30
    assert [entry[0] for entry in world.state.scan()] == keys
    long_keys = [key("x" * (REQUEST_BYTES_MAX // 3) + str(number)) for number in range(7)]
    assert world.state.get_many([*long_keys, keys[0]]) == [None] * 7 + [value]
    world.state.write(deletes=[*long_keys, *keys])
    assert list(world.there.scan()) == []


def test_an_entry_larger_than_a_message_is_refused_with_the_setting_to_raise(world):
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    with pytest.raises(StateError, match=r"raise taskManager\.message_bytes_max"):
        world.state.put_many([key("k")], [bytes(2 * MESSAGE_BYTES_MAX)])


def test_a_peer_that_is_gone_is_named(world):
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    world.state.ownership.adopt({6: 1})
    world.peer.server.stop(0).wait()
    calls = [
        lambda: world.state.get_many([key("k")]),
        lambda: world.state.get_many([key("k"), key("k", 6)]),
        lambda: world.state.put_many([key("k")], [b""]),
        world.state.scan,
    ]
    for call in calls:
        with pytest.raises(ConnectionLostError, match=world.peer.address):
            call()
    world.peer.connection.close()
    with pytest.raises(ConnectionLostError, match=world.peer.address):
        world.state.get_many([key("k")])
    assert world.state.get_many([key("k", 6)]) == [None]


def test_a_store_that_fails_at_the_peer_says_so(world):
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    world.there.close()
    with pytest.raises(StateError, match=f"{world.peer.address}: the memory store is closed"):
        world.state.get_many([key("k")])


def test_a_dropped_scan_is_cancelled_at_the_peer(world):
    world.there.put_many([key(f"{number:04}") for number in range(300)], [bytes(50_000)] * 300)
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    # The peer has 16 threads: it serves more scans than that only if dropped ones end.
    for _ in range(40):
        assert next(world.state.scan())[0] == key("0000")


def test_pieces_of_a_range_are_its_part_of_each_owned_group_and_state():
    random = Random(3)
    places = GroupPlaces([2, 5, 0xFFFF], {group.to_bytes(2, "big"): None for group in (0, 1, 3, 9)})
    bounds = [(group, state) for group in (0, 1, 3, 9) for state in (2, 5, 0xFFFF)]

    def end():
        number = random.randrange(11 << 16).to_bytes(4, "big")
        near = random.choice(bounds)
        return random.choice(
            [None, number, number[:2], number[:3], state_bounds(*near)[0], state_bounds(*near)[1]]
        )

    for _ in range(2_000):
        start, stop = end(), end()
        expected = []
        for group, state in bounds:
            first, last = state_bounds(group, state)
            first, last = max(first, start or b""), last if stop is None else min(last, stop)
            # Whole keys have four bytes at least.
            is_before = start is not None and group.to_bytes(2, "big") < start[:2]
            expected += [(first, last)] if first < last and not is_before else []
        assert [(piece.start, piece.stop) for piece in places.pieces(start, stop)] == expected


def test_of_an_image_nobody_asks_whether_a_group_has_keys_of_a_state():
    """In S3 that was a request for each group, state and table, for which the first rows waited."""

    def use(image_id):
        raise AssertionError(image_id)

    state = PlacedStore(
        MemoryBackend(), HERE, [STATE], lambda address, _: ImageClient(address, use, lambda: None)
    )
    state.ownership.adopt({1: 1}, "image:one", migrate=True)
    state.ownership.adopt({2: 1})
    assert state.may_hold(state_prefix(1, STATE))
    assert not state.may_hold(state_prefix(2, STATE))
