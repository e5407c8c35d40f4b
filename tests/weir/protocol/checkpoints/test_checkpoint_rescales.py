"""Checkpoints and subtasks that come, retire and are lost in a rescale."""

import pytest

from tests.weir.protocol.checkpoints.bench import BOTH, COUNT, NEW, SOURCE
from weir.errors import InvalidTransitionError
from weir.protocol.checkpoints.checkpoint_model import (
    CheckpointState,
    Committed,
    EndNotified,
    FailJob,
    Hold,
    NotifyEnd,
    PartDelivered,
    Release,
    SubtasksAdded,
    SubtasksRetired,
    TaskManagerLost,
    Tick,
    Trigger,
)
from weir.protocol.checkpoints.manifest import SubtaskPart
from weir.protocol.job.event_counts import EventCounts


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
