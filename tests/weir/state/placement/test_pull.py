"""How groups come here, beside what the subtask reads, writes and deletes; the whole way is in ``test_migration``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from tests.weir.state.group_ranges import group_range
from tests.weir.state.placement.worlds import GROUP, HERE, STATE, complete_all, key
from weir.errors import ConnectionLostError
from weir.state.images.image_client import ImageClient
from weir.state.layout import state_prefix
from weir.state.placement.group_places import group_bounds, state_bounds
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend


def test_deleting_a_range_of_a_migrating_group_reaches_the_peer_and_a_chunk_in_flight(world):
    world.there.put_many([key("a"), key("b")], [b"1", b"2"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    (group,) = world.state.pull.migrating()
    chunk = list(world.there.scan(*group_range(GROUP, GROUP + 1)))
    version = group.version
    world.state.delete_range(key("a"), key("b"))
    assert not world.state.pull._keep_absent(group, version, chunk)
    assert list(world.state.scan()) == [(key("b"), b"2")]
    complete_all(world.state)
    assert list(world.state.scan()) == [(key("b"), b"2")]


def test_a_chunk_leaves_out_what_was_written_or_deleted_here(world):
    names = "abcdefgh"
    world.there.put_many([key(name) for name in names], [b"there"] * len(names))
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    world.state.write([(key("b"), b"here")], [key("d")])
    (group,) = world.state.pull.migrating()
    position, keys, size_bytes = world.state.pull.fetch(group, b"", 1 << 20)
    assert (position, keys, size_bytes) == (None, 8, sum(len(key(name)) + 5 for name in names))
    kept = dict(world.here.scan())
    assert kept == {key(name): b"here" if name == "b" else b"there" for name in names if name != "d"}
    assert world.state.stats().remote_gets == 8


def test_chunks_end_where_one_is_smaller_than_asked_for(world):
    """Another call would show nothing more, and of groups there are many."""
    world.there.put_many([key(name) for name in "abcd"], [b"there"] * 4)
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    (group,) = world.state.pull.migrating()
    each_bytes = len(key("a")) + 5
    position, keys, _ = world.state.pull.fetch(group, b"", 3 * each_bytes)
    assert (position, keys) == (key("c") + b"\0", 3)
    assert world.state.pull.fetch(group, position, 3 * each_bytes)[:2] == (None, 1)
    # A chunk that is as large as asked for may be the last one: only another call shows that.
    position, keys, _ = world.state.pull.fetch(group, b"", 4 * each_bytes)
    assert (position, keys) == (key("d") + b"\0", 4)
    assert world.state.pull.fetch(group, position, 4 * each_bytes) == (None, 0, 0)
    assert dict(world.here.scan()) == {key(name): b"there" for name in "abcd"}


def test_the_states_of_a_group_go_from_the_peer_in_one_range_where_no_other_is_between():
    assert group_bounds(3, [7, 5, 6]) == [(state_prefix(3, 5), state_prefix(3, 8))]
    assert group_bounds(3, [5, 7]) == [state_bounds(3, 5), state_bounds(3, 7)]
    assert group_bounds(3, [4095]) == [state_bounds(3, 4095)]
    assert group_bounds(3, []) == []


def test_a_group_is_unsettled_until_the_copy_of_the_peer_is_gone(world):
    world.there.put_many([key("k")], [b"1"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    (group,) = world.state.pull.migrating()
    fails = world.there.delete_range
    world.there.delete_range = lambda start, stop: (_ for _ in ()).throw(ConnectionLostError("away"))
    world.state.pull.fetch(group, b"", 1 << 20)
    world.state.pull.arrived([group])
    with pytest.raises(Exception, match="away"):
        world.state.pull.clean(group)
    assert world.state.pull.migrating() == []
    assert world.state.pull.unsettled_count() == 1
    world.there.delete_range = fails
    assert world.state.get_many([key("k")]) == [b"1"]


def test_heartbeats_do_not_wait_while_rows_wait_for_a_store_elsewhere(world):
    """After a restart from S3 they waited for seconds, and the task manager lost its lease: two more restarts."""
    world.state.ownership.adopt({GROUP: 1}, world.peer.address, migrate=True)
    with ThreadPoolExecutor() as pool, world.state.ownership.lock:
        state = world.state
        asked = [pool.submit(state.pull.migrating), pool.submit(state.pull.unsettled_count)]
        settled = pool.submit(state.is_settled, GROUP)
        assert [group.group for group in asked[0].result(10)] == [GROUP]
        assert asked[1].result(10) == 1
        assert not settled.result(10)


def test_nobody_waits_while_scans_of_an_image_are_prepared():
    begun, ended = threading.Event(), threading.Event()

    class Slow(MemoryBackend):
        def will_scan(self, ranges, bytes_max):
            begun.set()
            assert ended.wait(10)

    def connect(address, epochs):
        return ImageClient(address, lambda image_id: nullcontext(Slow()), lambda: None)

    state = PlacedStore(MemoryBackend(), HERE, [STATE], connect)
    state.ownership.adopt({GROUP: 1}, "image:one", migrate=True)
    with ThreadPoolExecutor() as pool:
        prepared = pool.submit(state.will_scan, [(key(""), key("z"))], 0)
        assert begun.wait(10)
        written = pool.submit(state.write, [(key("a"), b"1")])
        try:
            written.result(5)
        finally:
            ended.set()
        prepared.result(10)
