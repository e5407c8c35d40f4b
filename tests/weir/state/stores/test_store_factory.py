"""Stores of both kinds from one place."""

import os

import pytest

from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.stores.directory_lock import claim_directory
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import RocksDbBackend
from weir.state.stores.rocksdb_settings import memory_bytes_max
from weir.state.stores.store_factory import StoreFactory

SETTINGS = RocksDbConfig(
    block_cache_bytes=1 << 20, write_buffer_bytes=256 << 10, write_buffer_total_bytes=1 << 20
)


def test_in_memory_no_directory_is_touched(tmp_path):
    factory = StoreFactory(None)
    with_nothing = factory.open_fresh(tmp_path / "store")
    assert isinstance(with_nothing, MemoryBackend)
    assert (factory.keeps_files, (tmp_path / "store").exists()) == (False, False)


def test_a_fresh_store_on_disk_is_empty_and_gives_its_directory_back(tmp_path):
    factory = StoreFactory(SETTINGS)
    for _ in range(2):
        store = factory.open_fresh(tmp_path / "store")
        assert isinstance(store, RocksDbBackend)
        assert list(store.scan()) == []
        store.put_many([b"k"], [b"v"])
        with pytest.raises(StateError, match="in use"):
            factory.open_fresh(tmp_path / "store")
        store.close()


def test_a_directory_that_is_claimed_is_opened_as_it_is(tmp_path):
    factory = StoreFactory(SETTINGS)
    store = factory.open_fresh(tmp_path / "store")
    store.put_many([b"k"], [b"v"])
    store.close()
    again = factory.open(claim_directory(tmp_path / "store", fresh=False))
    assert list(again.scan()) == [(b"k", b"v")]
    again.close()


def test_all_stores_of_a_factory_share_one_bound_of_memory_and_keep_it(tmp_path):
    """Memory tables, data blocks, indices and filters of all of them lie in one cache."""
    settings = RocksDbConfig(
        block_cache_bytes=4 << 20,
        write_buffer_bytes=512 << 10,
        write_buffer_total_bytes=2 << 20,
        mmap_reads=False,
    )
    factory = StoreFactory(settings)
    for number in range(2):
        filled = factory.open(claim_directory(tmp_path / f"image-{number}", fresh=True))
        filled.put_many([b"%07d" % key for key in range(40_000)], [os.urandom(100)] * 40_000)
        filled.flush()
        filled.close()
    images = [
        factory.open_files(claim_directory(tmp_path / f"image-{number}", fresh=False)) for number in range(2)
    ]
    own = factory.open(claim_directory(tmp_path / "own", fresh=True))
    memories = {id(store.memory) for store in (*images, own)}
    assert len(memories) == 1
    used_bytes = []
    for start in range(0, 60_000, 4_000):
        own.put_many([b"%07d" % key for key in range(start, start + 4_000)], [os.urandom(200)] * 4_000)
        for image in images:
            assert None not in image.get_many(
                [b"%07d" % (key * 37 % 40_000) for key in range(start, start + 2_000)]
            )
        used_bytes.append(own.memory.cache.get_usage())
    # More than one store may have alone, and never more than all may: but for a memory table that is being filled.
    assert max(used_bytes) > settings.block_cache_bytes // 2
    assert max(used_bytes) <= memory_bytes_max(settings) + settings.write_buffer_bytes
    for store in (*images, own):
        store.close()
