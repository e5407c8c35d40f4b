"""The minimum over inputs that are neither idle nor ended; it never falls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weir.protocol.watermarks import WatermarkTracker

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
    idle: set[int] = set()
    ended: set[int] = set()
    before = tracker.combined_ms
    for index, kind, time_ms in steps:
        if index in ended:
            continue
        if kind == "advance":
            tracker.advance(index, time_ms)
            highest[index] = max(highest.get(index, -1), time_ms)
            idle.discard(index)
        elif kind == "idle":
            tracker.mark_idle(index)
            idle.add(index)
        else:
            tracker.end(index)
            highest[index] = MAX_MS
            ended.add(index)
            idle.discard(index)
        assert tracker.combined_ms >= before
        if tracker.combined_ms > before:
            active = [highest[i] for i in range(3) if i not in idle]
            assert tracker.combined_ms == min(active)
        before = tracker.combined_ms


def test_an_input_is_open_until_it_ends():
    tracker = WatermarkTracker(["a"])
    assert tracker.is_open("a")
    tracker.end("a")
    assert not tracker.is_open("a")
