"""A subtask with inputs: its rows, its end and what is ordered of it; see ``scripted_subtasks``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from task_manager.progress import SubtaskState
from task_manager.subtasks.running import RunningSubtask
from tests.task_manager.subtasks.scripted_subtasks import (
    LEFT,
    RIGHT,
    Script,
    Setup,
    rows,
)
from weir.author.operator import Operator
from weir.errors import FailureKind, StateError
from weir.protocol.rescale.rescale_owner import Proceed
from weir.rows.records import EndOfStream


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
