"""Whatever happens between a barrier and the last row that is written, reads are those of a plain dict."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.effort import cases
from tests.weir.state.cassandra.last_write_wins import DatabaseStoppedError, LastWriteWins
from weir.state.cassandra.applying import Applying
from weir.state.cassandra.store import DatabaseStore
from weir.state.layout import encode_key
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend

STATE, GROUPS = 3, 2
KEYS = [encode_key(number % GROUPS, STATE, b"%d" % number) for number in range(12)]


class Process:
    """A task manager with one subtask; it dies when nobody asks it any more, and may wake up later."""

    def __init__(self, tables: LastWriteWins, image: list[tuple[bytes, bytes]], ended_id: int) -> None:
        self.passed_id = 0
        self.local = MemoryBackend()
        self.local.write(image)
        changes = PlacedStore(self.local, "here", [STATE], lambda address, epochs: pytest.fail(address))
        changes.ownership.adopt(dict.fromkeys(range(GROUPS), 1))
        self.store = DatabaseStore(changes, tables, passed_id=lambda: self.passed_id, ended_id=ended_id)  # type: ignore[arg-type]
        self.applying = Applying(tables, "job")  # type: ignore[arg-type]

    def apply(self, checkpoint_id: int) -> None:
        self.applying.apply(checkpoint_id, [(self.store, checkpoint_id)])


class World:
    """A job with one subtask, its checkpoints, and a database that other processes of the job may write to, too."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tables = LastWriteWins()
        self.model: dict[bytes, bytes] = {}
        self.last_id = 0
        #: The latest manifest: number, image, and what a plain dict had then.
        self.manifest: tuple[int, list[tuple[bytes, bytes]], dict[bytes, bytes]] = (0, [], {})
        self.process = Process(self.tables, [], 0)
        #: Processes that were replaced, with the checkpoints that they may still apply.
        self.asleep: list[tuple[Process, int]] = []

    def write(self) -> None:
        puts = [(key, b"%d" % self.chance.randrange(1000)) for key in self.chance.sample(KEYS, 3)]
        deletes = self.chance.sample(KEYS, self.chance.randrange(3))
        self.process.store.write(puts, deletes)
        self.model.update(puts)
        for key in deletes:
            self.model.pop(key, None)

    def checkpoint(self) -> None:
        """A barrier passes, an image is taken; it may come to nothing, and who applies it may stop anywhere."""
        self.last_id += self.chance.choice((1, 1, 3))
        number = self.process.passed_id = self.last_id
        image = (number, list(self.process.local.scan()), dict(self.model))
        if self.chance.random() < 0.5:
            # Later writes come before the checkpoint is complete.
            self.write()
        if self.chance.random() < 0.25:
            return
        self.manifest = image
        match self.chance.randrange(3):
            case 0:
                self.process.apply(number)
            case 1:
                self.tables.writes_left = self.chance.randrange(6)
                with contextlib.suppress(DatabaseStoppedError):
                    self.process.apply(number)
                self.tables.writes_left = None
            case _:
                self.asleep.append((self.process, number))

    def crash(self) -> None:
        """The job starts again from the latest manifest; the old process may only be paused."""
        old, number = self.process, self.process.passed_id
        if number and number == self.manifest[0]:
            self.asleep.append((old, number))
        self.process = Process(self.tables, self.manifest[1], self.last_id)
        self.model = dict(self.manifest[2])

    def wake(self) -> None:
        """Somebody who was paused goes on to apply a checkpoint that he knows to be complete."""
        if self.asleep:
            process, number = self.asleep.pop(self.chance.randrange(len(self.asleep)))
            process.apply(number)

    def check(self) -> None:
        assert self.process.store.get_many(KEYS) == [self.model.get(key) for key in KEYS]
        assert list(self.process.store.scan()) == sorted(self.model.items())
        assert list(self.process.store.scan(reverse=True)) == sorted(self.model.items(), reverse=True)
        self.check_heads()

    def check_heads(self) -> None:
        """The beginnings of the ranges of both key groups have all that there is up to where they say."""
        ranges = [
            (encode_key(group, STATE, b""), encode_key(group, STATE, b"\xff")) for group in range(GROUPS)
        ]
        rows_max = [self.chance.randint(1, 4) for _ in ranges]
        reverse = self.chance.random() < 0.5
        heads = self.process.store.scan_heads(ranges, rows_max, reverse=reverse)
        for (start, stop), rows, head in zip(ranges, rows_max, heads, strict=True):
            if head.until is not None:
                start, stop = (head.until, stop) if reverse else (start, head.until + b"\0")
            wanted = [entry for entry in sorted(self.model.items()) if start <= entry[0] < stop]
            assert head.entries == (wanted[::-1] if reverse else wanted)
            assert head.until is None or len(head.entries) <= 2 * rows


@pytest.mark.parametrize("seed", range(cases(30)))
def test_reads_are_those_of_a_dict_over_crashes_and_late_writers(seed: int) -> None:
    world = World(seed)
    steps = [world.write, world.write, world.checkpoint, world.checkpoint, world.crash, world.wake]
    for _ in range(60):
        world.chance.choice(steps)()
        world.check()


def test_nothing_is_in_the_database_before_its_checkpoint_is_complete() -> None:
    tables = LastWriteWins()
    process = Process(tables, [], 0)
    process.passed_id = 1
    process.store.write([(KEYS[0], b"covered by 2")])
    process.apply(1)
    assert tables.rows == {}
    process.passed_id = 2
    process.store.write([(KEYS[0], b"covered by 3")])
    process.store.write([(KEYS[1], b"covered by 3")])
    process.apply(2)
    # The older value of the key was replaced before it was applied: the newer one comes with checkpoint 3.
    assert tables.rows == {}
    process.apply(3)
    assert tables.rows == {KEYS[0]: (3, b"covered by 3"), KEYS[1]: (3, b"covered by 3")}
    assert list(process.local.scan()) == []


def test_before_its_first_barrier_a_subtask_trusts_no_checkpoint_that_is_under_way() -> None:
    tables = LastWriteWins()
    process = Process(tables, [], ended_id=6)
    process.store.write([(KEYS[0], b"new")])
    # Checkpoint 7 may be complete without this subtask, which a rescale has added meanwhile.
    process.apply(7)
    assert tables.rows == {}
    process.apply(8)
    assert tables.rows == {KEYS[0]: (8, b"new")}


def test_a_change_that_was_replaced_while_it_was_applied_stays() -> None:
    tables = LastWriteWins()
    process = Process(tables, [], 0)
    process.passed_id = 1
    process.store.write([(KEYS[0], b"old")])
    (stale,) = process.store.unapplied(None)
    process.store.write([(KEYS[0], b"new")])
    process.store.applied([stale])
    assert process.store.get_many(KEYS[:1]) == [b"new"]
