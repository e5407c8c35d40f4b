"""A running job that gains and loses subtasks."""

import pytest

from weir.errors import InvalidTransitionError
from weir.protocol.job.job_machine import (
    AddSubtasks,
    Assignment,
    Cancel,
    CancelRequested,
    Deploy,
    DeploymentFailed,
    FailRequested,
    JobEnded,
    JobMachine,
    JobState,
    KeepSubtasks,
    RetireSubtasks,
    SlotsAvailable,
    Start,
    SubtaskReported,
    SubtaskStatus,
    TaskManagerLost,
)
from weir.types import SubtaskId

SOURCE, COUNT, NEW = SubtaskId(0, 0), SubtaskId(1, 0), SubtaskId(1, 1)
ADD = AddSubtasks({NEW: "tm-b"})
AT_NEW = (Assignment(NEW, "tm-b"),)


def tell(machine, *events):
    actions = []
    for event in events:
        actions += machine.handle(event)
        machine.check_invariants()
    return actions


def all_report(status, *subtasks):
    return [SubtaskReported(subtask, status) for subtask in subtasks]


@pytest.fixture
def running():
    machine = JobMachine([SOURCE, COUNT])
    tell(machine, SlotsAvailable({SOURCE: "tm-a", COUNT: "tm-a"}))
    tell(machine, *all_report(SubtaskStatus.DEPLOYED, SOURCE, COUNT))
    tell(machine, *all_report(SubtaskStatus.RUNNING, SOURCE, COUNT))
    return machine


def test_a_subtask_joins_and_another_retires(running):
    assert tell(running, ADD) == [Deploy(AT_NEW)]
    assert tell(running, *all_report(SubtaskStatus.DEPLOYED, NEW)) == [Start(AT_NEW)]
    assert tell(running, *all_report(SubtaskStatus.RUNNING, NEW), KeepSubtasks((NEW,))) == []
    assert tell(running, RetireSubtasks((COUNT,)), *all_report(SubtaskStatus.FINISHED, COUNT)) == []
    assert running.placement == {SOURCE: "tm-a", NEW: "tm-b"}
    assert tell(running, *all_report(SubtaskStatus.FINISHED, COUNT)) == [], "a repeated report"
    assert tell(running, AddSubtasks({COUNT: "tm-b"})) == [Deploy((Assignment(COUNT, "tm-b"),))]
    tell(running, *all_report(SubtaskStatus.DEPLOYED, COUNT), KeepSubtasks((COUNT,)))
    actions = tell(running, *all_report(SubtaskStatus.FINISHED, SOURCE, NEW, COUNT))
    assert actions == [JobEnded(JobState.FINISHED, "")]


def test_a_subtask_that_finished_before_it_was_retired_is_removed(running):
    tell(running, ADD, *all_report(SubtaskStatus.DEPLOYED, NEW), *all_report(SubtaskStatus.FINISHED, COUNT))
    tell(running, RetireSubtasks((COUNT,)))
    assert set(running.statuses) == {SOURCE, NEW}


@pytest.mark.parametrize(
    "end",
    [
        SubtaskReported(NEW, SubtaskStatus.FAILED, "no room"),
        SubtaskReported(NEW, SubtaskStatus.CANCELED),
        TaskManagerLost("tm-b", "silence"),
        DeploymentFailed("tm-b", "no"),
    ],
    ids=lambda end: type(end).__name__,
)
def test_the_job_goes_on_without_a_new_subtask_until_it_is_kept(running, end):
    assert tell(running, ADD, end) == [Deploy(AT_NEW)]
    assert set(running.statuses) == {SOURCE, COUNT}
    assert tell(running, SubtaskReported(NEW, SubtaskStatus.CANCELED)) == []
    assert tell(running, *all_report(SubtaskStatus.FINISHED, SOURCE, COUNT)) == [
        JobEnded(JobState.FINISHED, "")
    ]


def test_a_job_whose_other_subtasks_have_finished_ends_with_the_new_one(running):
    tell(running, ADD, *all_report(SubtaskStatus.FINISHED, SOURCE, COUNT))
    assert running.state is JobState.RUNNING
    assert tell(running, SubtaskReported(NEW, SubtaskStatus.CANCELED)) == [JobEnded(JobState.FINISHED, "")]


def test_a_kept_subtask_is_needed(running):
    tell(running, ADD, *all_report(SubtaskStatus.DEPLOYED, NEW), KeepSubtasks((NEW,)))
    tell(running, TaskManagerLost("tm-b", "silence"))
    assert (running.state, running.cause) == (JobState.FAILING, "task manager tm-b is lost: silence")


def test_a_task_manager_with_a_new_and_an_old_subtask_is_needed(running):
    tell(running, AddSubtasks({NEW: "tm-a"}), TaskManagerLost("tm-a", "silence"))
    assert running.state is JobState.FAILED


def test_a_job_fails_on_request(running):
    assert tell(running, ADD, FailRequested("rescale 1 cannot go on"))[1:] == [
        Cancel((Assignment(SOURCE, "tm-a"), Assignment(COUNT, "tm-a"), *AT_NEW))
    ]
    assert tell(running, FailRequested("again")) == []
    assert running.cause == "rescale 1 cannot go on"


def test_cancelling_takes_new_subtasks_along(running):
    assert tell(running, ADD, CancelRequested())[-1] == Cancel(
        (Assignment(SOURCE, "tm-a"), Assignment(COUNT, "tm-a"), *AT_NEW)
    )
    end = tell(running, *all_report(SubtaskStatus.CANCELED, SOURCE, COUNT, NEW))
    assert end == [JobEnded(JobState.CANCELLED, "")]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (AddSubtasks({COUNT: "tm-b"}), "subtasks to add: 1/0; new ones"),
        (AddSubtasks({}), "subtasks to add: none"),
        (KeepSubtasks((NEW,)), "does not have subtasks 1/1"),
        (RetireSubtasks((NEW,)), "does not have subtasks 1/1"),
    ],
)
def test_wrong_subtasks_are_refused(running, event, message):
    with pytest.raises(InvalidTransitionError, match=message):
        running.handle(event)


def test_only_a_running_job_changes():
    with pytest.raises(InvalidTransitionError, match="in state WAITING"):
        JobMachine([SOURCE]).handle(ADD)
