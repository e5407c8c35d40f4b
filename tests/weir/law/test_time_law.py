"""What a job says does not depend on how its rows are cut into batches; a longer run: ``benchmarks time_law``."""

import pytest

from benchmarks.time_law import wrong_cuts
from benchmarks.time_law_jobs import STEPS, random_rows
from tests.effort import cases

SEEDS = (1, 7, 8)
#: Each step with one seed, in turn; in long runs with all.
CASES = [
    (step, SEEDS[(number + more) % len(SEEDS)])
    for number, step in enumerate(STEPS)
    for more in range(cases(1, len(SEEDS)))
]


@pytest.mark.parametrize(("step", "seed"), CASES, ids=[f"{step.name}-{seed}" for step, seed in CASES])
def test_a_step_says_the_same_for_every_cut(step, seed):
    assert wrong_cuts(step, random_rows(seed, 120), seed) == []
