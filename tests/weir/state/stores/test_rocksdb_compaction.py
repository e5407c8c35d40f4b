"""Space of deleted entries goes back to the disk without a restart."""

import threading

from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.layout import encode_key, state_prefix
from weir.state.stores.rocksdb import open_store
from weir.state.stores.rocksdb_compaction import Compaction, compacted_ranges


def test_neighbouring_groups_are_merged_in_one_go_but_not_too_many():
    pending = dict.fromkeys([(3, 1), (4, 1), (4, 2), (9, 1), *((group, 1) for group in range(20, 60))], 1)
    assert compacted_ranges(pending) == [
        (state_prefix(3, 1), state_prefix(4, 3)),
        (state_prefix(9, 1), state_prefix(9, 2)),
        (state_prefix(20, 1), state_prefix(35, 2)),
        (state_prefix(36, 1), state_prefix(51, 2)),
        (state_prefix(52, 1), state_prefix(59, 2)),
    ]


def test_little_waits_until_it_is_a_fifth():
    ranges = []
    compaction = Compaction(lambda *bounds: ranges.append(bounds), lambda: 100 << 20)
    compaction.give_back(1, 1, 19 << 20)
    assert not ranges
    compaction.give_back(2, 1, 1 << 20)
    assert compaction.wait(30)
    assert ranges == [(state_prefix(1, 1), state_prefix(2, 2))]
    compaction.close()


def test_a_failure_is_not_the_end():
    calls = threading.Semaphore(0)

    def compact(start, stop):
        calls.release()
        raise StateError("the disk is full")

    compaction = Compaction(compact, lambda: 0)
    for _ in range(2):
        compaction.give_back(1, 1, 2 << 20)
        assert calls.acquire(timeout=30)
        assert compaction.wait(30)
    compaction.close()


def test_files_become_smaller(tmp_path):
    settings = RocksDbConfig(write_buffer_bytes=256 << 10, write_buffer_total_bytes=1 << 20)
    store = open_store(tmp_path / "store", settings, fresh=True)
    keys = [encode_key(group, 1, number.to_bytes(8, "big")) for group in range(4) for number in range(20_000)]
    for start in range(0, len(keys), 1_000):
        store.put_many(keys[start : start + 1_000], [b"x" * 50] * 1_000)
    before = store.stats().disk_bytes
    gone = [key for index, key in enumerate(keys) if index % 10]
    for start in range(0, len(gone), 1_000):
        store.write(deletes=gone[start : start + 1_000])
    for group in range(4):
        store.give_back(group, 1, 20_000 * 60)
    assert store.wait_given_back(30)
    assert store.stats().disk_bytes < before / 5
    assert len(list(store.scan())) == 8_000
    store.close()
