from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.errors import GraphError
from weir.operators.sources.paced.pacing import BatchSource
from weir.operators.sources.paced.schedule import COALESCE_US, CROWD_US_MAX, Schedule
from weir.rows.records import EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, Block, int64_column
from weir.specs import SourceSpec
from weir.testing.manual_clock import ManualClock

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class CountingSource(BatchSource):
    """Gives 0, 1, 2 ... in decoded blocks of 700 rows."""

    def __init__(self, spec, rows):
        super().__init__(spec)
        self._numbers = list(range(rows))

    def _open_input(self, context):
        pass

    def _has_input(self):
        return [True] * self._context.parallelism

    def _event_quota(self, events_max):
        return events_max

    def _next_batch(self):
        block, self._numbers = self._numbers[:700], self._numbers[700:]
        return pa.record_batch([pa.array(block)], schema=SCHEMA) if block else None


class WantedSource(CountingSource):
    """Decodes as many rows as are wanted."""

    def _next_batch(self):
        block, self._numbers = self._numbers[: self.rows_wanted], self._numbers[self.rows_wanted :]
        return pa.record_batch([pa.array(block)], schema=SCHEMA) if block else None


class Behind(weir.WatermarkGenerator):
    def on_batch(self, batch):
        return None


def look_at(blocks, block):
    blocks.append(block)
    return Block(block)


def opened(rate, rows=2000, subtask=0, parallelism=1, gather_ms=0, look=None, kind=CountingSource, **spec):
    clock = ManualClock()
    source = kind(SourceSpec(schema=SCHEMA, rate=rate, **spec), rows)
    start_us = clock.now_us()
    context = OperatorContext(
        "j",
        "s",
        0,
        subtask,
        parallelism,
        gather_ms=gather_ms,
        job_start_us=start_us,
        clock=clock,
    )
    if look is not None:
        source.look_ahead(look)
    source.open(context)
    return source, clock


def advance_us(clock, delta_us):
    # The clock cuts to whole microseconds.
    clock.advance_ms((delta_us + 0.5) / 1000)


def drain(source, clock, rows_max=1000):
    """Poll whenever the source asks for it until it ends; rows of each poll with the time of the poll."""
    start, polls = clock.now_us(), []
    for _ in range(100_000):
        poll = source.poll(rows_max)
        if poll.finished:
            return polls
        if poll.batch is not None:
            polls.append((clock.now_us() - start, poll.batch))
        if poll.next_poll_us > clock.now_us():
            advance_us(clock, poll.next_poll_us - clock.now_us())
    raise AssertionError("the source does not end")


def test_events_carry_their_scheduled_time_over_all_subtasks():
    times = []
    for subtask in (0, 1, 2):
        source, clock = opened(1000.0, rows=50, subtask=subtask, parallelism=3)
        start = clock.now_us()
        polls = drain(source, clock)
        times += [int(t) - start for _, batch in polls for t in int64_column(batch, INGEST_TIME_COLUMN)]
        assert all(batch.column(EVENT_TIME_COLUMN)[0].as_py() >= start // 1000 for _, batch in polls)
    assert sorted(times) == [k * 1000 for k in range(150)]


def test_rows_that_were_looked_at_come_at_the_same_time_and_once():
    polls = {}
    for looks in (False, True):
        blocks = []
        look = partial(look_at, blocks) if looks else None
        source, clock = opened(10_000.0, look=look)
        start, polls[looks] = clock.now_us(), []
        while not (poll := source.poll(50)).finished:
            batch = poll.batch
            if poll.due is not None:
                assert batch is None
                batch = poll.due.block.window(poll.due.start, poll.due.stop)
            polls[looks].append((clock.now_us() - start, poll.event_time_ms_max, poll.size_bytes, batch))
            advance_us(clock, max(poll.next_poll_us - clock.now_us(), 0))
        assert len(blocks) == (3 if looks else 0)
    assert polls[True] == polls[False]


@pytest.mark.parametrize("limits", [{}, {"events_max": 1500}], ids=["all", "limited"])
@pytest.mark.parametrize("late_us", [0, 80])
def test_blocks_end_with_a_poll_and_the_next_one_is_decoded_between_two(limits, late_us):
    blocks = []
    source, clock = opened(
        100_000.0, rows=20_000, look=partial(look_at, blocks), kind=WantedSource, gather_ms=25, **limits
    )
    start_us, rows, decoding = clock.now_us(), [], 0
    while not (poll := source.poll(10_000)).finished:
        before = len(blocks)
        if poll.due is not None:
            due_us = int64_column(poll.due.block.columns, INGEST_TIME_COLUMN)
            rows += [int(t) - start_us for t in due_us[poll.due.start : poll.due.stop]]
            assert start_us + rows[-1] <= clock.now_us()
        if poll.next_poll_us > clock.now_us():
            # All that was due when this poll was.
            assert (len(rows) + 1) * 10 > (clock.now_us() - start_us) // COALESCE_US * COALESCE_US
            source.prepare()
            decoding += len(blocks) - before
            advance_us(clock, poll.next_poll_us - clock.now_us() + late_us)
    assert rows == [10 * number for number in range(limits.get("events_max", 20_000))]
    # All but the first.
    assert decoding == len(blocks) - 1


def test_a_source_that_looks_for_the_next_block_early_goes_on_from_the_same_place():
    source, clock = opened(10_000.0, look=partial(look_at, []), gather_ms=25)
    drained = 0
    while drained < 700:
        poll = source.poll(1000)
        drained += poll.due.stop - poll.due.start if poll.due is not None else 0
        if poll.next_poll_us > clock.now_us() and drained < 700:
            assert source.prepare() is None
            advance_us(clock, poll.next_poll_us - clock.now_us())
    assert source.prepare().columns.num_rows == 700
    assert source.prepare() is None, "once for each block"
    assert source._progress.given == 700


def test_rows_that_somebody_must_see_at_their_time_are_not_looked_at():
    looked = []
    opened(10_000.0, look=looked.append)
    assert len(looked) == 1
    opened(10_000.0, look=looked.append, watermark=weir.custom_watermarks(Behind))
    opened(None, look=looked.append)[0].poll(10)
    assert len(looked) == 1


def test_nothing_comes_early_and_slow_polls_keep_the_schedule():
    source, clock = opened(10_000.0)
    start = clock.now_us()
    assert source.poll(1000).batch.num_rows == 1
    early = source.poll(1000)
    assert early.batch is None
    assert early.next_poll_us == start + COALESCE_US
    advance_us(clock, 50_000)
    batch = source.poll(1000).batch
    assert [int(t) - start for t in int64_column(batch, INGEST_TIME_COLUMN)] == [
        k * 100 for k in range(1, 501)
    ]


def test_high_rates_are_polled_at_intervals_and_low_rates_on_time():
    source, clock = opened(100_000.0)
    polls = drain(source, clock)
    assert sorted({at for at, _ in polls}) == list(range(0, 20_000 + COALESCE_US, COALESCE_US))
    source, clock = opened(100.0, rows=20)
    assert [at for at, _ in drain(source, clock)] == [k * 10_000 for k in range(20)]


@pytest.mark.parametrize(
    ("rate", "gather_ms", "turn_us"),
    [
        (10_000.0, 10, COALESCE_US),
        (5_000.0, 25, COALESCE_US),
        (2_000.0, 25, 6_500),
        (500.0, 25, 25_000),
        (500.0, 1_000, 26_000),
        (500.0, 5, 5_000),
        (500.0, 4, COALESCE_US),
        (160.0, 25, 25_000),
        (500.0, 0, COALESCE_US),
        (100_000.0, 25, COALESCE_US),
    ],
)
def test_at_middle_rates_a_poll_waits_for_some_rows_but_not_longer_than_it_may(rate, gather_ms, turn_us):
    source, clock = opened(rate, rows=60, gather_ms=gather_ms)
    polls = [at for at, _ in drain(source, clock)]
    assert {at % turn_us for at in polls} == {0}
    assert polls[1] - polls[0] == turn_us


@pytest.mark.parametrize(("rate", "turn_us"), [(700_000.0, 5_169), (3e6, CROWD_US_MAX)])
def test_at_high_rates_a_poll_gathers_longer_and_gives_out_all_that_is_due_as_one_batch(rate, turn_us):
    looked = []
    source, clock = opened(
        rate, rows=100_000, gather_ms=10, look=looked.append, kind=WantedSource, event_time_column="n"
    )
    start, polls = clock.now_us(), drain(source, clock, rows_max=60_000)
    # What was decoded before the start goes first.
    steady = polls[4:-1]
    assert {at % turn_us for at, _ in steady} == {0}
    assert all(abs(batch.num_rows - rate * turn_us / 1e6) <= 1 for _, batch in steady)
    assert [n for _, batch in polls for n in batch.column("n").to_pylist()] == list(range(100_000))
    times = [t - start for _, batch in polls for t in int64_column(batch, INGEST_TIME_COLUMN).tolist()]
    assert times == [int(n * 1e6 / rate) for n in range(100_000)]
    assert not looked, "what is given out as it is need not be looked at before"


def test_an_event_that_would_wait_for_one_other_at_most_does_not_wait():
    source, clock = opened(80.0, rows=20, gather_ms=25)
    assert [at for at, _ in drain(source, clock)] == [k * 12_500 for k in range(20)]


def test_subtasks_poll_at_the_same_moments():
    for subtask in range(3):
        source, clock = opened(100_000.0, rows=100, subtask=subtask, parallelism=3)
        polls = [at for at, _ in drain(source, clock)][1:]
        assert {at % COALESCE_US for at in polls} == {0}


def test_overdue_rows_come_at_once_in_bounded_batches():
    source, clock = opened(1_000_000.0, rows=2000)
    advance_us(clock, 10_000_000)
    sizes, poll = [], source.poll(300)
    while not poll.finished:
        sizes.append(poll.batch.num_rows)
        poll = source.poll(300) if poll.next_poll_us == 0 else source.poll(advance_us(clock, 1000) or 300)
    assert sum(sizes) == 2000
    assert max(sizes) <= 300


@pytest.mark.parametrize("rate", [None, 100_000.0])
def test_polls_say_how_much_they_give_and_how_late_its_events_are(rate):
    source, clock = opened(rate, event_time_column="n")
    rows = size_bytes = 0
    while not (poll := source.poll(300)).finished:
        if poll.batch is not None:
            rows += poll.batch.num_rows
            size_bytes += poll.size_bytes
            assert poll.event_time_ms_max == rows - 1
        advance_us(clock, 1000)
    assert rows == 2000
    assert size_bytes == pytest.approx(2000 * 3 * 8, rel=0.01), "three columns of 8 bytes"


def test_limit_on_events_ends_a_paced_source():
    source, clock = opened(1000.0, events_max=701)
    assert sum(batch.num_rows for _, batch in drain(source, clock)) == 701


def test_unpaced_batches_are_bounded_and_complete():
    source, clock = opened(None)
    polls = drain(source, clock, rows_max=300)
    assert [batch.num_rows for _, batch in polls] == [300, 300, 100, 300, 300, 100, 300, 300]
    assert [n for _, batch in polls for n in batch.column("n").to_pylist()] == list(range(2000))


@pytest.mark.parametrize("rate", [0.5, 3.0, 7.7, 999.0, 12_345.6, 3e6])
def test_due_count_is_the_inverse_of_due_time(rate):
    schedule = Schedule(rate, 1_700_000_000_000_000, 1, 3)
    for number in (0, 1, 2, 10, 1_000, 1_000_003):
        due = schedule.due_us(number)
        assert schedule.due_count(due) >= number + 1
        assert schedule.due_count(due - 1) <= number
        assert schedule.due_times_us(number, 1)[0] == due


@pytest.mark.parametrize(
    "spec",
    [{"rate": 0.0}, {"rate": -1.0}, {"events_max": -1}, {"event_time_column": "m"}],
)
def test_senseless_settings_are_refused(spec):
    with pytest.raises(GraphError):
        CountingSource(SourceSpec(schema=SCHEMA, **spec), 1)
