"""What was read ahead says the same as the store, whatever is written, cleared, captured and evicted meanwhile."""

import random

import pytest

from tests.effort import cases
from tests.weir.state.slow_memory import SlowMemory
from weir.state.tables.values import known_ranges, value_ahead
from weir.state.tables.values.reading_together import read_together
from weir.state.tables.values.value_cache import WriteBackCache

OWNERS = [b"00a", b"00b", b"01a", b"01b", b"02a"]


def owner_of(key: bytes) -> bytes:
    return key[:3]


class World:
    """One cache over a store, and a dict of what they have together."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        # So small that most ranges are known in part, and that what is known becomes too much.
        monkeypatch.setattr(value_ahead, "_ROWS_MAX", self.chance.choice([2, 5, 100]))
        monkeypatch.setattr(value_ahead, "_ROWS_MIN", 1)
        kept = self.chance.choice([2, 6, 1000])
        monkeypatch.setattr(known_ranges, "KNOWN_KEYS_MAX", kept)
        monkeypatch.setattr(value_ahead, "KNOWN_KEYS_MAX", kept)
        self.below = SlowMemory()
        self.model: dict[bytes, bytes] = {}
        for owner in OWNERS:
            for number in self.chance.sample(range(30), self.chance.choice([0, 3, 20])):
                self.model[owner + bytes([1, number])] = b"old"
        self.below.write(list(self.model.items()))
        self.cache = WriteBackCache(self.below, self.chance.choice([3_000, 20_000, 1 << 20]), owner_of)

    def key(self) -> bytes:
        return self.chance.choice(OWNERS) + bytes([1, self.chance.randrange(30)])

    def write(self) -> None:
        puts = [(self.key(), b"%d" % self.chance.randrange(100)) for _ in range(self.chance.randrange(4))]
        deletes = [self.key() for _ in range(self.chance.randrange(3))]
        self.cache.write(puts, deletes)
        self.model.update(puts)
        for key in deletes:
            self.model.pop(key, None)

    def write_new(self) -> None:
        there = set(map(owner_of, self.model))
        puts = [(owner + bytes([1, 0]), b"new") for owner in OWNERS if owner not in there]
        self.cache.write_new(puts)
        self.model.update(puts)

    def values(self) -> None:
        owners = self.chance.sample(OWNERS, 3)
        wanted = [[v for k, v in sorted(self.model.items()) if owner_of(k) == owner] for owner in owners]
        assert self.cache.values_of_owners(owners, b"\x01") == wanted

    def clear(self) -> None:
        owner = self.chance.choice(OWNERS)
        self.cache.clear_owner(owner)
        self.model = {key: value for key, value in self.model.items() if owner_of(key) != owner}

    def get(self) -> None:
        keys = [self.key() for _ in range(3)]
        assert self.cache.get_many(keys) == [self.model.get(key) for key in keys]

    def read_ahead(self) -> None:
        read_together([(self.cache, self.chance.sample(OWNERS, self.chance.randint(1, 5)))])

    def scan(self) -> None:
        owner = self.chance.choice(OWNERS)
        first, last = (bytes([1, self.chance.randrange(31)]) for _ in range(2))
        start, stop = owner + self.chance.choice([b"", first]), owner + self.chance.choice([b"\x02", last])
        reverse = self.chance.random() < 0.4
        found = self.cache.scan(start, stop, reverse=reverse)
        wanted = [entry for entry in sorted(self.model.items()) if start <= entry[0] < stop]
        if reverse:
            wanted.reverse()
        if self.chance.random() < 0.3:
            # The first one is often all that is wanted.
            assert next(found, None) == next(iter(wanted), None)
        else:
            assert list(found) == wanted

    def flush(self) -> None:
        if self.chance.random() < 0.5:
            self.cache.flush_part(self.chance.random())
        else:
            self.cache.flush()

    def capture(self) -> None:
        """What was noted at the barrier is written, or not, after more has happened."""
        capture = self.cache.capture()
        if capture is not None:
            for _ in range(self.chance.randrange(3)):
                self.chance.choice([self.write, self.write_new, self.get, self.clear, self.read_ahead])()
            if self.chance.random() < 0.7:
                capture.write()
            else:
                capture.abandon()

    def sweep(self) -> None:
        """What has expired goes from the store and from the cache."""
        keys = [self.key() for _ in range(3)]
        gone = self.cache.drop_written(keys)
        self.below.write((), gone)
        for key in gone:
            self.model.pop(key, None)

    def give_away(self) -> None:
        """A key group goes to another owner, who changes it, and comes back."""
        prefix = self.chance.choice([b"00", b"01", b"02"])
        self.cache.flush_prefixes([prefix])
        key = prefix + b"a" + bytes([1, self.chance.randrange(30)])
        self.below.write([(key, b"changed elsewhere")])
        self.model[key] = b"changed elsewhere"
        self.cache.forget_prefixes([prefix])


@pytest.mark.parametrize("seed", range(cases(60)))
def test_reads_are_those_of_a_dict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed, monkeypatch)
    often = [world.write, world.write, world.get, world.scan, world.scan, world.scan, world.read_ahead]
    often += [world.write_new, world.values]
    seldom = [world.clear, world.clear, world.flush, world.capture, world.sweep, world.give_away]
    for _ in range(60):
        world.chance.choice(often + often + seldom)()
    world.cache.flush()
    assert dict(world.below.scan()) == world.model


def test_owners_that_were_read_together_need_the_store_no_more_in_later_batches() -> None:
    below = SlowMemory()
    below.write([(owner + bytes([1, number]), b"v") for owner in OWNERS for number in range(10)])
    cache = WriteBackCache(below, 1 << 20, owner_of)
    assert read_together([(cache, OWNERS)]) == [len(OWNERS)]
    assert below.asked == 1
    for owner in OWNERS:
        assert len(list(cache.scan(owner + b"\x01\x03", owner + b"\x01\x07"))) == 4
        assert cache.get_many([owner + b"\x01\x09", owner + b"\x01\x10"]) == [b"v", None]
        cache.write([(owner + b"\x01\x10", b"own")], [owner + b"\x01\x00"])
        assert [key[4] for key, _ in cache.scan(owner, owner + b"\x02")] == [*range(1, 10), 16]
    cache.flush()
    assert next(cache.scan(b"00a\x01\x08", b"00a\x02", reverse=True)) == (b"00a\x01\x10", b"own")
    assert below.asked == 1


def test_owners_that_have_nothing_count_in_the_bound_of_the_cache() -> None:
    cache = WriteBackCache(SlowMemory(), 50_000, owner_of)
    for number in range(1_000):
        read_together([(cache, [b"%03d" % number])])
    assert 40_000 < cache.stats().memory_bytes <= 50_000
    assert cache.is_known(b"999")
    assert not cache.is_known(b"000")


def test_no_more_is_read_in_one_go_than_there_is_room_for() -> None:
    below, owners = SlowMemory(), [b"%03d" % number for number in range(100)]
    below.write([(owner + bytes([1, number]), bytes(100)) for owner in owners for number in range(10)])
    cache = WriteBackCache(below, 100_000, owner_of)
    (count,) = read_together([(cache, owners)])
    assert 1 < count < 20
    assert [cache.is_known(owner) for owner in owners] == [True] * count + [False] * (100 - count)
