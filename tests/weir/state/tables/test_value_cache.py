import random

import pytest

from tests.weir.state.failing_backend import FailingBackend
from weir.errors import StateError
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.values.hidden_ranges import RANGES_MAX
from weir.state.tables.values.value_cache import WriteBackCache
from weir.state.tables.values.value_groups import ENTRY_OVERHEAD_BYTES, entry_bytes
from weir.state.tables.values.value_writes import WRITE_ENTRIES_MAX


def test_writes_reach_the_backend_at_flush_in_chunks() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 24)
    keys = [b"%05d" % index for index in range(2 * WRITE_ENTRIES_MAX + 1)]
    cache.put_many(keys, keys)
    cache.write(deletes=keys[:1])
    assert below.stats().puts == 0
    cache.flush()
    assert [key for key, _ in below.scan()] == keys[1:]
    cache.flush()
    assert below.stats().puts == len(keys) - 1, "clean entries are not written again"


def test_the_bound_in_bytes_holds_and_the_least_recently_used_goes_first() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 2000)
    cache.put_many([b"00old", b"00kept"], [b"1", b"2"])
    for index in range(20):
        cache.put_many([b"00k%d" % index], [b"x" * 100])
        assert cache.get_many([b"00kept"]) == [b"2"]
        assert cache.stats().memory_bytes <= 2000
    assert below.get_many([b"00old"]) == [b"1"]
    hits = cache.stats().cache_hits
    assert hits == 20
    assert cache.get_many([b"00old"]) == [b"1"]
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


def test_absent_keys_that_are_written_next_are_not_remembered() -> None:
    below = MemoryBackend()
    below.put_many([b"00there"], [b"1"])
    cache = WriteBackCache(below, 1 << 20)
    assert cache.get_many([b"00absent", b"00there", b"00absent"], will_write=True) == [None, b"1", None]
    assert cache.stats().memory_bytes == len(b"00there1") + ENTRY_OVERHEAD_BYTES
    cache.write(puts=[(b"00absent", b"2")])
    assert cache.get_many([b"00absent", b"00there"], will_write=True) == [b"2", b"1"]
    assert below.stats().gets == 2


def test_a_batch_of_changes_counts_each_key_once_and_the_last_value() -> None:
    cache = WriteBackCache(MemoryBackend(), 1 << 20)
    cache.write(puts=[(b"00a", b"12"), (b"01b", b"1")], deletes=[b"00gone"])
    cache.write(puts=[(b"00a", b"1"), (b"00new", b""), (b"00a", b"123"), (b"00gone", b"1")])
    keys = [b"00a", b"01b", b"00new", b"00gone"]
    assert cache.get_many(keys) == [b"123", b"1", b"", b"1"]
    assert cache.stats().memory_bytes == sum(map(len, keys)) + 5 + 4 * ENTRY_OVERHEAD_BYTES


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


def test_key_groups_that_were_given_away_are_forgotten_at_once_and_read_anew() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 20)
    cache.put_many([b"aa%d" % number for number in range(4)], [b"1"] * 4)
    cache.put_many([b"bb%d" % number for number in range(4)], [b"2"] * 4)
    cache.flush_prefixes([b"aa"])
    assert below.stats().puts == 4
    cache.forget_prefixes([b"aa", b"cc"])
    assert cache.stats().memory_bytes == 4 * (ENTRY_OVERHEAD_BYTES + 4)
    # Of another owner, unknown to this cache.
    below.put_many([b"aa%d" % number for number in range(4)], [b"9"] * 4)
    assert cache.get_many([b"aa0", b"aa3", b"bb3"]) == [b"9", b"9", b"2"]
    assert cache.stats().cache_misses == 2


def test_an_owner_is_cleared_at_once_also_in_the_backend_in_front_of_what_came_later() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 20, owner_of=lambda key: key[:3])
    cache.put_many([b"00a1", b"00a2", b"00b1"], [b"old"] * 3)
    cache.flush()
    cache.put_many([b"00a3"], [b"never written"])
    cache.clear_owner(b"00a")
    cache.put_many([b"00a2"], [b"new"])
    assert cache.get_many([b"00a1", b"00a2", b"00a3", b"00b1"]) == [None, b"new", None, b"old"]
    assert list(cache.scan(b"00a", b"00b")) == [(b"00a2", b"new")]
    assert list(cache.scan()) == [(b"00a2", b"new"), (b"00b1", b"old")]
    cache.clear_owner(b"00a")
    capture = cache.capture()
    assert capture is not None
    cache.put_many([b"00a1"], [b"newer"])
    cache.clear_owner(b"00b")
    assert cache.get_many([b"00a1", b"00a2", b"00b1"]) == [b"newer", None, None]
    capture.write()
    assert list(below.scan()) == [(b"00b1", b"old")], "as it was at the barrier"
    assert cache.get_many([b"00a1", b"00a2", b"00b1"]) == [b"newer", None, None]
    assert cache.flush_part(1.0)
    assert list(below.scan()) == [(b"00a1", b"newer")]


def test_what_was_cleared_behind_the_barrier_is_in_the_capture() -> None:
    below = FailingBackend()
    cache = WriteBackCache(below, 1 << 20, owner_of=lambda key: key[:3])
    cache.put_many([b"00a1", b"00b1"], [b"1", b"1"])
    capture = cache.capture()
    assert capture is not None
    cache.clear_owner(b"00a")
    cache.put_many([b"00a1"], [b"2"])
    assert not cache.flush_part(1.0), "rows do not wait for what another thread writes"
    capture.write()
    assert list(below.scan()) == [(b"00a1", b"1"), (b"00b1", b"1")]
    below.full = True
    capture = cache.capture()
    assert capture is not None
    with pytest.raises(StateError, match="no space"):
        capture.write()
    below.full = False
    assert cache.get_many([b"00a1"]) == [b"2"]
    cache.flush()
    assert list(below.scan()) == [(b"00a1", b"2"), (b"00b1", b"1")]


def test_ranges_that_follow_one_another_are_deleted_in_the_store_as_one() -> None:
    below = FailingBackend()
    cache = WriteBackCache(below, 1 << 20, owner_of=lambda key: key[:3])
    keys = [b"00a%03d" % number for number in range(400)]
    cache.put_many(keys, [b"v"] * 400)
    cache.flush()
    cache.clear_range(b"00a", b"00a100", keys[:100])
    cache.put_many([b"00a399"], [b"new"])
    capture = cache.capture()
    assert capture is not None
    cache.put_many([b"00a350"], [b"new"])
    for start in range(100, 300, 50):
        cache.clear_range(keys[start], keys[start + 50], keys[start : start + 50])
    assert [key for key, _ in cache.scan(b"00a", b"00a305")] == keys[300:305]
    below.full = True
    with pytest.raises(StateError, match="no space"):
        capture.write()
    below.full = False
    assert cache.get_many([b"00a099", b"00a299", b"00a300", b"00a350"]) == [None, None, b"v", b"new"]
    # With b"00a299", which is noted as absent.
    assert cache.stats().memory_bytes == 101 * entry_bytes(keys[0], b"v") + 3
    cache.flush()
    assert [key for key, _ in below.scan()] == keys[300:]
    for number in range(300, 400, 2):
        cache.clear_range(keys[number], keys[number] + b"\0", keys[number : number + 1])
    assert len(cache._writes.hidden(b"00a")) == RANGES_MAX, "more are deleted one by one"
    cache.flush()
    assert [key for key, _ in below.scan()] == keys[301::2]


@pytest.mark.parametrize("bytes_max", [1 << 20, 4_000])
def test_items_of_owners_that_go_together_are_gone_whatever_is_being_written(bytes_max: int) -> None:
    chance, below, kept = random.Random(bytes_max), MemoryBackend(), {}
    cache = WriteBackCache(below, bytes_max, owner_of=lambda key: key[:3])
    under_way = None
    for _ in range(400):
        match chance.randrange(7):
            case 0 | 1:
                new = {_item(chance): b"v" * chance.randrange(9) for _ in range(chance.choice((1, 30)))}
                cache.write(list(new.items()))
                kept |= new
            case 2 | 3:
                owner = chance.choice((b"00a", b"00b"))
                gone = [_item(chance, owner) for _ in range(chance.choice((3, 40)))]
                # Some twice, and sometimes one of another owner.
                gone += gone[:2] + [_item(chance) for _ in range(chance.randrange(2))]
                cache.write(deletes=gone)
                for key in gone:
                    kept.pop(key, None)
            case 4:
                start, stop = sorted((_item(chance, b"00a"), _item(chance, b"00a")))
                wanted = [item for item in sorted(kept.items()) if start <= item[0] < stop]
                reverse = chance.random() < 0.3
                assert list(cache.scan(start, stop, reverse=reverse)) == wanted[:: -1 if reverse else 1]
                keys = [_item(chance) for _ in range(5)]
                assert cache.get_many(keys) == [kept.get(key) for key in keys]
            case 5:
                owner = chance.choice((b"00a", b"00b"))
                start, stop = sorted((_item(chance, owner), _item(chance, owner)))
                gone = [key for key in sorted(kept) if start <= key < stop]
                others = {start} if start < stop and chance.random() < 0.5 else set()
                cache.clear_range(start, stop, sorted({*gone, *others}))
                for key in gone:
                    del kept[key]
                if chance.random() < 0.1:
                    cache.clear_owner(owner)
                    kept = {key: value for key, value in kept.items() if not key.startswith(owner)}
            case _ if under_way is None:
                under_way = cache.capture()
                as_of = sorted(kept.items())
        # A small cache waits for what is being written.
        if under_way is not None and (bytes_max < 1 << 20 or chance.random() < 0.2):
            under_way.write()
            under_way = None
            assert list(below.scan()) == as_of
    if under_way is not None:
        under_way.write()
    buckets = [bucket for group in cache._buckets.groups.values() for bucket in group.buckets.values()]
    sizes = [sum(entry_bytes(*entry) for entry in bucket.entries.items()) for bucket in buckets]
    assert [bucket.size_bytes for bucket in buckets] == sizes
    assert cache.stats().memory_bytes == sum(sizes)
    cache.flush()
    assert list(below.scan()) == sorted(kept.items())


def _item(chance: random.Random, owner: bytes = b"") -> bytes:
    return (owner or b"00" + chance.choice((b"a", b"b"))) + b"%02d" % chance.randrange(60)


def test_closing_the_cache_flushes_and_leaves_the_backend_open() -> None:
    below = MemoryBackend()
    cache = WriteBackCache(below, 1 << 20)
    cache.put_many([b"a"], [b"1"])
    cache.close()
    assert below.get_many([b"a"]) == [b"1"]
