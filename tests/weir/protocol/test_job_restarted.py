"""A job that starts again after failures, and one that ends with a last checkpoint."""

import pytest

from weir.errors import FailureKind, InvalidTransitionError
from weir.protocol.job.job_machine import (
    AddSubtasks,
    Assignment,
    Cancel,
    CancelRequested,
    CommitFinal,
    Deploy,
    DeploymentFailed,
    FailRequested,
    Failure,
    FinalCommitted,
    JobEnded,
    JobMachine,
    JobState,
    Restart,
    RestartNow,
    RestartRefused,
    RestartRequested,
    SlotsAvailable,
    Start,
    SubtaskReported,
    SubtaskStatus,
    TaskManagerLost,
)
from weir.types import SubtaskId

SOURCE, COUNT, NEW = SubtaskId(0, 0), SubtaskId(1, 0), SubtaskId(1, 1)
PLACEMENT = {SOURCE: "tm-a", COUNT: "tm-b"}
AT_A, AT_B = Assignment(SOURCE, "tm-a"), Assignment(COUNT, "tm-b")


def tell(machine, *events):
    actions = []
    for event in events:
        actions += machine.handle(event)
        machine.check_invariants()
    return actions


def all_report(status, *subtasks):
    return [SubtaskReported(subtask, status) for subtask in subtasks]


@pytest.fixture
def deploying():
    machine = JobMachine([SOURCE, COUNT], restarts=True, commits_at_end=True)
    tell(machine, SlotsAvailable(PLACEMENT))
    return machine


@pytest.fixture
def running(deploying):
    tell(deploying, *all_report(SubtaskStatus.DEPLOYED, SOURCE, COUNT))
    tell(deploying, *all_report(SubtaskStatus.RUNNING, SOURCE, COUNT))
    return deploying


@pytest.fixture
def restarting(running):
    tell(running, TaskManagerLost("tm-b", "silence"))
    return running


@pytest.fixture
def finishing(running):
    assert tell(running, *all_report(SubtaskStatus.FINISHED, SOURCE, COUNT)) == [CommitFinal((SOURCE, COUNT))]
    return running


@pytest.mark.parametrize(
    ("event", "cause", "live", "kind"),
    [
        (
            TaskManagerLost("tm-b", "silence"),
            "task manager tm-b is lost: silence",
            (AT_A,),
            FailureKind.OUTAGE,
        ),
        (
            SubtaskReported(SOURCE, SubtaskStatus.FAILED, "a bug"),
            "subtask 0/0 failed: a bug",
            (AT_B,),
            FailureKind.OTHER,
        ),
        (
            SubtaskReported(SOURCE, SubtaskStatus.FAILED, "full", kind=FailureKind.OUTAGE),
            "subtask 0/0 failed: full",
            (AT_B,),
            FailureKind.OUTAGE,
        ),
        (
            SubtaskReported(COUNT, SubtaskStatus.CANCELED, "x"),
            "subtask 1/0 was cancelled: x",
            (AT_A,),
            FailureKind.OTHER,
        ),
        (FailRequested("rescale 1 cannot go on"), "rescale 1 cannot go on", (AT_A, AT_B), FailureKind.OTHER),
        (FailRequested("no room", kind=FailureKind.OUTAGE), "no room", (AT_A, AT_B), FailureKind.OUTAGE),
    ],
)
def test_a_failure_restarts_a_running_job(running, event, cause, live, kind):
    [cancel, restart] = tell(running, event)
    assert cancel == Cancel(live)
    assert (restart.failure.cause, restart.failure.kind) == (cause, kind)
    assert (running.state, running.cause, running.restart_cause) == (JobState.RESTARTING, "", cause)


def test_a_restart_that_was_asked_for_needs_no_permission():
    machine = JobMachine([SOURCE, COUNT])
    tell(machine, SlotsAvailable(PLACEMENT))
    tell(machine, *all_report(SubtaskStatus.DEPLOYED, SOURCE, COUNT))
    actions = tell(machine, RestartRequested("a source moves"))
    assert actions == [Cancel((AT_A, AT_B)), Restart(Failure("a source moves", is_planned=True))]
    assert (machine.state, machine.restart_cause) == (JobState.RESTARTING, "a source moves")
    # One that comes late changes nothing.
    assert tell(machine, RestartRequested("again")) == []


def test_a_refused_deployment_restarts_the_job(deploying):
    cause = "task manager tm-b refused its deployment: its disk is full"
    event = DeploymentFailed("tm-b", "its disk is full", kind=FailureKind.OUTAGE)
    assert tell(deploying, event) == [Cancel((AT_A,)), Restart(Failure(cause, FailureKind.OUTAGE))]


def test_the_first_cause_of_a_restart_stands_and_further_failures_change_nothing(restarting):
    assert tell(restarting, SubtaskReported(SOURCE, SubtaskStatus.FAILED, "channel closed")) == []
    assert tell(restarting, FailRequested("again"), TaskManagerLost("tm-a", "silence")) == []
    assert restarting.restart_cause == "task manager tm-b is lost: silence"


def test_a_cause_that_comes_late_replaces_the_failure_that_it_led_to(running):
    """A subtask that lost a peer may tell of it before the peer tells why it failed."""
    lost = SubtaskReported(SOURCE, SubtaskStatus.FAILED, "channel closed", kind=FailureKind.OUTAGE)
    [_, restart] = tell(running, lost)
    assert restart.failure.is_secondary
    bug = SubtaskReported(COUNT, SubtaskStatus.FAILED, "a bug", kind=FailureKind.ROWS, step="count")
    assert tell(running, bug) == []
    assert running.failure == Failure("step 'count', subtask 0 failed: a bug", FailureKind.ROWS, "count")
    assert running.restart_cause == "step 'count', subtask 0 failed: a bug"


@pytest.mark.parametrize("machine", ["running", "deploying", "restarting"])
def test_what_would_fail_again_fails_the_job_at_once(request, machine):
    job = request.getfixturevalue(machine)
    absent = SubtaskReported(
        SOURCE, SubtaskStatus.FAILED, "no such file", kind=FailureKind.PERMANENT, step="in"
    )
    tell(job, absent)
    assert job.state in (JobState.FAILING, JobState.FAILED)
    assert job.cause == "step 'in', subtask 0 failed: no such file"


def test_a_refused_deployment_that_would_be_refused_again_fails_the_job(deploying):
    refused = DeploymentFailed("tm-a", "no module", kind=FailureKind.PERMANENT)
    tell(deploying, refused)
    assert (deploying.state, deploying.cause) == (
        JobState.FAILING,
        "task manager tm-a refused its deployment: no module",
    )


def test_a_job_without_restarts_fails_with_the_cause_and_not_with_what_it_led_to():
    job = JobMachine([SOURCE, COUNT])
    tell(job, SlotsAvailable(PLACEMENT), *all_report(SubtaskStatus.DEPLOYED, SOURCE, COUNT))
    tell(job, SubtaskReported(SOURCE, SubtaskStatus.CANCELED))
    ended = tell(job, SubtaskReported(COUNT, SubtaskStatus.FAILED, "a bug", step="count"))
    assert ended == [JobEnded(JobState.FAILED, "step 'count', subtask 0 failed: a bug")]


def test_a_job_that_starts_again_has_the_subtasks_of_its_checkpoint(restarting):
    assert tell(restarting, RestartNow((SOURCE, COUNT, NEW), 2)) == []
    assert restarting.state is JobState.WAITING_FOR_TASK_MANAGERS
    assert restarting.generation == 2
    assert restarting.placement == {}
    everywhere = dict.fromkeys([SOURCE, COUNT, NEW], "tm-a")
    [deploy] = tell(restarting, SlotsAvailable(everywhere))
    assert deploy == Deploy(tuple(Assignment(s, "tm-a") for s in (COUNT, NEW, SOURCE)))
    [start] = tell(restarting, *all_report(SubtaskStatus.DEPLOYED, SOURCE, COUNT, NEW))
    assert isinstance(start, Start)
    tell(restarting, *all_report(SubtaskStatus.FINISHED, SOURCE, COUNT, NEW), FinalCommitted())
    assert (restarting.state, restarting.cause) == (JobState.FINISHED, "")


def test_late_reports_of_an_earlier_generation_have_no_effect(restarting):
    tell(restarting, RestartNow((SOURCE, COUNT), 2), SlotsAvailable(PLACEMENT))
    late = [
        SubtaskReported(SOURCE, SubtaskStatus.FAILED, "late", generation=1),
        DeploymentFailed("tm-a", "late", generation=1),
    ]
    assert tell(restarting, *late) == []
    assert restarting.state is JobState.DEPLOYING
    tell(restarting, SubtaskReported(SOURCE, SubtaskStatus.DEPLOYED, generation=2))
    assert restarting.statuses[SOURCE] is SubtaskStatus.DEPLOYED


@pytest.mark.parametrize("event", [RestartNow((SOURCE,), 1), RestartNow((), 2)])
def test_a_restart_needs_subtasks_and_a_higher_generation(restarting, event):
    with pytest.raises(InvalidTransitionError, match="a restart with"):
        restarting.handle(event)


def test_a_refused_restart_fails_the_job_when_nothing_runs_any_more(restarting):
    assert tell(restarting, RestartRefused("silence; given up")) == [Cancel((AT_A,))]
    assert restarting.state is JobState.FAILING
    assert tell(restarting, *all_report(SubtaskStatus.CANCELED, SOURCE)) == [
        JobEnded(JobState.FAILED, "silence; given up")
    ]


def test_a_job_can_be_cancelled_while_it_restarts_and_while_it_waits_again(restarting):
    again = JobMachine([SOURCE], restarts=True)
    tell(
        again, SlotsAvailable({SOURCE: "tm-a"}), TaskManagerLost("tm-a", "silence"), RestartNow((SOURCE,), 2)
    )
    assert tell(again, CancelRequested()) == [JobEnded(JobState.CANCELLED, "")]
    assert tell(restarting, CancelRequested()) == [Cancel((AT_A,))]
    assert tell(restarting, *all_report(SubtaskStatus.CANCELED, SOURCE)) == [JobEnded(JobState.CANCELLED, "")]


def test_a_restart_forgets_what_a_rescale_added(running):
    tell(running, AddSubtasks({NEW: "tm-b"}), TaskManagerLost("tm-b", "silence"))
    tell(running, RestartNow((SOURCE, COUNT), 2), SlotsAvailable(PLACEMENT))
    with pytest.raises(InvalidTransitionError, match="1/1, which the job does not have"):
        running.handle(SubtaskReported(NEW, SubtaskStatus.DEPLOYED))


def test_a_finished_job_waits_for_its_last_checkpoint(finishing):
    assert finishing.state is JobState.FINISHING
    assert not finishing.state.is_final
    assert tell(finishing, TaskManagerLost("tm-b", "silence")) == [], "its part may be there"
    assert tell(finishing, FinalCommitted()) == [JobEnded(JobState.FINISHED, "")]
    assert tell(finishing, FinalCommitted()) == []


def test_a_finishing_job_starts_again_if_the_last_checkpoint_cannot_be_made(finishing):
    assert tell(finishing, FailRequested("task manager tm-b is lost")) == [
        Restart(Failure("task manager tm-b is lost"))
    ]
    assert tell(finishing, FinalCommitted()) == [], "too late: sinks may have been restored since"
    assert finishing.state is JobState.RESTARTING


def test_a_finishing_job_can_be_cancelled(finishing):
    assert tell(finishing, CancelRequested()) == [JobEnded(JobState.CANCELLED, "")]


def test_a_finishing_job_that_may_not_restart_fails():
    machine = JobMachine([SOURCE], commits_at_end=True)
    tell(machine, SlotsAvailable({SOURCE: "tm-a"}), *all_report(SubtaskStatus.DEPLOYED, SOURCE))
    tell(machine, *all_report(SubtaskStatus.FINISHED, SOURCE))
    assert tell(machine, FailRequested("disk full")) == [JobEnded(JobState.FAILED, "disk full")]
