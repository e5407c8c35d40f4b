"""How the benchmark of sessions judges memory and disk."""

import pytest

from benchmarks import sessions
from weir.errors import ConfigError


def sawtooth(seconds, tooth_s, low, high):
    return [low + (high - low) * (at % tooth_s) // (tooth_s - 1) for at in range(seconds)]


@pytest.mark.parametrize("tooth_s", [7, 20, 27, 31])
def test_teeth_of_one_height_are_flat_wherever_the_run_ends(tooth_s):
    for seconds in range(100, 131):
        assert sessions.growth([0, *sawtooth(seconds, tooth_s, 100, 900)]) == 1


def test_teeth_that_grow_are_growth_and_the_first_third_does_not_count():
    samples = sawtooth(90, 10, 100, 900)
    assert sessions.growth([0] * 30 + samples[30:60] + [2 * each for each in samples[60:]]) == 2
    assert sessions.growth([5_000] * 30 + samples[30:]) == 1


def test_a_run_is_judged_by_what_was_seen_at_each_second():
    options = sessions.SessionOptions(keys=5_000, rate=1_000, seconds=10, gap_s=1, cache_bytes=1 << 20)
    reported = []
    found = sessions.measure(options, lambda text, share: reported.append((text, share)))
    assert len(found.disk_bytes) == len(found.rss_bytes) == 10
    assert [each.until_s for each in found.tenths] == list(range(1, 11))
    assert found.tenths[-1].disk_bytes_max == found.disk_bytes[-1]
    assert sum(each.results for each in found.tenths) > 500
    summary = sessions.summary(options, found)
    assert summary.disk_growth == sessions.growth(found.disk_bytes)
    assert summary.rss_bytes_max == max(found.rss_bytes)
    assert summary.events_per_core_s_min <= summary.events_per_core_s


def test_a_run_in_whose_first_third_sessions_do_not_end_is_refused():
    with pytest.raises(ConfigError, match="a run of 360 s at least"):
        sessions.SessionOptions(seconds=300, gap_s=60)
