"""Windows say the same over several splits, with restarts, savepoints and other parallelism: as plain Python says."""

import pytest

from benchmarks.law import kept_steps, session_steps, trigger_steps, window_steps
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


@pytest.mark.parametrize("name", ["each third row, changelog", "after certain rows"])
def test_windows_are_told_in_the_order_of_the_rows_that_make_them_told(name):
    # All rows come at once.
    assert difference(STEPS[name], case_of(STEPS[name], 6, 40)) is None
