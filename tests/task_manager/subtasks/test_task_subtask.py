"""A subtask with inputs in the test's thread: its inbox is a script, its clock moves when the script says so."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from task_manager.checkpoints.checkpoint_parts import TakenPart
from task_manager.exchange.channels import LocalChannel
from task_manager.exchange.credits import ChannelLimits, CreditGate
from task_manager.exchange.deliveries import Delivery
from task_manager.exchange.inbox import Inbox
from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.progress import SubtaskProgress, SubtaskState
from task_manager.subtasks.running import RunningSubtask
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.errors import FailureKind, StateError
from weir.graph import Edge, Exchange
from weir.operators.base import LateSync, Operator, OperatorContext
from weir.operators.chain import OperatorChain
from weir.operators.stateless.assign_event_time import AssignEventTimeOperator
from weir.operators.user_errors import UserErrors
from weir.protocol.rescale_owner import Proceed
from weir.records import Barrier, EndOfStream, Idle, InputRows, Watermark
from weir.specs import AssignEventTimeSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing.manual_clock import ManualClock
from weir.types import ChannelId, SubtaskId

SUBTASK, DOWN = SubtaskId(1, 0), SubtaskId(2, 0)
LEFT, RIGHT = (ChannelId(SubtaskId(0, index), SUBTASK, 0) for index in range(2))


def rows(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


class Script(Inbox):
    """Gives what a test lists: elements with their channel, or calls; then the subtask is told to stop."""

    def __init__(self, steps):
        super().__init__()
        self.steps = list(steps)
        self.released = 0
        self.mailbox: Mailbox | None = None

    def release(self):
        self.released += 1

    def poll(self, timeout_s, gather_s=0.0):
        if not self.steps:
            if len(self):
                return super().poll(0.0)
            self.mailbox.cancel()
            return None
        step = self.steps.pop(0)
        if callable(step):
            step()
            return None
        channel, element = step
        return Delivery(channel, element, self.release)


class Notes(Operator):
    """Passes rows on and notes what it is told; it may raise."""

    def __init__(self, error=None):
        self.calls, self.error = [], error
        #: Called after batches, one each.
        self.after_rows = []

    def process(self, batch):
        if self.error is not None:
            raise self.error
        self.calls.append(batch.column("n").to_pylist())
        if self.after_rows:
            self.after_rows.pop(0)()
        yield batch

    def on_watermark(self, time_ms):
        self.calls.append(f"watermark {time_ms}")
        return ()

    def snapshot(self, checkpoint_id):
        self.calls.append(f"snapshot {checkpoint_id}")
        return None

    def close(self):
        self.calls.append("close")


class Parts:
    """Implements ``Checkpoints``."""

    def __init__(self):
        self.delivered, self.failed = [], []
        self.error = None

    def take(self, subtask, checkpoint_id, operators, captures, backend, passed_id):
        if self.error is not None:
            raise self.error
        return TakenPart(subtask, checkpoint_id, operators, passed_id)

    def deliver(self, part, rows=()):
        self.delivered.append((part.checkpoint_id, [item.batch.column("n").to_pylist() for item in rows]))

    def fail(self, subtask, checkpoint_id, cause):
        self.failed.append((checkpoint_id, cause))


class Setup:
    """A subtask that runs a script to its end."""

    def __init__(
        self, *steps, error=None, alignment_timeout_ms=1000.0, before=(), script=Script, restored_rows=()
    ):
        self.clock, self.parts, self.operator = ManualClock(), Parts(), Notes(error)
        self.inbox = script(steps)
        self.inbox._clock = self.clock
        mailbox = Mailbox(self.inbox)
        self.inbox.mailbox = mailbox
        self.down = Inbox()
        gate = CreditGate(ChannelLimits(100, 1 << 30, 1e6), self.inbox, self.clock)
        channel = LocalChannel(gate, self.down, ChannelId(SUBTASK, DOWN, 0))
        edge = OutputEdge(Edge(1, 2, Exchange.ROUND_ROBIN, (), 0), {0: channel}, BatchPolicy(1000, 0.0))
        context = OperatorContext("job", "notes", 1, 0, 1, clock=self.clock)
        self.chain = OperatorChain(
            [(operator, context) for operator in (*before, self.operator)],
            Output([edge], mailbox.wait_for_credit, self.clock),
            mailbox.check_cancelled,
            StateTables(MemoryBackend(), 1 << 20, 128),
            None,
        )
        timers = SubtaskTimers(200, 0, 1000, 1000, alignment_timeout_ms, 5, 100)
        self.states = []
        self.subtask = TaskSubtask(
            SubtaskParts(
                SUBTASK,
                "step 'both', subtask 0",
                self.chain,
                mailbox,
                timers,
                self.clock,
                lambda: self.states.append(self.subtask.progress.state),
                self.parts,
                SubtaskProgress(),
                UserErrors(),
            ),
            [LEFT, RIGHT],
            restored_rows=restored_rows,
        )

    def run(self):
        self.subtask.begin(1)
        self.subtask.run()
        return self

    @property
    def sent(self):
        """What went downstream."""
        found = []
        while (delivery := self.down.poll(0.0)) is not None:
            element = delivery.element
            found.append(element.column("n").to_pylist() if isinstance(element, pa.RecordBatch) else element)
        return found


class Dropping(Operator):
    """Drops all rows."""

    def process(self, batch):
        return ()


class Owner:
    """Notes that nothing refers to memory any more."""

    def __init__(self, freed):
        self.freed = freed

    def __del__(self):
        self.freed.append(self)


def rows_of(freed):
    """Rows in memory that appends to a list when nothing refers to it any more."""
    numbers = np.arange(3)
    buffer = pa.foreign_buffer(numbers.ctypes.data, numbers.nbytes, (numbers, Owner(freed)))
    return pa.record_batch({"n": pa.Array.from_buffers(pa.int64(), 3, [None, buffer])})


def test_memory_of_rows_is_free_before_their_credit_goes_back():
    """The credit tells the sender which parts of shared memory it may write to."""
    freed, when_released = [], []

    class Watched(Script):
        def release(self):
            when_released.append(len(freed))

    Setup((LEFT, rows_of(freed)), (LEFT, rows_of(freed)), before=(Dropping(),), script=Watched).run()
    assert when_released == [1, 2]


def test_it_ends_with_its_inputs_and_tells_everything_downstream():
    setup = Setup((LEFT, rows(1)), (LEFT, EndOfStream()), (RIGHT, rows(2)), (RIGHT, EndOfStream())).run()
    assert setup.operator.calls == [[1], [2], "snapshot 0", "close"]
    sent = setup.sent
    assert [item for item in sent if isinstance(item, list)] == [[1], [2]]
    assert isinstance(sent[-1], EndOfStream)
    assert setup.parts.delivered == [(0, [])], "the last part"
    assert setup.inbox.released == 4
    progress = setup.subtask.progress
    assert (progress.records_in, progress.records_out, progress.batches_in) == (2, 2, 2)
    assert setup.states == [SubtaskState.DEPLOYED, SubtaskState.RUNNING, SubtaskState.FINISHED]
    assert setup.subtask.mailbox.post(lambda: None) is None


def test_the_watermark_is_the_lowest_of_the_inputs_and_idle_ones_do_not_count():
    setup = Setup(
        (LEFT, Watermark(10)),
        (RIGHT, Watermark(5)),
        (RIGHT, Idle()),
        (LEFT, Watermark(20)),
    ).run()
    shown = [call for call in setup.operator.calls if isinstance(call, str) and call.startswith("w")]
    assert shown == ["watermark 5", "watermark 10", "watermark 20"]
    assert setup.subtask.progress.watermark_ms == 20


class SlowDisk(LateSync):
    """A sink that notes what the disk is told, and when."""

    def __init__(self):
        self.calls = []

    def process(self, batch):
        yield batch

    def snapshot(self, checkpoint_id):
        self.calls.append(f"snapshot {checkpoint_id}")

    def sync(self):
        self.calls.append("sync")

    def close(self):
        self.calls.append("close")


def test_rows_do_not_wait_for_a_disk_but_who_delivers_a_part_does_and_the_end():
    disk = SlowDisk()
    ends = [(channel, EndOfStream()) for channel in (LEFT, RIGHT)]
    setup = Setup((LEFT, Barrier(1)), (RIGHT, Barrier(1)), (LEFT, rows(1)), *ends, before=(disk,))
    parts, deliver = [], setup.parts.deliver

    def delivered(part, rows=()):
        parts.append(part)
        deliver(part, rows)

    setup.parts.deliver = delivered
    setup.run()
    assert disk.calls == ["snapshot 1", "snapshot 0", "sync", "close"]
    parts[0].sync()
    assert disk.calls[-1] == "sync"
    assert setup.parts.delivered == [(1, []), (0, [])]


class Gathered(Script):
    """What a test lists has gathered."""

    def __init__(self, steps):
        super().__init__(())
        self.listed = steps

    def poll(self, timeout_s, gather_s=0.0):
        if self.listed:
            for channel, element in self.listed:
                self.put(Delivery(channel, element, self.release))
            self.listed = ()
        return Inbox.poll(self, 0.0) if len(self) else super().poll(timeout_s)


def test_rows_of_one_wave_are_one_batch_although_one_of_its_watermarks_makes_the_combined_one_rise():
    """Inputs whose watermarks differ by a little would make two batches of each wave, and two watermarks."""
    setup = Setup(
        (LEFT, rows(1)),
        (RIGHT, rows(2)),
        (LEFT, Watermark(11)),
        (RIGHT, Watermark(10)),
        (RIGHT, rows(3)),
        (RIGHT, Watermark(20)),
        (LEFT, rows(4)),
        (LEFT, Watermark(21)),
        (LEFT, rows(5)),
        script=Gathered,
    ).run()
    # What follows a watermark on its own channel comes after it.
    assert setup.operator.calls[:4] == [[1, 2], "watermark 10", [3, 4], "watermark 20"]
    assert setup.operator.calls[4] == [5]


def test_idleness_goes_on_and_ends_with_the_next_row():
    setup = Setup((LEFT, Idle()), (RIGHT, Idle()), (LEFT, rows(1))).run()
    assert [item for item in setup.sent if isinstance(item, Idle)] == [Idle()]


def timed(*numbers):
    """Rows whose event time is to be a thousand times their number."""
    return rows(*numbers).append_column("_event_time_ms", pa.array([7] * len(numbers), pa.int64()))


def assigner():
    bound = weir.bounded_out_of_orderness("1s")
    return AssignEventTimeOperator(AssignEventTimeSpec(pl.col("n") * 1_000, bound))


def test_watermarks_after_a_step_that_assigns_event_times_are_those_of_its_rows():
    setup = Setup(
        (LEFT, Watermark(900_000)),
        (RIGHT, Watermark(900_000)),
        (LEFT, timed(5, 4)),
        lambda: setup.clock.advance_ms(500),
        (RIGHT, timed(3)),
        lambda: setup.clock.advance_ms(500),
        (RIGHT, timed(9)),
        before=[assigner()],
    )
    setup.run()
    assert setup.operator.calls == [[5, 4], "watermark 4000", [3], [9], "watermark 8000", "close"]
    assert [item for item in setup.sent if isinstance(item, Watermark)] == [Watermark(4000), Watermark(8000)]
    assert setup.subtask.progress.watermark_ms == 8000


def test_a_subtask_whose_assigned_times_stand_still_tells_that_it_is_idle():
    setup = Setup(
        (LEFT, timed(5)),
        lambda: setup.clock.advance_ms(1_001),
        (LEFT, Watermark(900_000)),
        (LEFT, timed(6)),
        before=[assigner()],
    )
    setup.run()
    told = [item for item in setup.sent if isinstance(item, Watermark | Idle)]
    assert told == [Watermark(4000), Idle(), Watermark(5000)]


def test_no_assigned_watermark_goes_on_while_rows_are_parked():
    class Parked:
        has_parked_rows, parked_bytes, may_park, may_finish = False, 0, True, True
        holds_watermark = True

        def admit(self, given):
            return given.batch

    parked = Parked()
    setup = Setup(
        (LEFT, timed(5)),
        lambda: setup.clock.advance_ms(500),
        lambda: setattr(parked, "holds_watermark", False),
        lambda: None,
        before=[assigner()],
    )
    setup.subtask._ownership = parked
    told = setup.operator.on_watermark
    setup.operator.on_watermark = lambda time_ms: (told(f"{time_ms}, parked {parked.holds_watermark}"), ())[1]
    setup.run()
    assert setup.operator.calls[:2] == [[5], "watermark 4000, parked False"]


def test_a_barrier_waits_for_the_other_input_and_rows_after_it_wait_with_it():
    setup = Setup(
        (LEFT, Barrier(7)),
        (LEFT, rows(1)),
        (RIGHT, rows(2)),
        (RIGHT, Barrier(7)),
        (LEFT, EndOfStream()),
        (RIGHT, EndOfStream()),
    ).run()
    assert setup.operator.calls[:3] == [[2], "snapshot 7", [1]]
    assert setup.parts.delivered[0] == (7, [])
    sent = [item for item in setup.sent if isinstance(item, list | Barrier)]
    assert sent == [[2], Barrier(7), [1]]
    assert setup.subtask.progress.passed_id == 7


def test_a_barrier_that_has_waited_for_long_overtakes_rows_which_are_recorded():
    setup = Setup(
        (LEFT, Barrier(7)),
        lambda: setup.clock.advance_ms(1001),
        (RIGHT, rows(2)),
        (RIGHT, Barrier(7)),
    )
    setup.run()
    assert setup.operator.calls[:2] == ["snapshot 7", [2]]
    assert setup.parts.delivered == [(7, [[2]])]


def test_the_end_of_an_input_takes_the_place_of_its_barrier():
    setup = Setup((LEFT, Barrier(7)), (RIGHT, EndOfStream())).run()
    assert "snapshot 7" in setup.operator.calls


def test_a_checkpoint_that_was_given_up_blocks_nothing():
    setup = Setup(
        (LEFT, Barrier(7)),
        (LEFT, rows(1)),
        lambda: setup.subtask.mailbox.post(lambda: setup.subtask.end_checkpoint(7)),
        (RIGHT, rows(2)),
    )
    setup.run()
    assert setup.operator.calls[0] == [1]
    assert setup.parts.delivered == []


def test_what_was_put_aside_comes_before_what_arrives_while_the_checkpoint_is_given_up():
    setup = Setup(
        (LEFT, Barrier(7)),
        (LEFT, rows(1)),
        (LEFT, rows(2)),
        (LEFT, EndOfStream()),
        (RIGHT, EndOfStream()),
        lambda: None,
    )
    poll = setup.inbox.poll

    def polled(timeout_s, gather_s=0.0):
        if len(setup.inbox.steps) == 4:
            # Run after the second rows were taken from the inbox.
            setup.subtask.mailbox.post(lambda: setup.subtask.end_checkpoint(7))
        return poll(timeout_s, gather_s)

    setup.inbox.poll = polled
    setup.run()
    assert [number for call in setup.operator.calls if isinstance(call, list) for number in call] == [1, 2]


def test_a_snapshot_that_fails_fails_the_checkpoint_only():
    setup = Setup((LEFT, Barrier(7)), (RIGHT, Barrier(7)), (LEFT, rows(1)))
    setup.parts.error = StateError("disk full")
    setup.run()
    assert setup.parts.failed == [(7, "disk full")]
    assert [1] in setup.operator.calls


def test_a_step_that_raises_ends_it_with_the_cause_and_nothing_follows_downstream():
    setup = Setup((LEFT, rows(1)), error=ValueError("too hot")).run()
    progress = setup.subtask.progress
    assert progress.state is SubtaskState.FAILED
    assert (progress.cause, progress.failed_step) == ("step 'notes' failed: ValueError: too hot", "notes")
    assert progress.failure_kind is not FailureKind.OUTAGE
    assert not any(isinstance(item, EndOfStream) for item in setup.sent)
    assert setup.operator.calls == ["close"]


def test_a_command_that_raises_fails_it_and_later_ones_are_refused():
    def fails():
        raise StateError("the migration failed")

    setup = Setup(lambda: setup.subtask.mailbox.post(fails))
    setup.run()
    assert setup.subtask.progress.cause == "the migration failed"
    assert setup.subtask.mailbox.post(lambda: None) is None


@pytest.mark.parametrize("end_stream", [False, True])
def test_when_it_is_cancelled_its_stream_ends_only_if_it_should(end_stream):
    setup = Setup(lambda: setup.subtask.cancel(end_stream=end_stream))
    setup.run()
    assert setup.subtask.progress.state is SubtaskState.CANCELED
    assert [type(item) for item in setup.sent] == [EndOfStream] * end_stream


def test_a_sink_delivers_in_the_subtasks_thread_or_after_its_end():
    committed = []
    setup = Setup(
        lambda: setup.subtask.commit(7, is_last=False), (LEFT, EndOfStream()), (RIGHT, EndOfStream())
    )
    setup.chain.commit = lambda number, *, waits: committed.append((number, waits))
    setup.run()
    assert committed == [(7, False)]
    assert setup.subtask.commit(8, is_last=False) is None


def test_no_event_of_a_rescale_is_taken_when_the_last_row_is_behind_it():
    setup, told = Setup((LEFT, EndOfStream()), (RIGHT, EndOfStream())), []
    running = RunningSubtask(setup.subtask, setup.chain, None, None)
    setup.operator.finish = lambda: told.append(running.tell(Proceed(2))) or ()
    setup.run()
    assert told == [None], "nobody may count on it"


def test_an_event_that_came_with_the_last_row_is_still_taken_in():
    setup, handled = Setup((LEFT, EndOfStream()), (RIGHT, EndOfStream()), lambda: None), []
    running = RunningSubtask(setup.subtask, setup.chain, None, None)
    setup.subtask.handle = lambda event: handled.append((event, setup.operator.calls.copy()))
    setup.inbox.release = lambda: running.tell(Proceed(2))
    setup.run()
    told = [item for item in handled if item[0] == Proceed(2)]
    assert [calls for _, calls in told] == [[], []], "one for each end, before anything is finished"


def test_restored_rows_come_before_all_input():
    setup = Setup((LEFT, rows(1)))
    setup = Setup((LEFT, rows(1)), restored_rows=[InputRows(0, rows(9))])
    setup.run()
    assert setup.operator.calls[:2] == [[9], [1]]


def test_rows_are_taken_in_parts_and_a_barrier_behind_them_overtakes_the_rest():
    """Of an unknown step few rows are taken at first; the barrier has waited too long when they are done."""
    many = rows(*range(40))
    setup = Setup((LEFT, many), alignment_timeout_ms=1000.0)

    def late():
        for channel in (LEFT, RIGHT):
            setup.inbox.put(Delivery(channel, rows(50), setup.inbox.release))
            setup.inbox.put(Delivery(channel, Barrier(7), setup.inbox.release))
            setup.inbox.put(Delivery(channel, rows(60), setup.inbox.release))
        setup.clock.advance_ms(2000)

    setup.operator.after_rows = [late]
    setup.run()
    assert setup.operator.calls[:2] == [list(range(16)), "snapshot 7"]
    seen = [call for call in setup.operator.calls if isinstance(call, list)]
    assert sorted(number for call in seen for number in call) == [*range(40), 50, 50, 60, 60]
    assert setup.parts.delivered[0] == (7, [list(range(16, 40)), [50], [50]])


def test_restored_rows_that_are_left_belong_to_the_next_checkpoint():
    setup = Setup(restored_rows=[InputRows(0, rows(*range(20)))])

    def late():
        for channel in (LEFT, RIGHT):
            setup.inbox.put(Delivery(channel, Barrier(7), setup.inbox.release))
        setup.clock.advance_ms(2000)

    setup.operator.after_rows = [late]
    setup.run()
    assert setup.parts.delivered[0] == (7, [list(range(16, 20))])


def test_a_barrier_that_is_missing_takes_the_rows_before_it_along_once():
    setup = Setup((LEFT, rows(*range(20))))

    def early():
        setup.inbox.put(Delivery(LEFT, Barrier(7), setup.inbox.release))
        setup.inbox.put(Delivery(RIGHT, rows(50), setup.inbox.release))
        setup.clock.advance_ms(2000)

    def late():
        setup.inbox.put(Delivery(RIGHT, rows(51), setup.inbox.release))
        setup.inbox.put(Delivery(RIGHT, Barrier(7), setup.inbox.release))
        setup.clock.advance_ms(2000)

    setup.operator.after_rows = [early, late]
    setup.run()
    assert setup.operator.calls.count("snapshot 7") == 1
    assert setup.parts.delivered[0] == (7, [list(range(16, 20)), [50], [51]])
