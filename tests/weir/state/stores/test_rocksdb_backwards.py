"""Scans backwards: what was deleted around their range costs nothing, and they are those of a plain dict."""

import random
import time
from pathlib import Path

import pytest

from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.stores.rocksdb import open_store

SETTINGS = RocksDbConfig(
    block_cache_bytes=1 << 20, write_buffer_bytes=256 << 10, write_buffer_total_bytes=1 << 20
)


@pytest.mark.parametrize("live", [0, 1, 2])
def test_deletions_before_the_range_are_not_looked_at(tmp_path: Path, live: int) -> None:
    store = open_store(tmp_path / "store", RocksDbConfig(), fresh=True)
    keys = [b"%06d" % number for number in range(100_000)]
    store.put_many(keys, keys)
    store.write(deletes=keys)
    entries = [(b"1%05d" % number, b"v") for number in range(live)]
    store.write(entries)
    began_s = time.perf_counter()
    # What one that is not bounded looks at.
    assert next(store._store.keys(backwards=True, from_key=b"0999999"), None) is None
    all_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    for _ in range(20):
        assert list(store.scan(b"1", b"2", reverse=True)) == entries[::-1]
        assert list(store.scan(b"05", b"050001", reverse=True)) == []
    assert time.perf_counter() - began_s < all_s
    store.close()


def test_random_scans_are_those_of_a_dict(tmp_path: Path) -> None:
    store, chance, entries = open_store(tmp_path / "store", SETTINGS, fresh=True), random.Random(3), {}
    keys = [b"%d" % number for number in range(300)]
    for _ in range(300):
        puts = [(chance.choice(keys), b"%d" % chance.randrange(99)) for _ in range(chance.randrange(40))]
        deletes = chance.sample(keys, chance.randrange(60))
        store.write(puts, deletes)
        entries |= dict(puts)
        for key in deletes:
            entries.pop(key, None)
        start, stop = (chance.choice([None, b"", *keys]) for _ in range(2))
        found = store.scan(start, stop, reverse=True)
        expected = sorted(
            (
                entry
                for entry in entries.items()
                if (start is None or entry[0] >= start) and (stop is None or entry[0] < stop)
            ),
            reverse=True,
        )
        # It is of the moment when it begins.
        store.write([(key, b"later") for key in chance.sample(keys, 3)], chance.sample(keys, 3))
        assert list(found) == expected
        entries = dict(store.scan())
    store.close()


def test_a_store_that_is_closed_is_not_read_on(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", SETTINGS, fresh=True)
    store.put_many([b"a", b"b"], [b"1", b"2"])
    scan = store.scan(reverse=True)
    assert next(scan) == (b"b", b"2")
    store.close()
    with pytest.raises(StateError, match="closed"):
        next(scan)
