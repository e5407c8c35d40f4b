"""Keyed functions, rules and chains of steps say what plain Python says, with restarts and several splits."""

import pytest

from benchmarks.law import chain_steps, keyed_steps, retained_steps, ttl_steps
from benchmarks.law.steps import case_of, difference
from tests.effort import cases
from weir.operators.keyed.timer_calls import TimerCalls

STEPS = [*keyed_steps.SURE, *ttl_steps.SURE, *retained_steps.SURE, *chain_steps.SURE]
#: Of a case.
ROWS = cases(40, 60)
SEEDS = (0, 5, 11)
#: Each with one seed, in turn; in long runs with all.
BY_TIMERS = [
    (step, SEEDS[(number + more) % len(SEEDS)])
    for number, step in enumerate(step for step in STEPS if "timers by timers" in step.name)
    for more in range(cases(1, len(SEEDS)))
]


@pytest.mark.parametrize(("number", "step"), list(enumerate(STEPS)), ids=[step.name for step in STEPS])
def test_a_step_says_what_plain_python_says(number, step):
    # Seeds are of one split and of several in turn.
    seed = (0, 7)[number % 2]
    assert difference(step, case_of(step, seed, ROWS)) is None


@pytest.mark.parametrize(("step", "seed"), BY_TIMERS, ids=[f"{step.name}-{seed}" for step, seed in BY_TIMERS])
def test_timers_by_timers_say_it_also_where_each_part_ends_as_soon_as_it_may(seed, step, monkeypatch):
    monkeypatch.setattr(TimerCalls, "_is_over", lambda calls: True)
    assert difference(step, case_of(step, seed, ROWS)) is None


@pytest.mark.parametrize("seed", [24, 30])
def test_a_reader_without_a_split_does_not_hold_time_back(seed):
    (step,) = (step for step in keyed_steps.SURE if step.name == "pauses by timers")
    case = case_of(step, seed, 40)
    assert (case.is_single, case.readers) == (True, 2)
    assert difference(step, case) is None
