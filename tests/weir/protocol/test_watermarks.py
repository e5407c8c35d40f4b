"""The minimum over inputs that are neither idle nor ended; it never falls."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from weir.protocol.watermarks.time_reached import WatermarkTracker

MAX_MS = 2**63 - 1


def test_the_minimum_counts_and_waits_for_the_slowest():
    tracker = WatermarkTracker([0, 1])
    assert tracker.advance(0, 100) is None
    assert tracker.advance(1, 50) == 50
    assert tracker.advance(1, 200) == 100


def test_an_idle_input_does_not_hold_back_and_holds_again_when_it_wakes():
    tracker = WatermarkTracker([0, 1])
    tracker.advance(0, 100)
    assert tracker.mark_idle(1) == 100
    tracker.mark_active(1)
    assert tracker.advance(0, 300) is None
    assert tracker.advance(1, 250) == 250


def test_an_ended_input_counts_no_more():
    tracker = WatermarkTracker([0, 1])
    tracker.advance(0, 10)
    assert tracker.end(1) == 10
    assert tracker.end(0) == MAX_MS
    assert not tracker.all_idle


def test_all_idle_leaves_out_ended_inputs():
    tracker = WatermarkTracker([0, 1])
    tracker.mark_idle(0)
    assert not tracker.all_idle
    tracker.end(1)
    assert tracker.all_idle


def test_a_new_input_holds_the_watermark_where_it_is():
    tracker = WatermarkTracker([0])
    tracker.advance(0, 100)
    tracker.add("new")
    assert tracker.advance(0, 200) is None
    assert tracker.advance("new", 150) == 150
    assert tracker.end("new") == 200


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["advance", "idle", "end"]), st.integers(0, 50)))
)
def test_never_falls_and_never_passes_an_active_input(steps):
    tracker = WatermarkTracker([0, 1, 2])
    highest: dict[int, int] = {}
    known = -(2**63)
    idle: set[int] = set()
    ended: set[int] = set()
    before = tracker.combined_ms
    for index, kind, time_ms in steps:
        if index in ended:
            continue
        if kind == "advance":
            tracker.advance(index, time_ms)
            highest[index] = max(highest.get(index, -1), time_ms)
            known = max(known, time_ms)
            idle.discard(index)
        elif kind == "idle":
            tracker.mark_idle(index)
            idle.add(index)
        else:
            tracker.end(index)
            ended.add(index)
            idle.discard(index)
        assert tracker.combined_ms >= before
        if tracker.combined_ms > before:
            active = [highest[i] for i in range(3) if i not in idle and i not in ended]
            all_over = MAX_MS if len(ended) == 3 else known
            assert tracker.combined_ms == min(active, default=all_over)
        before = tracker.combined_ms


def test_an_input_is_open_until_it_ends():
    tracker = WatermarkTracker(["a"])
    assert tracker.is_open("a")
    tracker.end("a")
    assert not tracker.is_open("a")


def idle_orders(watermarks: dict[str, int], ended: set[str]):
    """What is combined after all inputs are idle or at their end, for each order in which they become so."""
    for order in itertools.permutations(watermarks):
        for tells_at_once in (True, False):
            tracker = WatermarkTracker(watermarks)
            for name, time_ms in watermarks.items() if tells_at_once else ():
                tracker.advance(name, time_ms)
            for name in order:
                tracker.advance(name, watermarks[name])
                if name in ended:
                    tracker.advance(name, MAX_MS)
                    tracker.end(name)
                else:
                    tracker.mark_idle(name)
            yield tracker.combined_ms


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(-5, 50), min_size=1),
    st.sets(st.sampled_from("abcd")),
)
def test_the_watermark_after_all_are_idle_does_not_depend_on_the_order(watermarks, ended):
    ended &= set(watermarks)
    expected = MAX_MS if ended == set(watermarks) else max(watermarks.values())
    assert set(idle_orders(watermarks, ended)) == {expected}


def test_an_input_at_its_end_is_not_the_end_of_time_for_those_that_are_idle():
    tracker = WatermarkTracker(["ends", "idle"])
    tracker.advance("ends", 10)
    tracker.advance("idle", 3)
    tracker.mark_idle("idle")
    assert tracker.advance("ends", MAX_MS) is None
    assert tracker.end("ends") is None
    assert tracker.combined_ms == 10
    assert tracker.advance("idle", 20) == 20
