"""Stores of both kinds from one place."""

import pytest

from weir.errors import StateError
from weir.state.stores.directory_lock import claim_directory
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import RocksDbBackend
from weir.state.stores.rocksdb_settings import RocksDbSettings
from weir.state.stores.store_factory import StoreFactory

SETTINGS = RocksDbSettings(
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
