"""A scan over a damaged table file gives every entry or an error: never a part of them without a word."""

import random

import pytest

from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.stores.rocksdb import open_store

ENTRIES = [(b"key-%06d" % number, b"value-%06d" % number * 5) for number in range(3_000)]


def written(directory):
    store = open_store(directory, RocksDbConfig(), fresh=True)
    store.write(ENTRIES)
    store.flush()
    store.compact()
    store.close()
    return max(directory.rglob("*.sst"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_told_by_scans(tmp_path, seed):
    table = written(tmp_path / "store")
    data = bytearray(table.read_bytes())
    rng = random.Random(seed)
    # Of the blocks of entries: index and footer lie at the end.
    data[rng.randrange(len(data) * 3 // 4)] ^= 1 << rng.randrange(8)
    table.write_bytes(data)
    try:
        store = open_store(tmp_path / "store", RocksDbConfig(mmap_reads=False), fresh=False)
    except StateError:
        return
    try:
        for reverse in (False, True):
            expected = ENTRIES[::-1] if reverse else ENTRIES
            try:
                found = list(store.scan(reverse=reverse))
            except StateError:
                continue
            # What comes without an error is all there is.
            assert found == expected
    finally:
        store.close()


def test_scans_of_parts_end_at_their_bounds(tmp_path):
    written(tmp_path / "store")
    store = open_store(tmp_path / "store", RocksDbConfig(), fresh=False)
    assert list(store.scan(b"key-000100", b"key-000200")) == ENTRIES[100:200]
    assert list(store.scan(b"key-000100", b"key-000200", reverse=True)) == ENTRIES[100:200][::-1]
    assert list(store.scan(b"x")) == []
    assert list(store.scan(b"a", b"b", reverse=True)) == []
    store.close()
