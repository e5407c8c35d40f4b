"""A watermark is passed on at once when it rises, and not too often."""

from __future__ import annotations

import pytest

from weir.protocol.watermark_forward import WatermarkForward

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
