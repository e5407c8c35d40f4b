"""A subtask with inputs: how watermarks and idleness pass it; see ``scripted_subtasks``."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

import weir
from task_manager.exchange.inbox import Delivery, Inbox
from tests.task_manager.subtasks.scripted_subtasks import (
    LEFT,
    RIGHT,
    Script,
    Setup,
    rows,
)
from weir.author.operator import HoldsRows
from weir.operators.stateless.assign_event_time import AssignEventTimeOperator
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS, EndOfStream, Idle, Watermark
from weir.specs import AssignEventTimeSpec


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


def test_an_input_that_has_nothing_to_send_holds_nothing_although_another_one_says_so_first():
    setup = Setup(
        (LEFT, Watermark(WATERMARK_MIN_MS, without=(RIGHT.producer.subtask_index,))),
        (LEFT, Watermark(10)),
        (LEFT, rows(1)),
        (RIGHT, Watermark(WATERMARK_MAX_MS)),
        (RIGHT, EndOfStream()),
        (LEFT, Watermark(20)),
    ).run()
    assert setup.operator.calls[:3] == ["watermark 10", [1], "watermark 20"]


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


@pytest.mark.parametrize("first", [LEFT, RIGHT])
def test_the_highest_watermark_before_the_end_is_told_whichever_input_ends_first(first):
    """Early results and timers say the same in each run."""
    ends = [(LEFT, Watermark(10)), (RIGHT, Watermark(5))]
    ends.sort(key=lambda item: item[0] != first)
    after = [Watermark(WATERMARK_MAX_MS), EndOfStream()]
    steps = [(channel, element) for channel, told in ends for element in (told, *after)]
    setup = Setup(*steps, script=Gathered).run()
    shown = [call for call in setup.operator.calls if isinstance(call, str) and call.startswith("w")]
    assert shown[-1] == "watermark 10"
    told = [item.time_ms for item in setup.sent if isinstance(item, Watermark)]
    assert told[-2:] == [10, WATERMARK_MAX_MS]


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

        def admit(self, given, shown_ms):
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
    setup.subtask._times.is_parked = lambda: parked.holds_watermark
    told = setup.operator.on_watermark
    setup.operator.on_watermark = lambda time_ms: (told(f"{time_ms}, parked {parked.holds_watermark}"), ())[1]
    setup.run()
    assert setup.operator.calls[:2] == [[5], "watermark 4000, parked False"]


class Holding(HoldsRows):
    """Holds rows back until one has the number 0; three of them are as many as it takes."""

    tells_inputs_apart = True

    def __init__(self):
        self.held, self.holds = [], True

    @property
    def holds_time(self):
        return self.holds or bool(self.held)

    @property
    def may_release(self):
        return not self.holds and bool(self.held)

    @property
    def is_full(self):
        return sum(batch.num_rows for batch in self.held) >= 3

    def process(self, batch):
        self.held.append(batch)
        self.holds = self.holds and 0 not in batch.column("n").to_pylist()
        return ()

    def release(self, watermark_ms):
        made, self.held = self.held, []
        yield from made


def test_time_stands_still_while_an_operator_holds_rows_back_and_no_more_are_asked_for_than_it_takes():
    credits = []

    def look():
        credits.append(setup.inbox.released)

    setup = Setup(
        (LEFT, rows(1)),
        (LEFT, Watermark(5)),
        (RIGHT, Watermark(6)),
        (LEFT, Idle()),
        (RIGHT, Idle()),
        look,
        (LEFT, rows(2, 3)),
        (LEFT, rows(4)),
        look,
        (LEFT, rows(0)),
        look,
        (RIGHT, rows(5)),
        (RIGHT, Watermark(7)),
        (LEFT, Watermark(9)),
        before=(Holding(),),
    )
    setup.run()
    assert credits == [5, 5, 8], "credit is held back for rows that it does not take"
    assert setup.operator.calls[:4] == [[1], [2, 3], [4], [0]]
    shown = [call for call in setup.operator.calls[4:] if isinstance(call, str) and call.startswith("w")]
    assert shown[0] in ("watermark 5", "watermark 6")
    sent = setup.sent
    assert Idle() not in sent
    assert not any(isinstance(item, Watermark) for item in sent[: sent.index([0])])
