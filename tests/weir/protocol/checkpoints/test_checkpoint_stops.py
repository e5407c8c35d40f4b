"""Checkpoints after which the job stops, or is deployed anew."""

import pytest

from tests.weir.protocol.checkpoints.bench import BOTH, COUNT, PLACEMENT, SOURCE
from weir.protocol.checkpoints.checkpoint_model import (
    CheckpointRefusal,
    CheckpointState,
    CommitFailed,
    Committed,
    EndNotified,
    FailJob,
    JobRuns,
    JobStops,
    NotifyEnd,
    RedeployJob,
    StopJob,
    TaskManagerLost,
    Tick,
    Trigger,
)


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
