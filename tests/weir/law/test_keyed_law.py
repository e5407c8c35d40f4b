"""Keyed functions, rules and chains of steps say what plain Python says, with restarts and several splits."""

import pytest

from benchmarks.law import chain_steps, keyed_steps, retained_steps, ttl_steps
from benchmarks.law.steps import case_of, difference

STEPS = [*keyed_steps.SURE, *ttl_steps.SURE, *retained_steps.SURE, *chain_steps.SURE]


@pytest.mark.parametrize(("number", "step"), list(enumerate(STEPS)), ids=[step.name for step in STEPS])
def test_a_step_says_what_plain_python_says(number, step):
    # Seeds are of one split and of several in turn.
    seed = (0, 7)[number % 2]
    assert difference(step, case_of(step, seed, 60)) is None
