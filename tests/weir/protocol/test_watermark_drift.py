"""Sources that wait for each other: who is waited for, and who may read."""

from weir.protocol.watermarks.watermark_drift import AlignedSource, WatermarkDrift, lowest_watermarks_ms

_MIN_MS = -(2**63)


def test_the_lowest_of_those_that_are_not_idle_counts_in_each_group():
    sources = [
        AlignedSource("a", 500, is_idle=False),
        AlignedSource("a", 300, is_idle=False),
        AlignedSource("a", 100, is_idle=True),
        AlignedSource("b", 7, is_idle=False),
    ]
    assert lowest_watermarks_ms(sources) == {"a": 300, "b": 7}


def test_one_that_has_read_nothing_yet_is_waited_for_and_idle_ones_wait_for_nobody():
    assert lowest_watermarks_ms(
        [AlignedSource("a", 500, is_idle=False), AlignedSource("a", _MIN_MS, is_idle=False)]
    ) == {"a": _MIN_MS}
    idle = [AlignedSource("a", 500, is_idle=True), AlignedSource("a", 900, is_idle=True)]
    assert lowest_watermarks_ms(idle) == {"a": 900}
    assert lowest_watermarks_ms([]) == {}


def test_a_subtask_reads_as_far_as_the_drift_above_the_lowest_it_knows():
    drift = WatermarkDrift("a", 1_000)
    assert drift.may_read(_MIN_MS), "without a watermark it is not ahead of anybody"
    assert not drift.may_read(5), "nobody has told how far the others are"
    assert drift.told(100)
    assert drift.may_read(1_100)
    assert not drift.may_read(1_101)
    assert drift.told(101)
    assert drift.may_read(1_101)


def test_a_source_that_was_idle_and_is_behind_holds_the_others_when_it_has_rows_again():
    drift = WatermarkDrift("a", 1_000)
    assert drift.told(5_000)
    assert not drift.told(200)
    assert not drift.may_read(5_000)
    assert drift.told(4_000)
    assert drift.may_read(5_000)


def test_a_control_plane_that_has_not_heard_of_all_yet_stops_nobody():
    drift = WatermarkDrift("a", 1_000)
    assert drift.told(5_000)
    assert not drift.told(_MIN_MS)
    assert drift.may_read(5_000)
