import pytest

from weir.subtask_names import in_step, listed, numbered, without_step
from weir.types import SubtaskId

COUNT = SubtaskId(1, 0)


def test_a_subtask_is_called_by_its_step():
    assert in_step("count", COUNT) == "step 'count', subtask 0"
    assert in_step("count -> out", COUNT) == "steps 'count -> out', subtask 0"
    assert numbered(COUNT) == "subtask 1/0"


def test_a_long_list_of_subtasks_is_cut():
    subtasks = [SubtaskId(0, index) for index in range(5)]
    assert listed(numbered, subtasks[:2]) == "subtask 0/0 and subtask 0/1"
    assert listed(numbered, subtasks) == "subtask 0/0 and subtask 0/1 and subtask 0/2 and 2 more"


@pytest.mark.parametrize(
    "told", ["step 'out': full", "sink 'out': full", "sink out: full", "step 'out' failed: full"]
)
def test_a_step_is_named_once(told):
    assert without_step(told, "out") == "full"


def test_another_step_stays_in_the_cause():
    assert without_step("step 'other': full", "out") == "step 'other': full"
    assert without_step("step : full", "") == "step : full"
