"""Keyed functions, rules and chains of steps say what plain Python says, with restarts and several splits."""

import pytest

from benchmarks.law import chain_steps, keyed_steps, retained_steps, ttl_steps
from benchmarks.law.steps import case_of, difference
from weir.operators.keyed.firing import TimerCalls

STEPS = [*keyed_steps.SURE, *ttl_steps.SURE, *retained_steps.SURE, *chain_steps.SURE]


@pytest.mark.parametrize(("number", "step"), list(enumerate(STEPS)), ids=[step.name for step in STEPS])
def test_a_step_says_what_plain_python_says(number, step):
    # Seeds are of one split and of several in turn.
    seed = (0, 7)[number % 2]
    assert difference(step, case_of(step, seed, 60)) is None


@pytest.mark.parametrize(
    "step", [step for step in STEPS if "timers by timers" in step.name], ids=lambda step: step.name
)
@pytest.mark.parametrize("seed", [0, 5, 11])
def test_timers_by_timers_say_it_also_where_each_part_ends_as_soon_as_it_may(seed, step, monkeypatch):
    monkeypatch.setattr(TimerCalls, "_is_over", lambda calls: True)
    assert difference(step, case_of(step, seed, 60)) is None
