"""Random chains of steps say the same however their rows are cut and read; more: ``benchmarks time_law``."""

import pytest

from benchmarks.law.random_chains import difference
from tests.effort import cases


@pytest.mark.parametrize("seed", range(cases(3, 40)))
def test_a_chain_says_the_same_however_it_is_run(seed):
    assert difference(seed, 40) is None
