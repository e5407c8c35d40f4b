from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.weir.state.database_backend import SharedTables, database_backend
from tests.weir.state.spread_keys import SpreadKeys
from tests.weir.state.state_peer import serving
from weir.config.stores import RocksDbConfig
from weir.state.api import StateBackend
from weir.state.layout import encode_key
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import RocksDbBackend, open_store
from weir.state.tables.values.value_cache import WriteBackCache

SMALL_SETTINGS = RocksDbConfig(
    block_cache_bytes=1 << 20, write_buffer_bytes=256 << 10, write_buffer_total_bytes=1 << 20
)
CASSANDRA = [pytest.mark.service]
#: Three or four entries: nearly every operation evicts.
TINY_CACHE_BYTES = 1000


@pytest.fixture
def rocksdb(tmp_path: Path) -> Iterator[RocksDbBackend]:
    store = open_store(tmp_path / "store", SMALL_SETTINGS, fresh=True)
    yield store
    store.close()


@pytest.fixture(scope="session")
def cassandra_tables(cassandra_port: int) -> Iterator[SharedTables]:
    shared = SharedTables(cassandra_port)
    yield shared
    shared.close()


@pytest.fixture(
    params=[
        "memory",
        "rocksdb",
        "cache over memory",
        "cache over rocksdb",
        "hybrid local over rocksdb",
        "hybrid remote over memory",
        "hybrid remote over rocksdb",
        "hybrid migrating over memory",
        "hybrid migrating over rocksdb",
        "hybrid mixed over rocksdb",
        pytest.param("cassandra", marks=CASSANDRA),
        pytest.param("cassandra, applied", marks=CASSANDRA),
        pytest.param("cassandra, buckets", marks=CASSANDRA),
    ]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateBackend]:
    kind: str = request.param
    if kind.startswith("cassandra"):
        shared: SharedTables = request.getfixturevalue("cassandra_tables")
        yield from database_backend(shared.of(3 if "buckets" in kind else 1), applies="applied" in kind)
        return
    if kind.startswith("hybrid"):
        yield from _hybrid(kind.split()[1], kind.endswith("rocksdb"), tmp_path)
        return
    below = request.getfixturevalue("rocksdb") if kind.endswith("rocksdb") else MemoryBackend()
    store = WriteBackCache(below, TINY_CACHE_BYTES) if kind.startswith("cache") else below
    yield store
    store.close()
    below.close()


def _hybrid(placement: str, over_rocksdb: bool, tmp_path: Path) -> Iterator[StateBackend]:
    """A hybrid backend whose peer is reached over a socket; both stores hold entries that are not its own."""
    stores: list[StateBackend] = [
        open_store(tmp_path / name, SMALL_SETTINGS, fresh=True) if over_rocksdb else MemoryBackend()
        for name in ("here", "there")
    ]
    foreign = [(encode_key(group, state_id, b"foreign"), b"x") for group in range(5) for state_id in (1, 3)]
    for store in stores:
        store.write(foreign)
    here, there = stores
    with serving(there) as peer:
        hybrid = PlacedStore(here, "here:1", [2], peer.connect)
        places = {"local": "LLLL", "remote": "RRRR", "migrating": "MMMM", "mixed": "LRMR"}[placement]
        for group, place in enumerate(places):
            location = None if place == "L" else peer.address
            hybrid.ownership.adopt({group: 1}, location, migrate=place == "M")
        backend = SpreadKeys(hybrid)
        yield backend
        backend.close()
        for store in stores:
            assert [entry for entry in store.scan() if entry[0][:4] != entry[0][:2] + b"\0\2"] == foreign
    for store in stores:
        store.close()
