"""Placement: within quotas, spread over task managers, the same every time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import PlacementError
from weir.protocol.job.placement import TaskManagerLoad, place
from weir.types import SubtaskId

MANAGERS = st.lists(
    st.builds(
        TaskManagerLoad,
        name=st.sampled_from([f"tm-{letter}" for letter in "abcde"]),
        quota=st.integers(0, 8),
        running=st.dictionaries(st.integers(0, 3), st.integers(0, 3), max_size=3),
    ),
    unique_by=lambda manager: manager.name,
    max_size=5,
)
SUBTASKS = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(
    lambda parallelism: [SubtaskId(s, i) for s, count in enumerate(parallelism) for i in range(count)]
)


@given(MANAGERS, SUBTASKS, st.randoms())
def test_every_choice_is_the_best_at_its_time(managers, subtasks, random):
    free = sum(manager.free_slots for manager in managers)
    if free < len(subtasks):
        with pytest.raises(PlacementError, match=f"needs {len(subtasks)} slots, but {free} are free"):
            place(managers, subtasks)
        return
    placement = place(managers, subtasks)
    assert set(placement) == set(subtasks)
    stages = [subtask.stage_index for subtask in placement]
    assert stages == sorted(stages, reverse=True)

    running = {manager.name: dict(manager.running) for manager in managers}
    quotas = {manager.name: manager.quota for manager in managers}
    for subtask, chosen in placement.items():

        def rank(name, stage=subtask.stage_index):
            return running[name].get(stage, 0), sum(running[name].values()), name

        open_names = [name for name in quotas if sum(running[name].values()) < quotas[name]]
        assert chosen in open_names
        assert all(rank(chosen) <= rank(name) for name in open_names)
        running[chosen][subtask.stage_index] = running[chosen].get(subtask.stage_index, 0) + 1

    shuffled_managers, shuffled_subtasks = list(managers), list(subtasks)
    random.shuffle(shuffled_managers)
    random.shuffle(shuffled_subtasks)
    assert list(place(shuffled_managers, shuffled_subtasks).items()) == list(placement.items())


def test_the_demo_job_is_split_evenly():
    managers = [TaskManagerLoad("tm-a", 5), TaskManagerLoad("tm-b", 5)]
    subtasks = [SubtaskId(stage, i) for stage in range(5) for i in range(2)]
    placement = place(managers, subtasks)
    for stage in range(5):
        assert {placement[SubtaskId(stage, i)] for i in range(2)} == {"tm-a", "tm-b"}


def test_the_emptier_task_manager_comes_first():
    managers = [TaskManagerLoad("tm-a", 5, {7: 2}), TaskManagerLoad("tm-b", 5, {8: 1})]
    assert place(managers, [SubtaskId(0, 0)]) == {SubtaskId(0, 0): "tm-b"}


def test_too_few_slots_are_named_with_the_mend():
    managers = [TaskManagerLoad("tm-b", 2, {0: 1}), TaskManagerLoad("tm-a", 1, {0: 3})]
    with pytest.raises(PlacementError) as caught:
        place(managers, [SubtaskId(0, 0), SubtaskId(1, 0)])
    assert "tm-a: 0 of 1 free, tm-b: 1 of 2 free" in str(caught.value)
    assert "raise taskManager.operator_quota" in str(caught.value)
    assert caught.value.retryable
    with pytest.raises(PlacementError, match="no task manager is registered"):
        place([], [SubtaskId(0, 0)])


def test_a_name_listed_twice_is_a_bug():
    with pytest.raises(ValueError, match="tm-a is listed 2 times"):
        place([TaskManagerLoad("tm-a", 1), TaskManagerLoad("tm-a", 1)], [SubtaskId(0, 0)])


def three(quota=8):
    return [TaskManagerLoad(name, quota) for name in ("tm-a", "tm-b", "tm-c")]


def at(name, *pairs):
    return {SubtaskId(*pair): name for pair in pairs}


def test_subtasks_stay_where_they_were():
    before = at("tm-c", (0, 0), (1, 0), (1, 1), (2, 0))
    assert place(three(), before, before) == before


def test_those_of_a_lost_task_manager_stay_together_on_the_emptiest_one():
    before = at("tm-a", (0, 0), (1, 0)) | at("tm-lost", (0, 1), (1, 1), (1, 2)) | at("tm-b", (2, 0))
    after = place(three(), before, before)
    assert after == {s: "tm-c" if name == "tm-lost" else name for s, name in before.items()}
    assert list(after) == [SubtaskId(*pair) for pair in [(2, 0), (1, 0), (1, 1), (1, 2), (0, 0), (0, 1)]]


def test_without_room_for_all_they_go_where_most_of_them_have_room():
    before = at("tm-lost", (1, 0), (1, 1), (1, 2))
    loads = [TaskManagerLoad("tm-a", 1), TaskManagerLoad("tm-b", 2)]
    after = place(loads, before, before)
    assert sorted(after.values()) == ["tm-a", "tm-b", "tm-b"]


def test_a_subtask_without_room_at_home_and_a_new_one_find_places():
    before = at("tm-a", (1, 0), (1, 1))
    loads = [TaskManagerLoad("tm-a", 1), TaskManagerLoad("tm-b", 2)]
    after = place(loads, [*before, SubtaskId(2, 0)], before)
    assert after[SubtaskId(1, 0)] == "tm-a"
    assert after[SubtaskId(1, 1)] == after[SubtaskId(2, 0)] == "tm-b"


def test_too_few_slots_are_refused_with_preferences_too():
    before = at("tm-a", (1, 0), (1, 1))
    with pytest.raises(PlacementError):
        place([TaskManagerLoad("tm-a", 1)], before, before)
