"""What a job says does not depend on how its rows are cut into batches; a longer run: ``benchmarks time_law``."""

import pytest

from benchmarks.time_law import wrong_cuts
from benchmarks.time_law_jobs import STEPS, random_rows


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
@pytest.mark.parametrize("seed", [1, 7, 8])
def test_a_step_says_the_same_for_every_cut(step, seed):
    assert wrong_cuts(step, random_rows(seed, 120), seed) == []
