"""A few of the faults of ``python -m experiments log-chaos``, which has a hundred."""

import pytest

from experiments.log_chaos import run_chaos
from tests.effort import cases

pytestmark = pytest.mark.scenario


def test_leaders_die_stand_still_and_are_cut_off_and_nothing_is_lost_doubled_or_out_of_order(tmp_path):
    result = run_chaos(tmp_path, cases(4), seed=5, show=print)
    assert result.is_right, result
    assert sum(map(len, result.gaps_s.values())) == cases(4)
    # A leader that stood still acknowledges nothing when it comes back.
    assert result.gaps_s["pause leader"]
    assert result.gaps_s["cut leader off"]
    assert result.acknowledged > 1_000
    assert result.reads > 10
