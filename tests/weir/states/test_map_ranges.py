"""Ranges of maps have both ends, and prefixes are ranges."""

import datetime as dt
import itertools
import random
from dataclasses import dataclass

import polars as pl
import pytest

import weir
from tests.weir.state.retained_steps import Step
from tests.weir.state.slow_memory import SlowMemory
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.values.key_order import KeyOrder
from weir.state.tables.values.value_buckets import Buckets


def opened(store, **states):
    return Step(store, states)


@pytest.mark.parametrize("make_store", [MemoryBackend, SlowMemory])
@pytest.mark.parametrize("ttl", [None, weir.Ttl("1h", time="processing")])
def test_a_range_has_both_of_its_ends_whatever_is_written(make_store, ttl):
    step = opened(make_store(), words=weir.MapState(str, int, ttl=ttl))
    words = step.handles["words"]
    with step.at("k"):
        words.update({"belarus": 1, "belgium": 2, "lithuania": 3, "luxembourg": 4, "moldova": 5, "m": 6})
    with step.at("k"):
        words["malta"] = 7
        assert [key for key, _ in words.range("lithuania", "moldova")] == [
            "lithuania",
            "luxembourg",
            "m",
            "malta",
            "moldova",
        ]
        assert list(words.range("m", "m")) == [("m", 6)]
        assert list(words.range(last="belgium", reverse=True)) == [("belgium", 2), ("belarus", 1)]
        assert list(words.prefix_scan("bel")) == [("belarus", 1), ("belgium", 2)]
        assert list(words.prefix_scan("m", reverse=True)) == [("moldova", 5), ("malta", 7), ("m", 6)]
        assert len(list(words.prefix_scan(""))) == 7
        assert list(words.prefix_scan("x")) == []


@pytest.mark.parametrize("make_store", [MemoryBackend, SlowMemory])
@pytest.mark.parametrize("ttl", [None, weir.Ttl("1h", time="processing")])
def test_the_first_items_of_a_range_are_taken_away(make_store, ttl):
    step = opened(make_store(), numbers=weir.MapState(int, str, ttl=ttl))
    numbers = step.handles["numbers"]
    with step.at("k"):
        numbers.update({number: str(number) for number in range(10)})
    step.tables.flush()
    with step.at("k"):
        numbers[20] = "20"
        del numbers[3]
        assert numbers.pop_range(2, 8, limit=3) == [(2, "2"), (4, "4"), (5, "5")]
        assert numbers.pop_range(2, 8, limit=0) == []
        assert len(numbers) == 7
    with step.at("k"):
        assert numbers.pop_range(limit=2) == [(0, "0"), (1, "1")]
        assert [key for key, _ in numbers.pop_range(8, limit=9)] == [8, 9, 20]
        assert list(numbers.items()) == [(6, "6"), (7, "7")]


@pytest.mark.parametrize(
    "key", [int, pl.Int32, str, bytes, bool, dt.date, (int, str, int), (str, str), (bytes, bool)]
)
@pytest.mark.parametrize("ttl", [None, weir.Ttl("1h", time="processing")])
def test_a_frame_has_what_is_taken_away(key, ttl):
    parts = key if isinstance(key, tuple) else (key,)
    made = {
        int: [-(2**63), -1, 0, 2**63 - 1],
        pl.Int32: [-5, 7],
        str: ["", "a", "ab", "a\0b", "ä"],
        bytes: [b"", b"a", b"a\0", b"\xff"],
        bool: [False, True],
        dt.date: [dt.date(1900, 1, 1), dt.date(2024, 2, 29)],
    }
    wanted = sorted(itertools.product(*(made[part] for part in parts)))
    wanted = wanted if isinstance(key, tuple) else [part for (part,) in wanted]
    step = opened(MemoryBackend(), items=weir.MapState(key, str, ttl=ttl))
    items = step.handles["items"]
    with step.at("k"):
        items.update({each: repr(each) for each in wanted})
    step.tables.flush()
    with step.at("k"):
        found = items.pop_frame(limit=len(wanted) - 1)
        assert found.columns == [
            *(["key"] if parts == (key,) else map("key_{}".format, range(len(parts)))),
            "value",
        ]
        rows = found.rows()
        assert [row[:-1] if isinstance(key, tuple) else row[0] for row in rows] == wanted[:-1]
        assert [row[-1] for row in rows] == [repr(each) for each in wanted[:-1]]
        assert list(items.keys()) == wanted[-1:]
        none = items.pop_frame(limit=0)
        assert (none.schema, len(none)) == (found.schema, 0)
        assert items.pop_frame(limit=5).schema == found.schema
        assert not len(items)


def test_a_frame_needs_values_that_a_column_has():
    @dataclass
    class Point:
        x: int

    step = opened(MemoryBackend(), points=weir.MapState(int, Point))
    with step.at("k"), pytest.raises(TypeError, match="use pop_range"):
        step.handles["points"].pop_frame(limit=1)


def test_keys_that_are_not_written_are_found_in_order_whatever_comes_and_goes():
    chance = random.Random(7)
    kept = {b"%03d" % chance.randrange(500) for _ in range(40)}
    order = KeyOrder(kept)
    for _ in range(300):
        for _ in range(chance.choice((0, 1, 3, 150))):
            key = b"%03d" % chance.randrange(500)
            if key not in kept:
                order.note(key)
            kept.add(key)
        if chance.random() < 0.3:
            kept.difference_update(chance.sample(sorted(kept), len(kept) * 2 // 3))
        start, stop = sorted(b"%03d" % chance.randrange(520) for _ in range(2))
        assert order.between(start, stop, kept) == sorted(key for key in kept if start <= key < stop)


def test_what_is_written_again_and_again_without_a_scan_is_not_kept_for_one():
    table = Buckets(lambda key: key[:1])
    bucket = table.make(b"a")
    keys = [b"a%03d" % number for number in range(50)]
    noted = 0
    for turn in range(200):
        for key in keys:
            bucket.note_unwritten(key)
            table.store(bucket, key, b"%d" % turn)
        if not turn:
            assert len(bucket.unwritten_between(b"a", b"b")) == 50
        if bucket.order is not None:
            noted = max(noted, len(bucket.order._added))
        # Never empty: some come while others are written.
        bucket.unwritten.difference_update(keys[1:])
    assert 0 < noted < 2_000
    bucket.note_unwritten(b"a007")
    assert [key for key, _ in bucket.unwritten_between(b"a", b"b")] == [b"a000", b"a007"]


def test_prefixes_of_bytes_and_of_the_first_parts_of_tuples():
    step = opened(MemoryBackend(), raw=weir.MapState(bytes, int), pairs=weir.MapState((str, int), int))
    raw, pairs = step.handles["raw"], step.handles["pairs"]
    with step.at("k"):
        raw.update({b"\xff": 1, b"\xff\xff": 2, b"\xff\xff\x00": 3, b"a": 4})
        assert [value for _, value in raw.prefix_scan(b"\xff\xff")] == [2, 3]
        pairs.update({("a", 1): 1, ("a", -2): 2, ("ab", 3): 3, ("b", 4): 4})
        assert list(pairs.prefix_scan(("a",))) == [(("a", -2), 2), (("a", 1), 1)]
        assert len(list(pairs.prefix_scan(()))) == 4
        with pytest.raises(TypeError, match="is not a tuple of 2 parts at most"):
            pairs.prefix_scan("a")


def test_numbers_have_no_prefixes_and_a_range_that_goes_back_is_told_once(caplog):
    step = opened(MemoryBackend(), numbers=weir.MapState(int, int))
    numbers = step.handles["numbers"]
    with step.at("k"):
        numbers.update({1: 1, 2: 2})
        with pytest.raises(TypeError, match="have no prefixes"):
            numbers.prefix_scan(1)
        assert list(numbers.range(1, 2)) == [(1, 1), (2, 2)]
        assert list(numbers.range(2, 1)) == []
        assert list(numbers.range(5, -1)) == []
    assert caplog.text.count("has no items") == 1
