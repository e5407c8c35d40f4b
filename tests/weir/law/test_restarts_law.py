"""Windows say the same over several splits, with restarts, savepoints and other parallelism: as plain Python says."""

import pytest

from benchmarks.law.steps import case_of, difference
from benchmarks.law.window_steps import STEPS


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
@pytest.mark.parametrize("seed", [1, 4])
def test_a_step_says_what_plain_python_says(step, seed):
    assert difference(step, case_of(step, seed, 60)) is None
