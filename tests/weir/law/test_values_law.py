"""Keys and values of many types, also before 1970: what is equal is equal for all cuts, restarts and parallelism."""

import pytest

from benchmarks.law import value_steps, window_steps
from benchmarks.law.steps import case_of, difference

WINDOWS = [
    step for step in window_steps.STEPS if step.name in ("sliding, late rows", "cumulative, early and late")
]
CASES = [
    *((step, (number + 1) % 4) for number, step in enumerate(value_steps.STEPS)),
    *((step, seed) for step in WINDOWS for seed in (3, 5)),
]


@pytest.mark.parametrize(("step", "seed"), CASES, ids=[f"{step.name}-{seed}" for step, seed in CASES])
def test_a_step_says_what_plain_python_says(step, seed):
    assert difference(step, case_of(step, seed, 30)) is None
