"""When a source counts as idle."""

from types import SimpleNamespace

import pytest

from weir.author.operator import Poll
from weir.author.watermarks import bounded_out_of_orderness
from weir.operators.subtask_times import ReaderTimes
from weir.rows.records import Idle, Watermark


def made():
    told = []
    chain = SimpleNamespace(
        on_watermark=lambda time_ms: None,
        assigns_times=False,
        early_sides=frozenset(),
        output=SimpleNamespace(broadcast=lambda element, but=(): told.append(element)),
    )
    return ReaderTimes(chain, bounded_out_of_orderness("0s"), 0, 1_000.0), told


def test_a_source_that_nobody_asked_for_rows_is_not_idle_however_long_that_was():
    """A machine with too much to do is not a source without rows: those of other inputs would be told without them."""
    times, told = made()
    times.tell(100.0)
    times.has_rows()
    times.tell(105.0)
    times.tell(105.9)
    assert told == []
    times.has_rows()
    times.tell(109.0)
    assert told == []
    times.tell(110.0)
    assert [type(each) for each in told] == [Idle]


@pytest.mark.parametrize("looks_s", [[1.0], [0.2, 0.5, 1.2]])
def test_idleness_begins_with_the_first_look_that_finds_no_rows(looks_s):
    times, told = made()
    times.has_rows()
    times.tell(50.1)
    for look_s in looks_s:
        assert told == []
        times.tell(50.1 + look_s)
    assert [type(each) for each in told] == [Idle]


def test_one_that_is_told_to_be_idle_is_so_at_once_and_until_it_has_rows():
    times, told = made()
    times.be_idle()
    times.tell(7.0)
    assert [type(each) for each in told] == [Idle]
    times.has_rows()
    times.tell(8.5)
    assert not times.is_idle


def test_at_the_end_the_watermark_is_told_also_of_one_that_was_idle():
    times, told = made()
    times.be_idle()
    times.tell(7.0)
    times.follow(Poll(event_time_ms_max=5_000))
    times.end()
    assert [type(each) for each in told] == [Idle, Watermark]
