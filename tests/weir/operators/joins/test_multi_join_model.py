"""Joins of several streams in one step against Polars: any order, late rows, handovers, restarts, at any time."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from tests import drawn
from tests.effort import cases
from tests.weir.operators.joins.join_jobs import GROUPS, TwoSubtasks
from tests.weir.operators.joins.test_change_joins import table_of
from tests.weir.operators.joins.test_join_model import SEALS
from weir.errors import StateMismatchError

#: Few keys, and times close together: most windows have rows of two streams or of all.
KEYS = drawn.sampled_from([None, 0, 1, 0, 1, 0])
ROWS = drawn.tuples(
    drawn.just("rows"),
    drawn.integers(0, 2),
    drawn.lists(drawn.tuples(KEYS, drawn.integers(-2, 6)), max_size=5, min_size=1),
)
#: Of the streams whose watermark goes on.
ONE_SIDE = drawn.sampled_from([(0,), (1,), (2,)])
#: Rows of a stream, as far ahead of its watermark as they say; or something else.
STEPS = drawn.drawn(
    drawn.lists(
        drawn.one_of(
            *[ROWS] * 3,
            drawn.tuples(drawn.just("watermark"), ONE_SIDE, drawn.integers(0, 5)),
            drawn.tuples(drawn.just("watermark"), drawn.just((0, 1, 2)), drawn.integers(0, 9)),
            drawn.tuples(drawn.just("hand over"), drawn.integers(0, GROUPS - 1)),
            drawn.tuples(drawn.just("copy"), drawn.integers(0, GROUPS - 1), drawn.sampled_from([1, 1 << 20])),
            drawn.tuples(drawn.sampled_from(["capture", "restart"])),
        ),
        max_size=16,
        min_size=4,
    ),
    byte_count=250,
)
QUICK = settings(
    max_examples=cases(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SCHEMAS = [{"k": pl.Int64, f"v{side}": pl.Int64, f"t{side}": pl.Int64} for side in range(3)]


class Played:
    """What has come to a join so far: rows that were in time, as (key, number, time), and watermarks."""

    def __init__(self, job):
        self.job = job
        self.sides = [[], [], []]
        self.watermarks = [0, 0, 0]
        self.late, self._number = 0, 0

    @property
    def watermark(self):
        """Of the step."""
        return min(self.job.input_watermarks)

    def play(self, steps):
        """Do the steps; after each, yields."""
        for step in steps:
            match step:
                case "rows", side, made:
                    self._take(side, made)
                case "watermark", sides, by:
                    for side in sides:
                        self.watermarks[side] += by
                        self.job.watermark(side, self.watermarks[side])
                case "hand over", group:
                    self.job.hand_over(group)
                case "copy", group, bytes_max:
                    self.job.copy(group, bytes_max)
                case ("capture",):
                    self.job.capture()
                case ("restart",):
                    self.job.restart()
            yield

    def _take(self, side, made):
        rows = []
        for key, ahead in made:
            self._number += 1
            time = self.watermarks[side] + ahead
            if self.job.node.spec.how == "inner" and time >= self.watermark:
                # Inner joins keep no row for one that is behind the watermark of its own input.
                time = max(time, self.watermarks[side])
            rows.append((key, self._number, time))
        if rows:
            # Columns that no result here looks at are null.
            columns = {0: lambda row: (row[0], row[1], None, None), 1: lambda row: (row[0], str(row[1]))}
            self.job.take(side, [(*columns.get(side, lambda row: row[:2])(row), row[2]) for row in rows])
        in_time = [row for row in rows if row[2] >= self.watermark] if self.job.has_late else rows
        self.late += len(rows) - len(in_time)
        self.sides[side] += in_time

    def joined(self, how, goes):
        """By Polars, joins one after the other over the key and what ``goes`` makes of a time: rows of all columns."""
        frames = [
            pl.DataFrame(rows, schema=schema, orient="row").with_columns(
                goes(pl.col(f"t{side}")).alias("group")
            )
            for side, (rows, schema) in enumerate(zip(self.sides, SCHEMAS, strict=True))
        ]
        on = ["k", "group"]
        found = frames[0].join(frames[1], on=on, how=how).join(frames[2], on=on, how=how)
        return found.select("k", "v0", "t0", "v1", "t1", "v2", "t2", "group").rows()


def values(row):
    """Numbers of the rows that are in a result."""
    return row[0], row[1], row[3], row[5]


def told(rows):
    """Key and numbers of the rows in each result, and its event time."""
    return Counter((row[0], row[1], None if row[4] is None else int(row[4]), row[5], row[-1]) for row in rows)


@pytest.mark.parametrize("how", ["inner", "left"])
@QUICK
@given(seal_bytes=SEALS, steps=STEPS, size=st.integers(2, 9), offset=st.integers(0, 3))
def test_in_the_same_window(how, seal_bytes, steps, size, offset):
    offset %= size
    job = TwoSubtasks(
        method="join_all", seal_bytes=seal_bytes, how=how, window=weir.tumbling(size, offset=offset)
    )
    job.has_late = True
    played = Played(job)

    def expected(watermark):
        """A combination with nulls leaves when the watermark has passed its window."""
        found = Counter()
        for row in played.joined(how, lambda time: (time - offset) // size):
            last = row[7] * size + offset + size - 1
            if row[0] is None:
                found[(*values(row), row[2])] += 1
            elif None not in row:
                found[(*values(row), max(row[2:7:2]))] += 1
            elif last < watermark:
                found[(*values(row), last)] += 1
        return found

    for _ in played.play(steps):
        assert told(job.rows) == expected(played.watermark)
    assert told(job.finish()) == expected(2**63)
    assert job.late_rows == played.late == sum(rows for _, rows in job.late)
    assert job.kept_entries() == []


@pytest.mark.parametrize("how", ["inner", "left"])
@QUICK
@given(seal_bytes=SEALS, steps=STEPS)
def test_without_bounds(how, seal_bytes, steps):
    job = TwoSubtasks(method="join_all", seal_bytes=seal_bytes, how=how)
    job.has_late = False
    played = Played(job)
    for _ in played.play(steps):
        # Without the event time.
        table = table_of([dict(zip(job.node.schema.names, row[:-1], strict=True)) for row in job.rows])
        now = Counter()
        for row, count in table.items():
            now[row[0], row[1], None if row[4] is None else int(row[4]), row[5]] += count
        assert now == Counter(map(values, played.joined(how, lambda time: 0 * time)))
    job.finish()


def test_a_row_without_partners_waits_for_its_window():
    job = TwoSubtasks(method="join_all", how="left", window=weir.tumbling(10))
    job.take(0, [(1, 0, None, None, 5), (1, 1, None, None, 12)])
    job.take(1, [(1, "a", 11), (1, "b", 13), (1, "next", 21)])
    for side in range(3):
        job.watermark(side, 19)
    # The watermark is in the last millisecond of the second window.
    assert job.rows == [(1, 0, None, None, None, None, 9)]
    job.watermark(0, 20)
    job.watermark(1, 20)
    assert len(job.rows) == 1
    job.watermark(2, 20)
    assert job.rows[1:] == [(1, 1, None, None, "a", None, 19), (1, 1, None, None, "b", None, 19)]
    job.take(2, [(1, 5, 22)])
    # What others have in a window is of no use without the first stream.
    assert len(job.finish()) == 3
    assert job.kept_entries() == []


def test_a_change_has_the_latest_time_of_its_rows():
    job = TwoSubtasks(method="join_all", how="left")
    job.take(0, [(1, 1, None, None, 5)])
    job.take(2, [(1, 2, 3)])
    job.take(1, [(1, "a", 8)])
    row = (1, 1, None, None)
    assert job.finish() == [
        (*row, None, None, "insert", 5),
        (*row, None, None, "update_before", 5),
        (*row, None, 2, "update_after", 5),
        (*row, None, 2, "update_before", 8),
        (*row, "a", 2, "update_after", 8),
    ]


def test_a_checkpoint_that_says_no_kind_is_of_an_inner_join():
    inner, left = (
        TwoSubtasks(method="join_all", how=how, window=weir.tumbling(10)) for how in ("inner", "left")
    )
    inner.take(0, [(1, 1, None, None, 5)])
    inner.restart()
    for snapshot in inner.restored.values():
        # As before there were left joins.
        del snapshot["codec"]["how"]
    inner.open()
    inner.take(1, [(1, "a", 6)])
    inner.take(2, [(1, 2, 7)])
    assert inner.finish() == [(1, 1, None, None, "a", 2, 7)]
    left.restored = inner.restored
    with pytest.raises(
        StateMismatchError, match="how of the join are inner in the checkpoint, the job now has left"
    ):
        left.open()
