import pytest

from tests.weir.state.failing_backend import FailingBackend
from weir.errors import StateError
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.value_cache import ENTRY_OVERHEAD_BYTES, WRITE_ENTRIES_MAX, WriteBackCache


def test_writes_reach_the_backend_at_flush_in_chunks() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 24)
    keys = [b"%05d" % index for index in range(2 * WRITE_ENTRIES_MAX + 1)]
    cache.put_many(keys, keys)
    cache.delete_many(keys[:1])
    assert below.stats().puts == 0
    cache.flush()
    assert [key for key, _ in below.scan()] == keys[1:]
    cache.flush()
    assert below.stats().puts == len(keys) - 1, "clean entries are not written again"


def test_the_bound_in_bytes_holds_and_the_least_recently_used_goes_first() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 2000)
    cache.put_many([b"old", b"kept"], [b"1", b"2"])
    for index in range(20):
        cache.put_many([b"k%d" % index], [b"x" * 100])
        assert cache.get_many([b"kept"]) == [b"2"]
        assert cache.stats().memory_bytes <= 2000
    assert below.get_many([b"old"]) == [b"1"]
    hits = cache.stats().cache_hits
    assert hits == 20
    assert cache.get_many([b"old"]) == [b"1"]
    assert cache.stats().cache_misses == 1


def test_an_entry_larger_than_the_cache_goes_through() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 100)
    cache.put_many([b"big"], [b"x" * 1000])
    assert below.get_many([b"big"]) == [b"x" * 1000]
    assert cache.stats().memory_bytes == 0
    assert cache.get_many([b"big"]) == [b"x" * 1000]


def test_absent_keys_are_remembered_too() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 20)
    cache.get_many([b"absent"])
    cache.get_many([b"absent", b"absent"])
    assert below.stats().gets == 1
    assert (cache.stats().cache_hits, cache.stats().cache_misses) == (2, 1)


def test_a_failed_flush_keeps_the_changes_for_the_next_one() -> None:
    below = FailingBackend()
    cache = WriteBackCache(below, 1 << 20)
    cache.write(puts=[(b"a", b"1")], deletes=[b"b"])
    below.full = True
    with pytest.raises(StateError, match="no space"):
        cache.flush()
    below.full = False
    assert cache.get_many([b"a"]) == [b"1"]
    cache.flush()
    assert below.get_many([b"a"]) == [b"1"]


def test_forget_drops_a_range_unwritten_changes_too() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 20)
    cache.put_many([b"a", b"b", b"c"], [b"1", b"2", b"3"])
    cache.flush()
    cache.put_many([b"b"], [b"new"])
    cache.forget(b"b", b"c")
    assert cache.get_many([b"a", b"b", b"c"]) == [b"1", b"2", b"3"]
    assert cache.stats().cache_misses == 1


def test_what_was_left_gives_way_to_others_and_does_not_count_when_its_owner_is_back() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 10 * (ENTRY_OVERHEAD_BYTES + 4))
    cache.put_many([b"a%d" % number for number in range(4)], [b"1"] * 4)
    cache.put_many([b"b%d" % number for number in range(4)], [b"2"] * 4)
    cache.flush()
    cache.leave_prefixes([b"a"])
    held = cache.stats().memory_bytes
    # Of another owner, unknown to this cache.
    below.put_many([b"a%d" % number for number in range(4)], [b"9"] * 4)
    cache.put_many([b"b%d" % number for number in range(4, 8)], [b"2"] * 4)
    assert cache.stats().memory_bytes < held + 4 * ENTRY_OVERHEAD_BYTES
    assert cache.get_many([b"b%d" % number for number in range(8)]) == [b"2"] * 8
    assert cache.stats().cache_misses == 0
    cache.return_to_prefixes([b"a", b"b"])
    assert cache.get_many([b"a0", b"a3", b"b7"]) == [b"9", b"9", b"2"]
    assert cache.stats().cache_misses == 2
    # It is its owner's again, and what comes next is kept.
    cache.put_many([b"a0"], [b"10"])
    cache.return_to_prefixes([b"b"])
    assert cache.get_many([b"a0"]) == [b"10"]


def test_closing_the_cache_flushes_and_leaves_the_backend_open() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 20)
    cache.put_many([b"a"], [b"1"])
    cache.close()
    assert below.get_many([b"a"]) == [b"1"]
