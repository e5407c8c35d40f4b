"""The life of a job: every path to an end, first causes, illegal moves, and random events."""

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.effort import cases
from weir.errors import InvalidTransitionError
from weir.protocol.job.job_machine import (
    Assignment,
    Cancel,
    CancelRequested,
    Deploy,
    DeploymentFailed,
    JobEnded,
    JobMachine,
    JobState,
    SlotsAvailable,
    Start,
    SubtaskReported,
    SubtaskStatus,
    TaskManagerLost,
)
from weir.protocol.job.job_model import TRANSITIONS
from weir.types import SubtaskId

SOURCE, COUNT_0, COUNT_1, SINK = SUBTASKS = (
    SubtaskId(0, 0),
    SubtaskId(1, 0),
    SubtaskId(1, 1),
    SubtaskId(2, 0),
)
PLACEMENT = {SOURCE: "tm-a", COUNT_0: "tm-a", COUNT_1: "tm-b", SINK: "tm-b"}


def assignments(*subtasks):
    return tuple(Assignment(subtask, PLACEMENT[subtask]) for subtask in subtasks)


def report_all(machine, status, subtasks=SUBTASKS):
    """Report one status for all; returns the actions that followed."""
    actions = []
    for subtask in subtasks:
        actions += machine.handle(SubtaskReported(subtask, status))
        machine.check_invariants()
    return actions


@pytest.fixture
def machine():
    machine = JobMachine(SUBTASKS)
    yield machine
    machine.check_invariants()


@pytest.fixture
def deploying(machine):
    machine.handle(SlotsAvailable(PLACEMENT))
    return machine


@pytest.fixture
def running(deploying):
    report_all(deploying, SubtaskStatus.DEPLOYED)
    report_all(deploying, SubtaskStatus.RUNNING)
    assert deploying.state is JobState.RUNNING
    return deploying


def test_a_job_that_runs_to_its_end(machine):
    assert machine.state is JobState.WAITING_FOR_TASK_MANAGERS
    assert machine.handle(SlotsAvailable(PLACEMENT)) == [Deploy(assignments(SINK, COUNT_0, COUNT_1, SOURCE))]
    assert machine.state is JobState.DEPLOYING
    assert report_all(machine, SubtaskStatus.DEPLOYED, SUBTASKS[:3]) == []
    assert machine.handle(SubtaskReported(SINK, SubtaskStatus.DEPLOYED)) == [
        Start(assignments(SINK, COUNT_0, COUNT_1, SOURCE))
    ]
    assert machine.state is JobState.RUNNING
    assert report_all(machine, SubtaskStatus.RUNNING, SUBTASKS[1:]) == []
    assert report_all(machine, SubtaskStatus.FINISHED, SUBTASKS[:3]) == []
    assert machine.state is JobState.RUNNING
    assert machine.handle(SubtaskReported(SINK, SubtaskStatus.FINISHED)) == [JobEnded(JobState.FINISHED, "")]
    assert machine.state is JobState.FINISHED
    assert machine.state.is_final


def test_a_failed_subtask_fails_the_job_with_the_first_cause(running):
    actions = running.handle(SubtaskReported(COUNT_0, SubtaskStatus.FAILED, "ZeroDivisionError in count"))
    assert actions == [Cancel(assignments(SOURCE, COUNT_1, SINK))]
    assert running.state is JobState.FAILING
    assert running.handle(SubtaskReported(SINK, SubtaskStatus.FAILED, "channel closed")) == []
    assert running.handle(CancelRequested()) == []
    cause = "subtask 1/0 failed: ZeroDivisionError in count"
    assert report_all(running, SubtaskStatus.CANCELED, [SOURCE, COUNT_1]) == [
        JobEnded(JobState.FAILED, cause)
    ]
    assert (running.state, running.cause) == (JobState.FAILED, cause)


def test_an_uncalled_for_cancellation_is_a_failure(running):
    running.handle(SubtaskReported(SOURCE, SubtaskStatus.CANCELED))
    assert running.cause == "subtask 0/0 was cancelled: its task manager stopped it"


def test_a_lost_task_manager_fails_the_job(running):
    actions = running.handle(TaskManagerLost("tm-b", "no heartbeat for 5 s"))
    assert actions == [Cancel(assignments(SOURCE, COUNT_0))]
    assert running.statuses[SINK] is SubtaskStatus.LOST
    assert running.handle(SubtaskReported(SINK, SubtaskStatus.FINISHED)) == []
    assert running.statuses[SINK] is SubtaskStatus.LOST
    assert running.handle(TaskManagerLost("tm-a", "no heartbeat for 5 s")) == [
        JobEnded(JobState.FAILED, "task manager tm-b is lost: no heartbeat for 5 s")
    ]


def test_losing_a_task_manager_whose_subtasks_have_finished_does_no_harm(running):
    report_all(running, SubtaskStatus.FINISHED, [SOURCE, COUNT_0])
    assert running.handle(TaskManagerLost("tm-a", "it left")) == []
    assert running.handle(TaskManagerLost("tm-unknown", "it left")) == []
    assert report_all(running, SubtaskStatus.FINISHED, [COUNT_1, SINK]) == [JobEnded(JobState.FINISHED, "")]


def test_a_refused_deployment_fails_the_job(deploying):
    deploying.handle(SubtaskReported(SINK, SubtaskStatus.DEPLOYED))
    actions = deploying.handle(DeploymentFailed("tm-a", "another job runs here"))
    assert actions == [Cancel(assignments(COUNT_1, SINK))]
    assert deploying.handle(DeploymentFailed("tm-b", "too late to matter")) == []
    assert deploying.handle(SubtaskReported(SINK, SubtaskStatus.CANCELED)) == [
        JobEnded(JobState.FAILED, "task manager tm-a refused its deployment: another job runs here")
    ]


def test_a_subtask_that_fails_to_open_fails_the_job_while_deploying(deploying):
    deploying.handle(SubtaskReported(SOURCE, SubtaskStatus.FAILED, "no such file: events.jsonl"))
    assert deploying.state is JobState.FAILING
    report_all(deploying, SubtaskStatus.DEPLOYED, [COUNT_0])
    assert report_all(deploying, SubtaskStatus.CANCELED, SUBTASKS[1:])[-1] == JobEnded(
        JobState.FAILED, "subtask 0/0 failed: no such file: events.jsonl"
    )


def test_cancel_before_the_deployment_ends_at_once(machine):
    assert machine.handle(TaskManagerLost("tm-a", "it left")) == []
    assert machine.handle(CancelRequested()) == [JobEnded(JobState.CANCELLED, "")]


@pytest.mark.parametrize("stage", ["deploying", "running"])
def test_cancel_stops_every_live_subtask(stage, request):
    machine = request.getfixturevalue(stage)
    assert machine.handle(CancelRequested()) == [Cancel(assignments(*SUBTASKS))]
    assert machine.handle(CancelRequested()) == []
    assert machine.handle(SubtaskReported(SOURCE, SubtaskStatus.FAILED, "in the middle of a read")) == []
    assert report_all(machine, SubtaskStatus.CANCELED, SUBTASKS[1:]) == [JobEnded(JobState.CANCELLED, "")]
    assert machine.cause == ""


def test_a_job_with_a_savepoint_of_its_end_is_stopped(running):
    assert running.handle(CancelRequested(stopped=True)) == [Cancel(assignments(*SUBTASKS))]
    assert running.handle(CancelRequested()) == []
    assert report_all(running, SubtaskStatus.CANCELED) == [JobEnded(JobState.STOPPED, "")]


def test_repeated_reports_change_nothing(running):
    before = running.history
    assert report_all(running, SubtaskStatus.RUNNING) == []
    assert running.history == before
    report_all(running, SubtaskStatus.FINISHED)
    assert report_all(running, SubtaskStatus.FINISHED) == []


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (SlotsAvailable(PLACEMENT), "SlotsAvailable.* in state RUNNING"),
        (SubtaskReported(SubtaskId(9, 0), SubtaskStatus.RUNNING), "subtask 9/0, which the job does not have"),
        (SubtaskReported(SINK, SubtaskStatus.DEPLOYED), "2/0: RUNNING -> DEPLOYED"),
        (SubtaskReported(SINK, SubtaskStatus.LOST), "cannot report LOST"),
        (SubtaskReported(SINK, SubtaskStatus.WAITING), "cannot report WAITING"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_illegal_events_change_nothing_and_tell_the_history(running, event, message):
    before = running.statuses, running.state, running.history
    with pytest.raises(InvalidTransitionError, match=message) as caught:
        running.handle(event)
    assert "DEPLOYING -> RUNNING (all subtasks are ready)" in str(caught.value)
    assert (running.statuses, running.state, running.history) == before


def test_reports_before_their_time_are_illegal(machine):
    with pytest.raises(InvalidTransitionError, match="in state WAITING"):
        machine.handle(SubtaskReported(SINK, SubtaskStatus.DEPLOYED))
    with pytest.raises(InvalidTransitionError, match="exactly the job's subtasks"):
        machine.handle(SlotsAvailable({SINK: "tm-a"}))
    assert machine.placement == {}
    machine.handle(SlotsAvailable(PLACEMENT))
    with pytest.raises(InvalidTransitionError, match="DEPLOYING -> RUNNING"):
        machine.handle(SubtaskReported(SINK, SubtaskStatus.RUNNING))
    machine.handle(SubtaskReported(SINK, SubtaskStatus.DEPLOYED))
    with pytest.raises(InvalidTransitionError, match="2/0 is FINISHED before it was started"):
        machine.handle(SubtaskReported(SINK, SubtaskStatus.FINISHED))


def test_a_finished_subtask_cannot_fail_afterwards(running):
    report_all(running, SubtaskStatus.FINISHED)
    with pytest.raises(InvalidTransitionError, match="2/0: FINISHED -> FAILED"):
        running.handle(SubtaskReported(SINK, SubtaskStatus.FAILED, "late"))


def test_broken_invariants_are_found(running):
    running._subtasks.statuses[SINK] = SubtaskStatus.FAILED
    with pytest.raises(InvalidTransitionError, match="a running job has no failed subtask"):
        running.check_invariants()
    running._subtasks.statuses[SINK] = SubtaskStatus.RUNNING


def test_every_state_handles_events_and_can_end():
    assert set(JobMachine.HANDLERS) == set(TRANSITIONS) == set(JobState)
    for state in JobState:
        reached, todo = set(), [state]
        while todo:
            for target in TRANSITIONS[todo.pop()] - reached:
                reached.add(target)
                todo.append(target)
        assert state.is_final or any(target.is_final for target in reached)


def test_a_job_without_subtasks_is_refused():
    with pytest.raises(ValueError, match="at least one subtask"):
        JobMachine([])


class RandomJob(RuleBasedStateMachine):
    """Task managers as they may behave; all that they were told must be enough to end the job."""

    @initialize(subtask_count=st.integers(1, 6), manager_count=st.integers(1, 3))
    def begin(self, subtask_count, manager_count):
        self.subtasks = [SubtaskId(i // 2, i % 2) for i in range(subtask_count)]
        self.names = [f"tm-{i}" for i in range(manager_count)]
        self.machine = JobMachine(self.subtasks)
        self.actual = {}  # what really runs: subtask -> status; a lost task manager's subtasks are not in it
        self.told_to_stop, self.seen_causes, self.ended, self.states = set(), [], [], []

    def send(self, event):
        was_final = self.machine.state.is_final
        for action in self.machine.handle(event):
            match action:
                case Deploy(items):
                    assert [x.subtask.stage_index for x in items] == sorted(
                        (s.stage_index for s in self.subtasks), reverse=True
                    )
                    self.actual = {item.subtask: SubtaskStatus.DEPLOYING for item in items}
                case Start(items):
                    assert {item.subtask for item in items} == set(self.subtasks)
                    assert set(self.actual.values()) == {SubtaskStatus.DEPLOYED}
                    for item in items:
                        self.actual[item.subtask] = SubtaskStatus.RUNNING
                case Cancel(items):
                    self.told_to_stop |= {item.subtask for item in items}
                case JobEnded():
                    assert not was_final
                    self.ended.append(action)
        if not self.states or self.states[-1] is not self.machine.state:
            self.states.append(self.machine.state)

    def draw(self, data, *statuses):
        choices = [subtask for subtask, status in self.actual.items() if status in statuses]
        assume(choices)
        return data.draw(st.sampled_from(sorted(choices)))

    def report(self, subtask, status, cause=""):
        self.actual[subtask] = status
        self.send(SubtaskReported(subtask, status, cause))

    @precondition(lambda self: self.machine.state is JobState.WAITING_FOR_TASK_MANAGERS)
    @rule(data=st.data())
    def slots(self, data):
        names = data.draw(
            st.lists(st.sampled_from(self.names), min_size=len(self.subtasks), max_size=len(self.subtasks))
        )
        self.send(SlotsAvailable(dict(zip(self.subtasks, names, strict=True))))

    @rule(data=st.data())
    def ready(self, data):
        self.report(self.draw(data, SubtaskStatus.DEPLOYING), SubtaskStatus.DEPLOYED)

    @rule()
    def all_ready(self):
        for subtask in [s for s, status in self.actual.items() if status is SubtaskStatus.DEPLOYING]:
            self.report(subtask, SubtaskStatus.DEPLOYED)

    @rule(data=st.data())
    def runs(self, data):
        self.report(self.draw(data, SubtaskStatus.RUNNING), SubtaskStatus.RUNNING)

    @rule(data=st.data())
    def finishes(self, data):
        self.report(self.draw(data, SubtaskStatus.RUNNING), SubtaskStatus.FINISHED)

    @rule(data=st.data(), number=st.integers(0, 99))
    def fails(self, data, number):
        live = (SubtaskStatus.DEPLOYING, SubtaskStatus.DEPLOYED, SubtaskStatus.RUNNING)
        self.report(self.draw(data, *live), SubtaskStatus.FAILED, f"bug {number}")

    @rule(data=st.data())
    def stops_when_told(self, data):
        live = (SubtaskStatus.DEPLOYING, SubtaskStatus.DEPLOYED, SubtaskStatus.RUNNING)
        subtask = self.draw(data, *live)
        assume(subtask in self.told_to_stop)
        self.report(subtask, SubtaskStatus.CANCELED)

    @rule()
    def cancel(self):
        self.send(CancelRequested())

    @rule(data=st.data())
    def task_manager_lost(self, data):
        name = data.draw(st.sampled_from(self.names))
        for subtask, owner in self.machine.placement.items():
            if owner == name:
                self.actual.pop(subtask, None)
        self.send(TaskManagerLost(name, "silence"))

    @rule(data=st.data())
    def deployment_refused(self, data):
        name = data.draw(st.sampled_from(self.names))
        own = [subtask for subtask, owner in self.machine.placement.items() if owner == name]
        assume(own)
        assume(all(self.actual.get(subtask) is SubtaskStatus.DEPLOYING for subtask in own))
        for subtask in own:
            del self.actual[subtask]
        self.send(DeploymentFailed(name, "no"))

    @invariant()
    def holds(self):
        if not hasattr(self, "machine"):
            return
        self.machine.check_invariants()
        assert len(self.ended) == self.machine.state.is_final
        if self.machine.cause:
            self.seen_causes.append(self.machine.cause)
        assert len(set(self.seen_causes)) <= 1

    def teardown(self):
        """Whatever happened, those that were told to stop do so, and the job ends."""
        if not hasattr(self, "machine"):
            return
        self.send(CancelRequested())
        for subtask, status in list(self.actual.items()):
            if not status.is_terminal:
                assert subtask in self.told_to_stop, "a live subtask was forgotten"
                self.report(subtask, SubtaskStatus.CANCELED)
        self.holds()
        assert self.machine.state.is_final
        assert [end.state for end in self.ended] == [self.machine.state]
        for before, after in zip(self.states, self.states[1:], strict=False):
            two_steps = {final for middle in TRANSITIONS[before] for final in TRANSITIONS[middle]}
            assert after in TRANSITIONS[before] | two_steps


RandomJob.TestCase.settings = settings(max_examples=cases(40), stateful_step_count=25, deadline=None)
test_random_jobs = RandomJob.TestCase
