"""What RocksDB tells of itself, as counters."""

import random

from weir.config.stores import RocksDbConfig
from weir.state.stores.rocksdb import open_store
from weir.state.stores.rocksdb_health import cache_looks, merges

TABLE = """
Priority    Files   Size     Score Read(GB)  Rn(GB) Rnp1(GB) Write(GB) Wnew(GB) Moved(GB) W-Amp Rd(MB/s) Wr(MB/s) Sec
 Low      0/0    0.00 KB   0.0      0.0     0.0      0.0       0.0      0.0       0.0   0.0    148.2    150.0      2.50
High      0/0    0.00 KB   0.0      0.0     0.0      0.0       0.0      0.0       0.0   0.0      0.0     97.2      0.03
"""


def test_merges_are_read_from_their_row():
    assert merges(TABLE) == (2.5, 375 << 20)
    assert merges("") == (0.0, 0)
    text = "rocksdb.block.cache.data.hit COUNT : 7\nrocksdb.block.cache.data.hit.x COUNT : 1\n"
    assert cache_looks(text) == {("data", "hit"): 7}


def test_a_store_counts_scans_merges_and_looks_into_its_cache(tmp_path):
    settings = RocksDbConfig(write_buffer_bytes=1 << 20, level_0_runs=2, statistics=True)
    store = open_store(tmp_path / "store", settings, fresh=True)
    chance = random.Random(1)
    tables = store.stats().tables
    assert (tables.scans, tables.merged_bytes) == (0, 0)
    for _ in range(6):
        store.write([(chance.randbytes(6), chance.randbytes(500)) for _ in range(4_000)])
        store.flush()
    store.compact()
    assert len(list(store.scan(b"a", b"c"))) > 0
    store.get_many([chance.randbytes(6)])
    tables = store.stats().tables
    assert tables.scans == 1
    assert tables.scan_s > 0
    assert tables.merged_bytes > tables.total_bytes / 2
    assert tables.merge_s > 0
    assert tables.cache_looks["data", "miss"] > 0
    store.close()
