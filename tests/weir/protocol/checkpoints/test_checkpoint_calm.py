"""A job to which nothing comes makes fewer checkpoints, and waits for none when something comes."""

import pytest

from tests.weir.protocol.checkpoints.bench import COUNT, NEW, PLACEMENT, SOURCE
from weir.protocol.checkpoints.checkpoint import CheckpointMachine
from weir.protocol.checkpoints.checkpoint_model import (
    CheckpointSettings,
    Committed,
    EndNotified,
    Hold,
    JobRuns,
    PartDeclined,
    PartDelivered,
    Release,
    RowsCame,
    SubtasksAdded,
    SubtasksRetired,
    Tick,
    Trigger,
)
from weir.protocol.checkpoints.manifest import FileRef, SubtaskPart
from weir.protocol.job.event_counts import EventCounts

SETTINGS = CheckpointSettings(interval_ms=1000, pause_ms=200, calm_interval_ms=5000)


class Job:
    """A machine whose checkpoints take 10 ms."""

    def __init__(self, settings=SETTINGS):
        self.machine, self.now_ms = CheckpointMachine(settings, 1), 0
        self.tell(JobRuns(1, PLACEMENT, frozenset([SOURCE])))

    def tell(self, *events):
        actions = []
        for event in events:
            actions += self.machine.handle(event, self.now_ms)
            self.machine.check_invariants()
        return actions

    def begin(self):
        """Wait until a checkpoint is due; returns how long that took."""
        began_ms, self.now_ms = self.now_ms, self.machine.next_due_ms
        assert any(isinstance(action, Trigger) for action in self.tell(Tick()))
        return self.now_ms - began_ms

    def end(self, rows=0, position=0, saved=()):
        number = self.machine.in_flight
        self.now_ms += 10
        parts = (
            SubtaskPart(SOURCE, operators={"source": {"at": position}}, counts=EventCounts(rows, rows)),
            SubtaskPart(COUNT, counts=EventCounts(rows, rows), rows=saved),
        )
        self.tell(*(PartDelivered(1, number, part) for part in parts))
        self.tell(Committed(number), EndNotified(number))

    def checkpoint(self, **what):
        waited_ms = self.begin()
        self.end(**what)
        return waited_ms


@pytest.fixture
def calm():
    """A job to which nothing comes any more, after its second checkpoint."""
    job = Job()
    assert [job.checkpoint(rows=7), job.checkpoint(rows=7)] == [1000, 990]
    assert job.machine.next_due_ms == 2000 + 5000
    return job


def test_a_calm_job_waits_longer_from_one_checkpoint_to_the_next(calm):
    assert [calm.checkpoint(rows=7), calm.checkpoint(rows=7)] == [4990, 4990]


def test_rows_make_the_next_one_due_as_ever(calm):
    calm.now_ms += 300
    calm.tell(RowsCame())
    assert calm.machine.next_due_ms == 3000
    assert [calm.checkpoint(rows=8), calm.checkpoint(rows=8)] == [690, 990]
    assert calm.checkpoint(rows=8) == 4990


def test_rows_that_come_late_begin_one_at_once(calm):
    calm.now_ms += 3000
    assert any(isinstance(action, Trigger) for action in calm.tell(RowsCame()))


def test_rows_that_were_told_of_while_a_checkpoint_was_made_count_too():
    job = Job()
    job.checkpoint(rows=7)
    job.begin()
    job.tell(RowsCame())
    job.end(rows=7)
    assert job.checkpoint(rows=8) == 990


@pytest.mark.parametrize("changes", [{"rows": 8}, {"position": 1}, {"saved": (FileRef("rows", 1),)}])
def test_what_is_new_in_a_checkpoint_keeps_the_pace(changes):
    job = Job()
    job.checkpoint(rows=7)
    job.checkpoint(**{"rows": 7, **changes})
    assert job.checkpoint(rows=7) == 990


@pytest.mark.parametrize(
    "events",
    [
        (Hold("rescale"), SubtasksAdded({NEW: "tm-a"}), Release("rescale")),
        (Hold("rescale"), SubtasksRetired((COUNT,)), Release("rescale")),
        (PartDelivered(1, 0, SubtaskPart(COUNT, finished=True)),),
    ],
)
def test_a_change_of_the_job_makes_the_next_one_due_as_ever(calm, events):
    calm.tell(*events)
    assert calm.machine.next_due_ms == 3000


def test_after_one_that_failed_the_pace_is_kept(calm):
    calm.begin()
    calm.tell(PartDeclined(1, calm.machine.in_flight, COUNT, "disk full"))
    assert calm.begin() == 1000
    calm.end(rows=7)
    assert calm.checkpoint(rows=7) == 990


def test_one_that_is_asked_for_does_not_wait(calm):
    record, actions = calm.machine.request("", calm.now_ms)
    assert [type(action) for action in actions] == [Trigger]
    calm.end(rows=7)
    assert record.checkpoint_id == 3
    assert calm.machine.next_due_ms == 2010 + 5000


def test_without_a_longer_interval_nothing_changes():
    job = Job(CheckpointSettings(interval_ms=1000, pause_ms=200))
    assert [job.checkpoint() for _ in range(4)] == [1000, 990, 990, 990]
