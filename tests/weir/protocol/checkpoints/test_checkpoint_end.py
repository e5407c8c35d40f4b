"""The last checkpoint of a job, and what the end of the input does to those that wait."""

from dataclasses import replace

import pytest

from tests.weir.protocol.checkpoints.bench import BOTH, COUNT, SETTINGS, SOURCE, Bench
from weir.errors import FailureKind
from weir.protocol.checkpoints.checkpoint_model import (
    CheckpointState,
    Commit,
    CommitFailed,
    Committed,
    DeliveryFailure,
    EndNotified,
    FailJob,
    FinalDone,
    FinalRequested,
    NotifyEnd,
    TaskManagerLost,
    Tick,
)


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
