"""When checkpoints begin, when they are complete, and what ends them."""

from dataclasses import replace

import pytest

from weir.errors import FailureKind, InvalidTransitionError
from weir.protocol.checkpoint import CheckpointMachine
from weir.protocol.checkpoint_model import (
    CheckpointRefusal,
    CheckpointSettings,
    CheckpointState,
    Commit,
    CommitFailed,
    Committed,
    DeliveryFailure,
    EndNotified,
    FailJob,
    FinalDone,
    FinalRequested,
    Hold,
    JobRuns,
    JobStops,
    NotifyEnd,
    PartDeclined,
    PartDelivered,
    RedeployJob,
    Release,
    StopJob,
    SubtasksAdded,
    SubtasksRetired,
    TaskManagerLost,
    Tick,
    Trigger,
)
from weir.protocol.checkpoint_records import QUEUE_MAX, RECORDS_MAX
from weir.protocol.event_counts import EventCounts
from weir.protocol.manifest import SubtaskPart
from weir.types import SubtaskId

SOURCE, COUNT, NEW = SubtaskId(0, 0), SubtaskId(1, 0), SubtaskId(1, 1)
PLACEMENT = {SOURCE: "tm-a", COUNT: "tm-b"}
BOTH = ("tm-a", "tm-b")
SETTINGS = CheckpointSettings(interval_ms=1000, pause_ms=200, timeout_ms=5000, failures_max=2)


class Bench:
    """A machine with the time of its last event."""

    def __init__(self, settings=SETTINGS, next_id=7, run=True):
        self.machine, self.now_ms = CheckpointMachine(settings, next_id), 0
        if run:
            self.tell(JobRuns(1, PLACEMENT, frozenset([SOURCE])))

    def tell(self, *events, at=None):
        self.now_ms = self.now_ms if at is None else at
        actions = []
        for event in events:
            actions += self.machine.handle(event, self.now_ms)
            self.machine.check_invariants()
        return actions

    def deliver(self, checkpoint_id, *subtasks, generation=1, passed=0, new_bytes=10, at=None):
        return self.tell(
            *(
                PartDelivered(
                    generation,
                    checkpoint_id,
                    SubtaskPart(
                        s, new_bytes=new_bytes, passed_checkpoint_id=passed, finished=not checkpoint_id
                    ),
                )
                for s in subtasks
            ),
            at=at,
        )

    def request(self, path="", **ends):
        answer = self.machine.request(path, self.now_ms, **ends)
        self.machine.check_invariants()
        return answer

    @property
    def states(self):
        return {record.checkpoint_id: record.state for record in reversed(self.machine.records)}


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def in_flight(bench):
    assert bench.tell(Tick(), at=1000) == [Trigger(7, (SOURCE,))]
    return bench


@pytest.fixture
def committing(in_flight):
    in_flight.deliver(7, SOURCE, COUNT)
    return in_flight


def test_a_checkpoint_from_its_trigger_to_its_end(bench):
    assert bench.tell(Tick(), at=999) == []
    assert bench.machine.next_due_ms == 1000
    assert bench.tell(Tick(), at=1000) == [Trigger(7, (SOURCE,))]
    assert bench.machine.in_flight == 7
    assert bench.deliver(7, COUNT, at=1100) == []
    [commit] = bench.deliver(7, SOURCE)
    assert commit == Commit(7, 1, (SubtaskPart(SOURCE, new_bytes=10), SubtaskPart(COUNT, new_bytes=10)))
    assert not bench.machine.is_settled
    assert bench.tell(Committed(7, 500), at=1150) == [NotifyEnd(7, 1, True, BOTH)]
    assert bench.tell(EndNotified(7)) == []
    [record] = bench.machine.records
    assert record.to_dict() == {
        "id": 7,
        "kind": "checkpoint",
        "path": "",
        "is_last": False,
        "stops_job": False,
        "state": "COMPLETE",
        "created_ms": 1000,
        "started_ms": 1000,
        "ended_ms": 1150,
        "duration_ms": 150,
        "new_bytes": 20,
        "size_bytes": 500,
        "cause": "",
    }
    assert bench.machine.next_due_ms == 2000
    assert bench.tell(Tick(), at=2000) == [Trigger(8, (SOURCE,))]


def test_a_slow_checkpoint_is_followed_by_a_pause(committing):
    committing.tell(Committed(7), at=3000)
    assert committing.machine.next_due_ms == 3200
    assert committing.tell(Tick(), at=3199) == []
    assert committing.tell(Tick(), at=3200) == [Trigger(8, (SOURCE,))]


def test_without_an_interval_checkpoints_are_made_on_request_only():
    bench = Bench(CheckpointSettings(interval_ms=0))
    assert bench.tell(Tick(), at=100_000) == []
    assert bench.machine.next_due_ms is None
    record, actions = bench.request()
    assert actions == [Trigger(record.checkpoint_id, (SOURCE,))]


def test_requests_get_their_id_at_once_and_wait_for_their_turn(in_flight):
    plain, actions = in_flight.request()
    assert (plain.checkpoint_id, plain.state, actions) == (8, CheckpointState.QUEUED, [])
    assert in_flight.request()[0] is plain, "one is enough for all who wait"
    savepoint, _ = in_flight.request("/save/here")
    assert savepoint.checkpoint_id == 9
    in_flight.deliver(7, SOURCE, COUNT)
    assert in_flight.tell(Committed(7)) == [NotifyEnd(7, 1, True, BOTH), Trigger(8, (SOURCE,))]
    in_flight.deliver(8, SOURCE, COUNT)
    assert in_flight.tell(Committed(8))[-1] == Trigger(9, (SOURCE,))
    [commit] = in_flight.deliver(9, SOURCE, COUNT)
    assert (commit.checkpoint_id, commit.path) == (9, "/save/here")
    assert savepoint.to_dict()["kind"] == "savepoint"


def test_too_many_requests_are_refused(in_flight):
    for i in range(QUEUE_MAX):
        in_flight.request(f"/{i}")
    assert isinstance(in_flight.request("/one-more"), CheckpointRefusal)


def test_only_the_latest_checkpoints_are_remembered(bench):
    for i in range(RECORDS_MAX + 5):
        bench.tell(Tick(), at=1000 * (i + 1))
        bench.deliver(7 + i, SOURCE, COUNT)
        bench.tell(Committed(7 + i))
    assert len(bench.machine.records) == RECORDS_MAX
    assert bench.machine.records[0].checkpoint_id == 7 + RECORDS_MAX + 4


def test_before_the_job_runs_nothing_begins():
    bench = Bench(run=False)
    record, actions = bench.request()
    assert (record.state, actions) == (CheckpointState.QUEUED, [])
    assert bench.tell(Tick(), at=99_999) == []
    assert bench.tell(JobRuns(1, PLACEMENT, frozenset([SOURCE]))) == [Trigger(7, (SOURCE,))]


# --- parts -----------------------------------------------------------------------------------------------------


def test_late_repeated_and_foreign_parts_have_no_effect(in_flight):
    waits = in_flight.machine.waits_for
    assert waits(1, 7, COUNT)
    assert not waits(0, 7, COUNT)
    assert not waits(1, 6, COUNT)
    assert not waits(1, 7, NEW)
    assert in_flight.deliver(7, SOURCE, SOURCE) == []
    assert not waits(1, 7, SOURCE)
    assert in_flight.deliver(6, COUNT) == in_flight.deliver(7, NEW) == []
    assert in_flight.deliver(7, COUNT, generation=0) == []
    assert in_flight.machine.is_settled
    assert in_flight.deliver(7, COUNT) != []
    assert in_flight.deliver(7, COUNT) == []


def test_the_last_part_of_a_subtask_counts_for_all_later_checkpoints(bench):
    two = {**PLACEMENT, SubtaskId(0, 1): "tm-b"}
    bench = Bench(run=False)
    bench.tell(JobRuns(1, two, frozenset([SOURCE, SubtaskId(0, 1)])))
    bench.deliver(0, SOURCE, new_bytes=5)
    assert bench.tell(Tick(), at=1000) == [Trigger(7, (SubtaskId(0, 1),))]
    [commit] = bench.deliver(7, SubtaskId(0, 1), COUNT)
    assert [part.subtask for part in commit.parts] == [SOURCE, SubtaskId(0, 1), COUNT]
    assert bench.machine.records[0].new_bytes == 25
    bench.tell(Committed(7))
    bench.tell(Tick(), at=2000)
    [commit] = bench.deliver(8, SubtaskId(0, 1), COUNT)
    assert commit.parts[0] == SubtaskPart(SOURCE, new_bytes=5, finished=True)
    assert bench.machine.records[0].new_bytes == 20, "the last part was counted once"


def test_a_subtask_that_ends_before_the_barrier_answers_with_its_last_part(in_flight):
    in_flight.deliver(0, SOURCE, passed=6)
    [commit] = in_flight.deliver(0, COUNT, passed=6)
    assert all(part.finished for part in commit.parts)


def test_a_last_part_does_not_count_for_a_checkpoint_whose_barrier_was_passed_before(in_flight):
    in_flight.deliver(7, COUNT)
    assert in_flight.deliver(0, SOURCE, passed=7) == [], "it has rows that COUNT's part has not"
    assert in_flight.machine.waits_for(1, 7, SOURCE)
    [commit] = in_flight.deliver(7, SOURCE)
    assert commit.parts == (SubtaskPart(SOURCE, new_bytes=10), SubtaskPart(COUNT, new_bytes=10))
    in_flight.tell(Committed(7), Tick(), at=9000)
    assert in_flight.machine.in_flight is None, "the only source has ended"


def test_no_checkpoint_begins_when_all_sources_have_ended(bench):
    bench.deliver(0, SOURCE)
    assert bench.tell(Tick(), at=1000) == []
    assert bench.machine.next_due_ms is None
    assert isinstance(bench.request(), CheckpointRefusal)


# --- failures --------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_takes_too_long_is_given_up(in_flight):
    in_flight.deliver(7, SOURCE)
    assert in_flight.machine.next_due_ms == 6000
    assert in_flight.tell(Tick(), at=5999) == []
    assert in_flight.tell(Tick(), at=6000) == [NotifyEnd(7, 1, False, BOTH)]
    record = in_flight.machine.records[0]
    assert record.state is CheckpointState.FAILED
    assert record.cause == "no part of subtasks 1/0 after 5000 ms (checkpoint_timeout_ms)"
    assert in_flight.tell(Tick(), at=6200) == [Trigger(8, (SOURCE,))]
    assert in_flight.deliver(7, COUNT) == []


def test_a_declined_part_ends_a_checkpoint(in_flight):
    actions = in_flight.tell(PartDeclined(1, 7, COUNT, "No space left on device"))
    assert actions == [NotifyEnd(7, 1, False, BOTH)]
    assert in_flight.machine.records[0].cause == "subtask 1/0: No space left on device"
    assert in_flight.tell(PartDeclined(1, 7, COUNT, "again")) == []


def test_a_last_part_that_cannot_be_made_fails_the_job(bench):
    assert bench.tell(PartDeclined(1, 0, COUNT, "disk full")) == [
        FailJob("subtask 1/0 could not make its last part: disk full")
    ]


def fail_one(bench, cause="disk full"):
    bench.tell(Tick(), at=bench.now_ms + 1000)
    return bench.tell(PartDeclined(1, bench.machine.in_flight, COUNT, cause))


def test_too_many_failures_in_a_row_fail_the_job(bench):
    assert [len(fail_one(bench)) for _ in range(2)] == [1, 1]
    assert fail_one(bench)[-1] == FailJob(
        "3 checkpoints in a row failed, the last one: subtask 1/0: disk full"
    )


def test_a_complete_checkpoint_ends_a_row_of_failures(bench):
    fail_one(bench), fail_one(bench)
    bench.tell(Tick(), at=bench.now_ms + 1000)
    bench.deliver(bench.machine.in_flight, SOURCE, COUNT)
    bench.tell(Committed(bench.machine.in_flight))
    assert [len(fail_one(bench)) for _ in range(3)] == [1, 1, 2]


def test_any_number_of_failures_may_be_allowed():
    bench = Bench(CheckpointSettings(failures_max=0))
    assert all(len(fail_one(bench)) == 1 for _ in range(50))


def test_savepoints_that_cannot_be_written_do_not_fail_the_job(bench):
    for _ in range(5):
        record, _ = bench.request("/nowhere")
        bench.deliver(record.checkpoint_id, SOURCE, COUNT)
        actions = bench.tell(CommitFailed(record.checkpoint_id, "no such directory"))
        assert actions == [NotifyEnd(record.checkpoint_id, 1, False, BOTH)]
        assert (record.state, record.cause) == (CheckpointState.FAILED, "no such directory")


# --- restarts --------------------------------------------------------------------------------------------------


def test_a_restart_gives_up_what_is_in_flight_and_goes_on_with_higher_ids(in_flight):
    savepoint, _ = in_flight.request("/save")
    assert in_flight.tell(JobStops("task manager tm-b is lost")) == []
    assert in_flight.states == {7: CheckpointState.ABORTED, 8: CheckpointState.QUEUED}
    assert in_flight.tell(Tick(), at=9999) == []
    moved = {SOURCE: "tm-a", COUNT: "tm-a"}
    assert in_flight.tell(JobRuns(2, moved, frozenset([SOURCE]))) == [Trigger(8, (SOURCE,))]
    assert in_flight.deliver(8, SOURCE, COUNT, generation=1) == []
    [commit] = in_flight.deliver(8, SOURCE, COUNT, generation=2)
    assert commit.generation == 2
    assert savepoint.state is CheckpointState.COMMITTING


def test_a_commit_is_settled_before_the_job_runs_again(committing):
    assert committing.tell(JobStops("tm-b is lost")) == []
    assert not committing.machine.is_settled
    with pytest.raises(InvalidTransitionError, match="is committing"):
        committing.tell(JobRuns(2, PLACEMENT, frozenset([SOURCE])))
    assert committing.tell(Committed(7)) == [], "the sinks learn it from the manifest"
    assert committing.states == {7: CheckpointState.COMPLETE}
    committing.tell(JobRuns(2, PLACEMENT, frozenset([SOURCE])))


def test_generations_grow(bench):
    with pytest.raises(InvalidTransitionError, match="has not stopped"):
        bench.tell(JobRuns(2, PLACEMENT, frozenset([SOURCE])))
    bench.tell(JobStops(""))
    with pytest.raises(InvalidTransitionError, match="was before"):
        bench.tell(JobRuns(1, PLACEMENT, frozenset([SOURCE])))


def test_last_parts_do_not_outlive_their_generation(bench):
    bench.deliver(0, SOURCE, COUNT)
    bench.tell(JobStops("x"), JobRuns(2, PLACEMENT, frozenset([SOURCE])))
    assert bench.tell(Tick(), at=1000) == [Trigger(7, (SOURCE,))]


def test_the_end_of_the_job_gives_up_what_waits(in_flight):
    record, _ = in_flight.request("/save")
    in_flight.tell(JobStops("cancelled", ends=True))
    assert set(in_flight.states.values()) == {CheckpointState.ABORTED}
    assert record.cause == "cancelled"
    assert isinstance(in_flight.request(), CheckpointRefusal)


def test_an_answer_to_another_commit_is_illegal(committing):
    with pytest.raises(InvalidTransitionError, match="8 is not being committed"):
        committing.tell(Committed(8))


# --- rescales --------------------------------------------------------------------------------------------------


def test_a_rescale_gives_up_the_checkpoint_in_flight_and_holds_the_next(in_flight):
    assert in_flight.tell(Hold("rescale 1")) == [NotifyEnd(7, 1, False, BOTH)]
    assert in_flight.machine.records[0].cause == "rescale 1 began"
    in_flight.deliver(7, SOURCE, COUNT)
    record, actions = in_flight.request()
    assert (record.state, actions) == (CheckpointState.QUEUED, [])
    assert in_flight.tell(Tick(), at=5000) == []
    assert in_flight.machine.next_due_ms is None
    in_flight.tell(SubtasksAdded({NEW: "tm-c"}))
    assert in_flight.tell(Release("rescale 0")) == [], "somebody else"
    assert in_flight.tell(Release("rescale 1")) == [Trigger(8, (SOURCE,))]
    in_flight.deliver(8, SOURCE, COUNT)
    [commit] = in_flight.deliver(8, NEW)
    assert len(commit.parts) == 3


def test_a_rescale_leaves_a_commit_alone(in_flight):
    in_flight.deliver(7, SOURCE, COUNT)
    assert in_flight.tell(Hold("rescale 1")) == []
    in_flight.tell(SubtasksAdded({NEW: "tm-c"}))
    [end] = in_flight.tell(Committed(7))
    assert (end.checkpoint_id, end.committed) == (7, True)


def test_with_nothing_in_flight_a_rescale_goes_on_at_once(bench):
    assert bench.tell(Hold("rescale 1")) == []
    assert bench.tell(Hold("drain")) == []
    assert bench.tell(Release("rescale 1"), Tick(), at=1000) == []
    assert bench.tell(Release("drain")) == [Trigger(7, (SOURCE,))]


@pytest.mark.parametrize("event", [SubtasksAdded({NEW: "tm-c"}), SubtasksRetired((COUNT,))])
def test_subtasks_change_only_outside_a_checkpoint(in_flight, event):
    with pytest.raises(InvalidTransitionError, match="while checkpoint 7 is in flight"):
        in_flight.tell(event)


def retire_one(bench):
    bench.tell(Hold("r"), SubtasksAdded({NEW: "tm-c"}), SubtasksRetired((COUNT,)), Release("r"))
    bench.tell(Tick(), at=1000)
    assert bench.deliver(7, SOURCE, NEW) == [], "the retired subtask may have sinks with something to deliver"
    [commit] = bench.deliver(0, COUNT)
    assert len(commit.parts) == 3
    return bench.tell(Committed(7))


def test_a_retired_subtask_takes_part_until_its_sinks_have_delivered(bench):
    assert retire_one(bench) == [NotifyEnd(7, 1, True, ("tm-a", "tm-b", "tm-c"))]
    bench.tell(EndNotified(7, unreached=("tm-b",)), Tick(), at=2000)
    assert (bench.machine.place(COUNT), bench.machine.unsettled_at("tm-b")) == ("tm-b", [COUNT])
    assert (bench.machine.place(NEW), bench.machine.unsettled_at("tm-c")) == ("tm-c", [])
    [commit] = bench.deliver(8, SOURCE, NEW)
    assert [part.subtask for part in commit.parts] == [SOURCE, COUNT, NEW]
    bench.tell(Committed(8), EndNotified(8))
    assert (bench.machine.place(COUNT), bench.machine.unsettled_at("tm-b")) == (None, [])
    bench.tell(Tick(), at=3000)
    [commit] = bench.deliver(9, SOURCE, NEW)
    assert [part.subtask for part in commit.parts] == [SOURCE, NEW]
    assert bench.tell(TaskManagerLost("tm-b", "silence")) == []


def test_what_a_retired_subtask_counted_stays_when_it_is_settled(bench):
    bench.tell(Hold("r"), SubtasksAdded({NEW: "tm-c"}), SubtasksRetired((COUNT,)), Release("r"))
    bench.tell(Tick(), at=1000)
    bench.deliver(7, SOURCE, NEW)
    last = SubtaskPart(COUNT, counts=EventCounts(5, 4), finished=True)
    [commit] = bench.tell(PartDelivered(1, 0, last))
    assert (last in commit.parts, commit.settled) == (True, {})
    bench.tell(Committed(7))
    bench.tell(Tick(), at=2000)
    bench.tell(EndNotified(7))
    [commit] = bench.deliver(8, SOURCE, NEW)
    assert (last in commit.parts, commit.settled) == (True, {}), "it was settled after this one had begun"
    bench.tell(Committed(8))
    bench.tell(Tick(), at=3000)
    [commit] = bench.deliver(9, SOURCE, NEW)
    assert (last in commit.parts, commit.settled) == (False, {COUNT.stage_index: EventCounts(5, 4)})


def test_a_retired_subtask_that_is_lost_before_its_sinks_delivered_is_missed(bench):
    retire_one(bench)
    assert bench.tell(TaskManagerLost("tm-b", "silence")) == [FailJob("task manager tm-b is lost: silence")]


# --- the end ---------------------------------------------------------------------------------------------------


@pytest.fixture
def finishing(bench):
    bench.deliver(0, SOURCE)
    assert bench.tell(FinalRequested((SOURCE, COUNT)), at=500) == []
    [commit] = bench.deliver(0, COUNT)
    assert (commit.checkpoint_id, commit.is_last) == (7, True)
    return bench


def test_the_last_checkpoint_needs_every_last_part_and_the_word_of_all_sinks(finishing):
    assert finishing.tell(Committed(7), at=600) == [NotifyEnd(7, 1, True, BOTH)]
    assert finishing.tell(EndNotified(7, unreached=("tm-b",))) == []
    assert finishing.machine.next_due_ms == 800
    assert finishing.tell(Tick(), at=799) == []
    assert finishing.tell(Tick(), at=800) == [NotifyEnd(7, 1, True, ("tm-b",))]
    assert finishing.tell(EndNotified(7)) == [FinalDone(7)]
    assert finishing.tell(EndNotified(7), Tick(), at=9000) == []


def undelivered(checkpoint_id=7):
    return EndNotified(checkpoint_id, failures=(DeliveryFailure("tm-b", COUNT, "no database"),))


def test_sinks_that_do_not_deliver_at_the_end_are_told_again_after_longer_and_longer_waits(finishing):
    finishing.tell(Committed(7), at=600)
    now_ms = 600
    for wait_ms in (100, 200, 400):
        assert finishing.tell(undelivered(), at=now_ms) == []
        assert finishing.machine.next_due_ms == now_ms + wait_ms
        now_ms += wait_ms
        assert finishing.tell(Tick(), at=now_ms) == [NotifyEnd(7, 1, True, ("tm-b",))]
    assert finishing.tell(EndNotified(7)) == [FinalDone(7)]


@pytest.mark.parametrize("attempts", [0, 2])
def test_sinks_that_never_deliver_at_the_end_fail_the_job_for_good(attempts):
    bench = Bench(replace(SETTINGS, deliveries_max=attempts))
    bench.deliver(0, SOURCE, COUNT)
    bench.tell(FinalRequested((SOURCE, COUNT)), Committed(7))
    for _ in range(attempts):
        assert bench.tell(undelivered()) == []
        bench.tell(Tick(), at=bench.machine.next_due_ms)
    [fail] = bench.tell(undelivered())
    assert (fail.kind, fail.cause) == (
        FailureKind.PERMANENT,
        f"subtask 1/0 could not deliver what it had received: no database; given up after {attempts + 1} attempts",
    )


def test_a_sink_that_has_ended_early_and_does_not_deliver_starts_the_job_again(committing):
    committing.tell(Committed(7))
    assert committing.tell(undelivered()) == [
        FailJob("subtask 1/0 could not deliver what it had received: no database", FailureKind.OUTAGE)
    ]


def test_a_mistake_of_a_sink_that_does_not_deliver_is_no_outage(committing):
    committing.tell(Committed(7))
    failure = DeliveryFailure("tm-b", COUNT, "TypeError: no", FailureKind.OTHER)
    [fail] = committing.tell(EndNotified(7, failures=(failure,)))
    assert fail.kind is FailureKind.OTHER


def test_a_last_manifest_that_cannot_be_written_is_tried_again(finishing):
    assert finishing.tell(CommitFailed(7, "disk full"), at=600) == [NotifyEnd(7, 1, False, BOTH)]
    [commit] = finishing.tell(Tick(), at=800)
    assert (commit.checkpoint_id, commit.is_last) == (8, True)
    finishing.tell(CommitFailed(8, "disk full"), Tick(), at=1000)
    assert finishing.tell(Tick(), at=1200) != []
    assert finishing.tell(CommitFailed(9, "disk full"))[-1] == FailJob(
        "3 checkpoints in a row failed, the last one: disk full"
    )


def test_a_checkpoint_in_flight_is_complete_before_the_last_one_begins(in_flight):
    in_flight.deliver(7, SOURCE)
    in_flight.deliver(0, SOURCE, COUNT, passed=7)
    assert in_flight.tell(FinalRequested((SOURCE, COUNT))) == []
    in_flight.deliver(7, COUNT)
    actions = in_flight.tell(Committed(7))
    assert [type(action) for action in actions] == [NotifyEnd, Commit]
    assert actions[1].is_last


def test_a_lost_task_manager_is_missed_at_the_end_only_if_it_had_something_to_do(finishing):
    assert finishing.tell(TaskManagerLost("tm-b", "silence")) == [], "its part is there"
    assert finishing.tell(Committed(7)) == [
        FailJob("task manager tm-b is lost; its sinks deliver after a restart")
    ]


def test_a_task_manager_that_is_lost_without_its_last_part_is_missed(bench):
    bench.deliver(0, SOURCE)
    bench.tell(FinalRequested((SOURCE, COUNT)))
    assert bench.tell(TaskManagerLost("tm-b", "silence")) == [FailJob("task manager tm-b is lost: silence")]


def test_a_task_manager_that_is_lost_while_it_is_told_the_end_is_missed(finishing):
    finishing.tell(Committed(7))
    assert finishing.tell(TaskManagerLost("tm-b", "x")) == [FailJob("task manager tm-b is lost: x")]


def at_the_end(bench):
    """The sources end while checkpoint 7 is in flight; all that is missing is the word that it is complete."""
    bench.deliver(7, SOURCE, COUNT)
    bench.deliver(0, SOURCE, COUNT, passed=7)
    assert bench.tell(FinalRequested((SOURCE, COUNT))) == []


def test_a_stop_that_waits_at_the_end_of_the_input_gets_its_savepoint(in_flight):
    plain, _ = in_flight.request()
    stop, _ = in_flight.request("/save", stops_job=True)
    at_the_end(in_flight)
    assert (plain.state, plain.cause) == (CheckpointState.ABORTED, "every source had reached its end")
    [_, savepoint] = in_flight.tell(Committed(7))
    assert (savepoint.checkpoint_id, savepoint.path, savepoint.is_last) == (
        stop.checkpoint_id,
        "/save",
        False,
    )
    assert [part.finished for part in savepoint.parts] == [True, True]
    [last] = in_flight.tell(Committed(stop.checkpoint_id))
    assert (last.path, last.is_last) == ("", True)
    assert in_flight.tell(Committed(last.checkpoint_id)) == [NotifyEnd(last.checkpoint_id, 1, True, BOTH)]
    assert in_flight.tell(EndNotified(last.checkpoint_id)) == [FinalDone(last.checkpoint_id)]
    assert (stop.state, in_flight.machine.missed_savepoint) == (CheckpointState.COMPLETE, "")
    assert in_flight.machine.take_ended()[-2] is stop


def test_a_savepoint_that_cannot_be_made_at_the_end_is_told_and_the_job_finishes(in_flight):
    record, _ = in_flight.request("/save")
    at_the_end(in_flight)
    in_flight.tell(Committed(7))
    in_flight.tell(CommitFailed(record.checkpoint_id, "disk full"), at=2000)
    assert (record.state, record.cause) == (CheckpointState.FAILED, "disk full")
    assert in_flight.machine.missed_savepoint == "savepoint /save: disk full"
    [last] = in_flight.tell(Tick(), at=2200)
    assert last.is_last
    in_flight.tell(Committed(last.checkpoint_id))
    assert in_flight.tell(EndNotified(last.checkpoint_id)) == [FinalDone(last.checkpoint_id)]


def test_a_stop_whose_savepoint_is_complete_after_the_end_of_the_input_finishes_the_job(bench):
    stop, [_] = bench.request("/save", stops_job=True)
    bench.deliver(stop.checkpoint_id, SOURCE, COUNT)
    bench.deliver(0, SOURCE, COUNT, passed=stop.checkpoint_id)
    bench.tell(FinalRequested((SOURCE, COUNT)))
    last = bench.tell(Committed(stop.checkpoint_id))[-1]
    assert last.is_last
    bench.tell(Committed(last.checkpoint_id))
    assert bench.tell(EndNotified(last.checkpoint_id)) == [FinalDone(last.checkpoint_id)]
    assert stop.state is CheckpointState.COMPLETE


def test_broken_invariants_are_found(in_flight):
    in_flight.machine._is_running = False
    with pytest.raises(InvalidTransitionError, match="only a running job"):
        in_flight.machine.check_invariants()


def test_the_job_is_deployed_anew_after_a_checkpoint_that_is_complete_and_delivered(in_flight):
    plain, _ = in_flight.request()
    record, _ = in_flight.request(redeploys_job=True)
    assert record is not plain
    assert "a source moves: the job starts anew from checkpoint 9" in in_flight.request("/save").message
    in_flight.deliver(7, SOURCE, COUNT)
    [_, _] = in_flight.tell(Committed(7), EndNotified(7))
    in_flight.deliver(8, SOURCE, COUNT)
    [_, trigger] = in_flight.tell(Committed(8))
    assert trigger == Trigger(9, (SOURCE,), holds=True)
    in_flight.deliver(9, SOURCE, COUNT)
    assert in_flight.tell(Committed(9)) == [NotifyEnd(9, 1, True, BOTH, stops=True)]
    assert in_flight.tell(Tick(), at=10_000) == []
    assert in_flight.tell(EndNotified(9)) == [RedeployJob(9)]
    assert in_flight.tell(JobStops("a source moves", ends=False)) == []
    assert in_flight.tell(JobRuns(2, PLACEMENT, frozenset([SOURCE]))) == []
    assert in_flight.tell(Tick(), at=20_000) == [Trigger(10, (SOURCE,))]


@pytest.fixture
def stopping(bench):
    """A savepoint with which the job is to stop is in flight; its sources hold."""
    record, actions = bench.request("/backup", stops_job=True)
    assert actions == [Trigger(7, (SOURCE,), holds=True)]
    assert record.to_dict()["stops_job"]
    return bench


def test_the_job_stops_when_its_savepoint_is_complete_and_delivered(stopping):
    [commit] = stopping.deliver(7, SOURCE, COUNT)
    assert commit.path == "/backup"
    assert stopping.tell(Committed(7)) == [NotifyEnd(7, 1, True, BOTH, stops=True)]
    # No other checkpoint begins: sinks would deliver what the savepoint does not cover.
    assert stopping.tell(Tick(), at=10_000) == []
    refusal = stopping.request()
    assert "about to stop with savepoint /backup (checkpoint 7)" in refusal.message
    assert stopping.tell(EndNotified(7)) == [StopJob(7, "/backup")]


def test_sinks_that_did_not_deliver_are_asked_again_before_the_job_stops(stopping):
    stopping.deliver(7, SOURCE, COUNT)
    stopping.tell(Committed(7))
    assert stopping.tell(EndNotified(7, ("tm-b",))) == []
    assert stopping.machine.next_due_ms == 200
    assert stopping.tell(Tick(), at=200) == [NotifyEnd(7, 1, True, ("tm-b",), stops=True)]
    assert stopping.tell(EndNotified(7)) == [StopJob(7, "/backup")]


def test_the_job_goes_on_when_the_savepoint_with_which_it_was_to_stop_fails(stopping):
    stopping.deliver(7, SOURCE, COUNT)
    assert stopping.tell(CommitFailed(7, "no room"), at=300) == [NotifyEnd(7, 1, False, BOTH)]
    assert stopping.states == {7: CheckpointState.FAILED}
    assert stopping.tell(Tick(), at=1300) == [Trigger(8, (SOURCE,))]


def test_the_job_goes_on_when_it_starts_again_before_the_savepoint_is_complete(stopping):
    stopping.tell(JobStops("lost"), JobRuns(2, PLACEMENT, frozenset([SOURCE])))
    assert stopping.states == {7: CheckpointState.ABORTED}
    assert stopping.tell(Tick(), at=1000) == [Trigger(8, (SOURCE,))]


def test_a_job_that_starts_again_from_the_savepoint_stops_at_once(stopping):
    """A sink was lost before it delivered: the restart delivered, and nothing may come after it."""
    stopping.deliver(7, SOURCE, COUNT)
    stopping.tell(Committed(7))
    [fail] = stopping.tell(TaskManagerLost("tm-b", "gone"))
    assert isinstance(fail, FailJob)
    stopping.tell(JobStops("lost"))
    assert stopping.tell(JobRuns(2, PLACEMENT, frozenset([SOURCE]))) == [StopJob(7, "/backup")]


def test_one_stop_at_a_time_also_one_that_waits(in_flight):
    in_flight.request("/backup", stops_job=True)
    assert isinstance(in_flight.request("/other", stops_job=True), CheckpointRefusal)
    in_flight.deliver(7, SOURCE, COUNT)
    in_flight.tell(Committed(7))
    assert in_flight.tell(EndNotified(7), Tick(), at=1500) == []
