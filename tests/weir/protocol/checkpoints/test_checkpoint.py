"""When checkpoints begin, when they are complete, and what ends them."""

import pytest

from tests.weir.protocol.checkpoints.bench import BOTH, COUNT, NEW, PLACEMENT, SOURCE, Bench
from weir.errors import InvalidTransitionError
from weir.protocol.checkpoints.checkpoint_model import (
    CheckpointRefusal,
    CheckpointSettings,
    CheckpointState,
    Commit,
    CommitFailed,
    Committed,
    EndNotified,
    FailJob,
    JobRuns,
    JobStops,
    NotifyEnd,
    PartDeclined,
    Tick,
    Trigger,
)
from weir.protocol.checkpoints.checkpoint_records import QUEUE_MAX, RECORDS_MAX
from weir.protocol.checkpoints.manifest import SubtaskPart
from weir.types import SubtaskId


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
        "parts_duration_ms": 100,
        "commit_duration_ms": 50,
        "new_bytes": 20,
        "size_bytes": 500,
        "cause": "",
    }
    assert record.parts_ms == {COUNT: 1100, SOURCE: 1100}
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
    assert bench.tell(Tick(), at=1000) == [Trigger(7, (SubtaskId(0, 1),), others=(COUNT,))]
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


def test_those_that_still_work_make_checkpoints_when_all_sources_have_ended(bench):
    bench.deliver(0, SOURCE)
    assert bench.tell(Tick(), at=1000) == [Trigger(7, (), others=(COUNT,))]
    [commit] = bench.deliver(7, COUNT)
    assert [part.finished for part in commit.parts] == [True, False]
    bench.tell(Committed(7))
    assert isinstance(bench.request(), CheckpointRefusal), (
        "asked for, it is the last one, which comes by itself"
    )
    bench.deliver(0, COUNT)
    assert bench.tell(Tick(), at=9000) == []
    assert bench.machine.next_due_ms is None


# --- failures --------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_takes_too_long_is_given_up(in_flight):
    in_flight.deliver(7, SOURCE)
    assert in_flight.machine.next_due_ms == 6000
    assert in_flight.tell(Tick(), at=5999) == []
    assert in_flight.tell(Tick(), at=6000) == [NotifyEnd(7, 1, False, BOTH)]
    record = in_flight.machine.records[0]
    assert record.state is CheckpointState.FAILED
    assert record.cause == "no part of subtask 1/0 after 5000 ms (checkpoint_timeout_ms)"
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


def test_broken_invariants_are_found(in_flight):
    in_flight.machine._is_running = False
    with pytest.raises(InvalidTransitionError, match="only a running job"):
        in_flight.machine.check_invariants()


def test_slow_subtasks_do_not_fail_the_job_and_get_longer_each_time(bench):
    """A restart would only begin again with the same rows; several slow stages are passed one after the other."""
    waited = []
    for _ in range(12):
        assert bench.tell(Tick(), at=bench.now_ms + 1000)[0] == Trigger(bench.machine.in_flight, (SOURCE,))
        began_ms = bench.now_ms
        assert bench.tell(Tick(), at=bench.machine.next_due_ms) == [
            NotifyEnd(bench.machine.records[0].checkpoint_id, 1, False, BOTH)
        ]
        waited.append(bench.now_ms - began_ms)
    assert waited == [5000 * min(2**number, 64) for number in range(12)]
    bench.tell(Tick(), at=bench.now_ms + 1000)
    assert bench.machine.in_flight is not None


def test_it_is_told_what_a_checkpoint_waits_for(in_flight):
    assert in_flight.machine.waits_for_text(1500, 1000) == ""
    assert in_flight.machine.waits_for_text(13_000) == (
        "checkpoint 7 waits for stage 0, subtask 0/0: 12 s in the rows before the barrier (and 1 more after it)"
    )
    in_flight.deliver(7, SOURCE)
    assert in_flight.machine.waits_for_text(13_000) == (
        "checkpoint 7 waits for stage 1, subtask 1/0: 12 s in the rows before the barrier"
    )
