"""Windows say the same over several splits, with restarts, savepoints and other parallelism: as plain Python says."""

import pytest

from benchmarks.law import chain_steps, kept_steps, session_steps, trigger_steps, window_steps
from benchmarks.law.steps import case_of, difference

ALL = (*window_steps.STEPS, *session_steps.STEPS, *trigger_steps.STEPS, *kept_steps.STEPS)
STEPS = {step.name: step for step in ALL}
#: One split, and several; more than a third of the rows are late, and there is a restart or a savepoint in between.
ONE, SEVERAL = 66, 149
#: Whose windows may be over as of one split, and not as of another.
OF_SEVERAL = [
    step.name
    for step in STEPS.values()
    if step.several is not None and any(kind in step.name for kind in ("sliding", "cumulative", "sessions"))
]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_says_what_plain_python_says(name):
    assert difference(STEPS[name], case_of(STEPS[name], ONE, 40)) is None


@pytest.mark.parametrize("name", OF_SEVERAL[::2])
def test_a_step_says_what_plain_python_says_of_several_splits(name):
    assert difference(STEPS[name], case_of(STEPS[name], SEVERAL, 40)) is None


@pytest.mark.parametrize("seed", [7, 49])
def test_rows_that_waited_do_not_change_a_window_that_has_fired(seed):
    """Of one watermark that several waiting rows have in between, and that new sessions in old panes come with."""
    step = STEPS["own aggregates of sessions, late rows"]
    assert difference(step, case_of(step, seed, 100)) is None


@pytest.mark.parametrize("seed", [12, 20])
def test_timers_that_late_rows_register_in_batches_are_due_as_of_these(seed):
    name = "earlier timers by timers in batches, then windows"
    (step,) = (step for step in chain_steps.SURE if step.name == name)
    assert difference(step, case_of(step, seed, 100)) is None


def test_sessions_that_become_one_are_told_at_the_moment_at_which_they_do():
    step = STEPS["sessions, early, changelog"]
    assert difference(step, case_of(step, 210, 100)) is None


@pytest.mark.parametrize("name", ["each third row, changelog", "after certain rows"])
def test_windows_are_told_in_the_order_of_the_rows_that_make_them_told(name):
    # All rows come at once.
    assert difference(STEPS[name], case_of(STEPS[name], 6, 40)) is None
