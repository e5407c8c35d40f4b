"""State that moves while it is used: pulled in the background, or shipped beforehand."""

from __future__ import annotations

import functools
import random
import threading
from pathlib import Path

import pytest

from tests.effort import cases
from tests.weir.state.conftest import SMALL_SETTINGS
from tests.weir.state.state_peer import serving
from weir.clock import SystemClock
from weir.errors import ConnectionLostError, FencedError, StateError
from weir.state import pieces
from weir.state.layout import encode_key
from weir.state.placement.migration import Migrator, ship_groups
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import open_store

STATE = 2
FAST = 1 << 40


@functools.cache
def key(number: int, groups: int = 4, state_id: int = STATE) -> bytes:
    return encode_key(number % groups, state_id, b"%06d" % number)


class Outcome:
    """What a migrator reports; waits for it."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.errors: list[Exception] = []
        self._changed = threading.Condition()

    def completed(self, group: int) -> None:
        with self._changed:
            self.groups.append(group)
            self._changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self._changed:
            self.errors.append(error)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.groups) + len(self.errors) >= count, 60)


@pytest.mark.parametrize("seed", range(cases(1)))
@pytest.mark.parametrize(
    ("groups", "chunk_bytes", "piece_entries"), [(4, 512, 500), (4, 512, 3), (16, 8_000, 3)]
)
def test_random_operations_agree_with_a_dictionary_while_their_groups_migrate(
    tmp_path: Path,
    seed: int,
    groups: int,
    chunk_bytes: int,
    piece_entries: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """Chunk by chunk, and several small groups by one call."""
    monkeypatch.setattr(pieces, "PIECE_ENTRIES_MAX", piece_entries)
    chance = random.Random(seed)
    here = open_store(tmp_path / "here", SMALL_SETTINGS, fresh=True)
    there = open_store(tmp_path / "there", SMALL_SETTINGS, fresh=True)
    model = {key(number, groups): b"old %d" % number for number in range(0, 3_000, 2)}
    foreign = [(key(number, state_id=9), b"other stage") for number in range(8)]
    there.write([*model.items(), *foreign])
    with serving(there) as peer:
        state = PlacedStore(here, "here:1", [1, STATE], peer.connect, fetches=True)
        state.ownership.adopt(dict.fromkeys(range(groups), 2), peer.address)
        outcome, migrator = Outcome(), Migrator(2_000_000, chunk_bytes, SystemClock())
        migrator.add(state, on_complete=outcome.completed, on_error=outcome.failed)
        steps = 0
        while not migrator.progress(state).complete or steps < 100:
            steps += 1
            _operate(chance, state, model, groups)
        outcome.wait_for(groups)
        migrator.close()
        assert outcome.errors == []
        assert sorted(outcome.groups) == list(range(groups))
        assert list(state.scan()) == sorted(model.items())
        assert list(there.scan()) == sorted(foreign)
        assert sorted(here.scan()) == sorted(model.items())
    here.close()
    there.close()


def _operate(chance: random.Random, state: PlacedStore, model: dict[bytes, bytes], groups: int) -> None:
    keys = [key(chance.randrange(3_200), groups) for _ in range(chance.randrange(1, 20))]
    action = chance.random()
    if action < 0.45:
        assert state.get_many(keys) == [model.get(each) for each in keys]
    elif action < 0.7:
        value = b"%d" % chance.randrange(1_000_000)
        state.put_many(keys, [value] * len(keys))
        model.update(dict.fromkeys(keys, value))
    elif action < 0.92:
        state.write(deletes=keys)
        for each in keys:
            model.pop(each, None)
    elif action < 0.95:
        start = chance.randrange(3_000)
        first, last = key(start, groups), key(start + groups * chance.randrange(25), groups)
        state.delete_range(first, last)
        for each in [e for e in model if first <= e < last]:
            del model[each]
    elif action < 0.98:
        want = sorted(entry for entry in model.items() if keys[0] <= entry[0])
        assert list(state.scan(keys[0])) == want
    else:
        assert list(state.scan(reverse=True)) == sorted(model.items(), reverse=True)


def test_the_group_that_is_wanted_most_comes_first_and_progress_is_visible():
    there, here = MemoryBackend(), MemoryBackend()
    there.write([(key(number), bytes(90)) for number in range(400)])
    with serving(there) as peer:
        state = PlacedStore(here, "here:1", [STATE], peer.connect, fetches=True)
        state.ownership.adopt({0: 1, 1: 1, 2: 1, 3: 1}, peer.address)
        state.get_many([key(1), *(key(number) for number in (2, 6))])
        outcome, migrator = Outcome(), Migrator(FAST, 1_000, SystemClock())
        migrator.add(state, on_complete=outcome.completed, on_error=outcome.failed)
        outcome.wait_for(4)
        progress = migrator.progress()
        migrator.close()
        assert outcome.groups[:2] == [2, 1]
        assert (progress.groups_done, progress.groups_total, progress.keys) == (4, 4, 400)
        assert progress.bytes == 400 * (11 + 90)
        assert progress.complete


def test_small_groups_come_several_at_a_time_until_a_call_is_full():
    """A call to a busy peer takes 10 ms and more, and so does a read of a group that is not here."""
    groups, large = 128, range(40, 60)
    numbers = [number for number in range(20 * groups) if number < groups or number % groups in large]
    there, here = MemoryBackend(), MemoryBackend()
    there.write([(key(number, groups), bytes(89)) for number in numbers])
    calls: list[bytes] = []

    def connect(address, epochs):
        client = peer.connect(address, epochs)
        scan = client.scan
        client.scan = lambda start, *rest, **how: (calls.append(start), scan(start, *rest, **how))[1]
        return client

    with serving(there) as peer:
        state = PlacedStore(here, "here:1", [STATE], connect, fetches=True)
        state.ownership.adopt(dict.fromkeys(range(groups), 1), peer.address)
        outcome, migrator = Outcome(), Migrator(FAST, 8_000, SystemClock())
        migrator.add(state, on_complete=outcome.completed, on_error=outcome.failed)
        outcome.wait_for(groups)
        migrator.close()
    assert sorted(outcome.groups) == list(range(groups))
    assert outcome.errors == []
    assert sorted(here.scan()) == sorted((key(number, groups), bytes(89)) for number in numbers)
    assert list(there.scan()) == []
    # 128 groups, 48 KB.
    assert len(calls) < 30


def test_a_migration_in_two_parts_is_counted_once():
    there, here = MemoryBackend(), MemoryBackend()
    there.write([(key(number), b"v") for number in range(100)])
    with serving(there) as peer:
        state = PlacedStore(here, "here:1", [STATE], peer.connect, fetches=True)
        outcome, migrator = Outcome(), Migrator(FAST, 1_000, SystemClock())
        for groups in ({0: 1, 1: 1}, {2: 1, 3: 1}):
            state.ownership.adopt(groups, peer.address)
            migrator.add(state, on_complete=outcome.completed, on_error=outcome.failed)
        outcome.wait_for(4)
        migrator.close()
        assert migrator.progress().complete
        assert sorted(outcome.groups) == [0, 1, 2, 3]
        assert len(list(here.scan())) == 100


def test_a_migration_whose_peer_dies_reports_it_once():
    there, here = MemoryBackend(), MemoryBackend()
    with serving(there) as peer:
        state = PlacedStore(here, "here:1", [STATE], peer.connect, fetches=True)
        state.ownership.adopt({0: 1, 1: 1}, peer.address)
        peer.server.stop(0).wait()
        outcome, migrator = Outcome(), Migrator(FAST, 1_000, SystemClock())
        migrator.add(state, on_complete=outcome.completed, on_error=outcome.failed)
        outcome.wait_for(1)
        migrator.close()
        assert outcome.groups == []
        (error,) = outcome.errors
        assert isinstance(error, ConnectionLostError)
        assert peer.address in str(error)


def test_shipped_groups_are_at_the_new_owner_and_gone_here():
    source, target = MemoryBackend(), MemoryBackend()
    moved = [(key(number), bytes(100)) for number in range(1_000)]
    foreign = [(key(0, state_id=9), b"other stage")]
    source.write([*moved, *foreign])
    with serving(target) as peer:
        old = PlacedStore(source, "here:1", [STATE], peer.connect)
        old.ownership.adopt(dict.fromkeys(range(4), 1))
        done = []
        client = old.ownership.client(peer.address)
        sent = ship_groups(
            source,
            client,
            [2, 0],
            [STATE],
            SystemClock(),
            on_group=lambda *part: done.append(part),
            batch_bytes=2_000,
        )
        assert sent == 500 * 111
        assert done == [(2, 250 * 111), (0, 250 * 111)]
        kept = [entry for entry in moved if entry[0][1] in (1, 3)]
        assert list(source.scan()) == sorted([*kept, *foreign])
        assert list(target.scan()) == sorted(set(moved) - set(kept))
        # The new owner is in force as soon as it has touched the group.
        new = PlacedStore(MemoryBackend(), "there:1", [STATE], peer.connect)
        new.ownership.adopt({1: 2}, peer.address)
        new.put_many([key(1)], [b"new"])
        with pytest.raises(FencedError):
            ship_groups(source, client, [1], [STATE], SystemClock())
        assert target.get_many([key(1)]) == [b"new"]
        assert len(list(source.scan())) == 501


def test_much_state_is_loaded_at_the_new_owner(tmp_path: Path):
    source, target = MemoryBackend(), open_store(tmp_path / "there", SMALL_SETTINGS, fresh=True)
    entries = [(encode_key(1, STATE, b"%06d" % number), b"%06d" % number * 20) for number in range(8_000)]
    source.write(entries)
    with serving(target) as peer:
        old = PlacedStore(source, "here:1", [STATE], peer.connect)
        old.ownership.adopt({1: 1})
        client = old.ownership.client(peer.address)
        ship_groups(source, client, [1], [STATE], SystemClock(), batch_bytes=400_000)
        assert list(target.scan()) == entries
        # What is there already is replaced.
        client.load([(key, b"again") for key, _ in entries[:100]])
        assert target.get_many([entries[0][0], entries[100][0]]) == [b"again", entries[100][1]]
        with pytest.raises(StateError, match="must ascend"):
            client.load(entries[:2][::-1])
        with pytest.raises(FencedError):
            client.load([(key(2), b"not ours")])
    target.close()
