from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.state.api import StateBackend
from weir.state.cache import WriteBackCache
from weir.state.memory import MemoryBackend
from weir.state.rocksdb import RocksDbBackend, open_store
from weir.state.rocksdb_settings import RocksDbSettings

SMALL_SETTINGS = RocksDbSettings(
    block_cache_bytes=1 << 20, write_buffer_bytes=256 << 10, write_buffer_total_bytes=1 << 20
)
#: Three or four entries: nearly every operation evicts.
TINY_CACHE_BYTES = 1000


@pytest.fixture
def rocksdb(tmp_path: Path) -> Iterator[RocksDbBackend]:
    store = open_store(tmp_path / "store", SMALL_SETTINGS, fresh=True)
    yield store
    store.close()


@pytest.fixture(params=["memory", "rocksdb", "cache over memory", "cache over rocksdb"])
def backend(request: pytest.FixtureRequest) -> Iterator[StateBackend]:
    kind: str = request.param
    below = request.getfixturevalue("rocksdb") if kind.endswith("rocksdb") else MemoryBackend()
    store = WriteBackCache(below, TINY_CACHE_BYTES) if kind.startswith("cache") else below
    yield store
    store.close()
    below.close()
