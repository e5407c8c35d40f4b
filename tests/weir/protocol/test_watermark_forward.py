"""A watermark is passed on at once when it rises, and not too often."""

from __future__ import annotations

import pytest

from weir.protocol.watermarks.time_reached import WatermarkForward, WatermarkTimes

INTERVAL_MS = 800.0


def test_a_risen_watermark_is_passed_on_at_once_and_once():
    forward = WatermarkForward(INTERVAL_MS)
    assert forward.take(100, now_s=50.0)
    assert not forward.take(100, now_s=60.0)
    assert forward.take(101, now_s=70.0)


def test_the_delays_of_a_chain_are_far_below_an_interval_for_each_stage():
    stages = [WatermarkForward(INTERVAL_MS) for _ in range(9)]
    now_s, sent = 0.0, []
    for step in range(1, 40):
        now_s = step * INTERVAL_MS / 1e3
        sent.append(all(stage.take(step, now_s) for stage in stages))
    assert all(sent)


def test_what_rises_more_often_is_gathered_and_says_when_it_is_due():
    forward = WatermarkForward(INTERVAL_MS)
    assert forward.take(100, now_s=0.0)
    assert not forward.take(101, now_s=0.02)
    assert forward.due_s == pytest.approx(INTERVAL_MS / 3e3)
    assert not forward.take(102, now_s=0.25)
    assert forward.take(102, now_s=0.27)
    assert forward.due_s == float("inf")


def test_after_idleness_the_same_watermark_is_sent_again():
    forward = WatermarkForward(INTERVAL_MS)
    assert forward.take(100, now_s=0.0)
    forward.again()
    assert forward.take(100, now_s=1.0)


def test_idleness_goes_behind_what_has_gathered_and_nothing_waits_then():
    forward = WatermarkForward(INTERVAL_MS)
    assert forward.take(100, now_s=0.0)
    assert not forward.take(101, now_s=0.1)
    assert forward.take_before_idleness(101)
    assert forward.due_s == float("inf"), "a subtask would not sleep until the next row"


def test_where_many_rows_pass_watermarks_follow_sooner():
    forward = WatermarkForward(300)
    assert forward.take(1, 1.0, 0)
    assert not forward.take(2, 1.03, 31)
    assert forward.due_s == pytest.approx(1.1)
    assert forward.take(2, 1.03, 32)
    assert not forward.take(3, 1.04, 100)
    assert forward.due_s == pytest.approx(1.055)


def test_a_source_sends_at_round_moments_and_sooner_only_with_many_rows_when_it_is_calm():
    times = WatermarkTimes(200)
    assert times.take(10.0, 1_003_000, 0, is_calm=False)
    assert times.next_s == pytest.approx(10.197)
    assert not times.take(10.05, 1_053_000, 500, is_calm=False), "it reads as fast as it can"
    assert not times.take(10.05, 1_053_000, 31, is_calm=True), "few rows"
    assert not times.take(10.02, 1_023_000, 500, is_calm=True), "too soon"
    assert times.take(10.022, 1_025_000, 500, is_calm=True)
    assert not times.take(10.03, 1_033_000, 531, is_calm=True)
    assert times.take(10.198, 1_200_500, 531, is_calm=False), "once in an interval in any case"


def test_a_source_with_a_backlog_sends_sooner_only_where_a_step_keeps_rows_until_then():
    times, waiting = WatermarkTimes(200, in_backlogs=True), WatermarkTimes(200)
    for each in (times, waiting):
        assert each.take(10.0, 1_003_000, 0, is_calm=False)
    assert not times.take(10.021, 1_024_000, 9_000, is_calm=False), "too soon"
    assert not times.take(10.022, 1_025_000, 1_023, is_calm=False), "too few rows"
    assert times.take(10.022, 1_025_000, 1_024, is_calm=False)
    assert not times.take(10.03, 1_033_000, 9_000, is_calm=False), "at most eight times in an interval"
    assert not waiting.take(10.1, 1_103_000, 90_000, is_calm=False)


def test_where_no_step_waits_for_event_time_nothing_is_sent_sooner():
    forward, times = WatermarkForward(300, soon=False), WatermarkTimes(200, soon=False)
    assert forward.take(1, 1.0, 0)
    assert not forward.take(2, 1.05, 1_000)
    assert times.take(10.0, 1_003_000, 0, is_calm=False)
    assert not times.take(10.1, 1_103_000, 1_000, is_calm=True)


def test_what_ends_a_wave_is_sent_at_once():
    forward, times = WatermarkForward(300), WatermarkTimes(200, soon=False)
    assert forward.take(1, 1.0, 0)
    assert forward.take(2, 1.006, 10, ends_wave=True)
    assert not forward.take(2, 1.012, 20, ends_wave=True)
    assert times.take(10.0, 1_003_000, 0, is_calm=False)
    assert times.take(10.003, 1_006_250, 10, is_calm=True, ends_wave=True)
    assert not times.take(10.004, 1_007_250, 12, is_calm=True)
