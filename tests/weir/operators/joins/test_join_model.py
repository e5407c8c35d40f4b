"""Joins against a nested loop over all rows: every kind, any order, with handovers, restarts and checkpoints."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from tests import drawn
from tests.effort import cases
from tests.weir.operators.joins.join_jobs import GROUPS, TwoSubtasks, nested_loop

FIRST = -(2**63)
HOWS = ("inner", "left", "right", "full", "semi", "anti")
KEYS = drawn.one_of(drawn.just(None), drawn.integers(0, 3))
AHEAD = drawn.integers(0, 12)
SIDE_ROWS = drawn.lists(
    drawn.tuples(KEYS, AHEAD, drawn.one_of(drawn.just(None), drawn.integers(-3, 6)), drawn.integers(-2, 9)),
    max_size=8,
)
#: Rows of a side, as far ahead of its watermark as they say; or something else.
STEPS = drawn.drawn(
    drawn.lists(
        drawn.one_of(
            drawn.tuples(drawn.just("rows"), drawn.integers(0, 1), SIDE_ROWS),
            drawn.tuples(drawn.just("watermark"), drawn.integers(0, 1), drawn.integers(0, 9)),
            drawn.tuples(drawn.just("hand over"), drawn.integers(0, GROUPS - 1)),
            drawn.tuples(drawn.just("copy"), drawn.integers(0, GROUPS - 1), drawn.sampled_from([1, 1 << 20])),
            drawn.tuples(drawn.sampled_from(["capture", "restart"])),
        ),
        max_size=14,
    ),
    byte_count=400,
)


#: Of inner joins within bounds all rows are in memory, some, or none.
CACHES = st.sampled_from([1 << 16, 1 << 14, 1 << 13, 1])
#: Rows of a key go to chunks never, after some, after each.
SEALS = st.sampled_from([1 << 20, 150, 20])
QUICK = settings(
    max_examples=cases(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def play(job, steps):
    """Do the steps; returns all rows of both sides."""
    sides, watermarks = ([], []), [0, 0]
    for step in steps:
        match step:
            case "rows", side, made:
                rows = []
                for key, ahead, lower, upper in made:
                    time = watermarks[side] + ahead
                    number = len(sides[0]) + len(rows)
                    if side == 0:
                        rows.append(
                            (key, number, None if lower is None else time + lower, time + upper, time)
                        )
                    else:
                        rows.append((key, None if ahead == 3 else f"r{len(sides[1]) + len(rows)}", time))
                if rows:
                    job.take(side, rows)
                sides[side].extend(rows)
            case "watermark", side, by:
                watermarks[side] += by
                job.watermark(side, watermarks[side])
            case "hand over", group:
                job.hand_over(group)
            case "copy", group, bytes_max:
                job.copy(group, bytes_max)
            case ("capture",):
                job.capture()
            case ("restart",):
                job.restart()
    return sides


def told(job):
    rows = job.finish()
    return Counter(row[:-1] for row in rows) if job.node.spec.how == "semi" else Counter(rows)


@pytest.mark.parametrize("how", HOWS)
@QUICK
@given(
    seal_bytes=SEALS, cache_bytes=CACHES, steps=STEPS, bounds=st.tuples(st.integers(-8, 8), st.integers(0, 8))
)
def test_within_an_interval(how, seal_bytes, cache_bytes, steps, bounds):
    lower, upper = bounds[0], bounds[0] + bounds[1]
    job = TwoSubtasks(seal_bytes=seal_bytes, cache_bytes=cache_bytes, how=how, within=(lower, upper))
    left, right = play(job, steps)
    expected = nested_loop(
        left,
        right,
        how,
        lambda a, b: a[-1] + lower <= b[-1] <= a[-1] + upper,
        lambda side, row: (
            row[-1] if row[0] is None else max(row[-1], row[-1] + upper if side == 0 else row[-1] - lower)
        ),
    )
    assert told(job) == expected
    assert job.kept_entries() == []


def is_between(a, b):
    return None not in a[2:4] and max(a[2], a[-1]) <= b[-1] <= a[3]


def end_of(side, row):
    if side == 1 or row[0] is None:
        return row[-1]
    return row[-1] if row[2] is None else max(row[-1], row[3])


@pytest.mark.parametrize("how", HOWS)
@QUICK
@given(seal_bytes=SEALS, cache_bytes=CACHES, steps=STEPS)
def test_between_columns(how, seal_bytes, cache_bytes, steps):
    job = TwoSubtasks(seal_bytes=seal_bytes, cache_bytes=cache_bytes, how=how, between=("lo", "hi"))
    left, right = play(job, steps)
    assert told(job) == nested_loop(left, right, how, is_between, end_of)
    assert job.kept_entries() == []


@pytest.mark.parametrize("how", HOWS)
@QUICK
@given(seal_bytes=SEALS, cache_bytes=CACHES, steps=STEPS, size=st.integers(4, 9), offset=st.integers(0, 3))
def test_in_the_same_window(how, seal_bytes, cache_bytes, steps, size, offset):
    job = TwoSubtasks(
        seal_bytes=seal_bytes, cache_bytes=cache_bytes, how=how, window=weir.tumbling(size, offset=offset)
    )
    left, right = play(job, steps)

    def number(row):
        return (row[-1] - offset) // size

    def end(side, row):
        return row[-1] if row[0] is None else (number(row) + 1) * size + offset - 1

    assert told(job) == nested_loop(left, right, how, lambda a, b: number(a) == number(b), end)
    assert job.kept_entries() == []


@QUICK
@given(
    seal_bytes=SEALS,
    cache_bytes=CACHES,
    steps=STEPS,
    slide=st.integers(1, 4),
    slides=st.integers(1, 4),
    offset=st.integers(0, 3),
)
def test_in_the_same_sliding_windows(seal_bytes, cache_bytes, steps, slide, slides, offset):
    size, offset = slide * slides, offset % slide
    job = TwoSubtasks(
        seal_bytes=seal_bytes, cache_bytes=cache_bytes, window=weir.sliding(size, slide, offset=offset)
    )
    left, right = play(job, steps)

    def windows(row):
        return {
            start
            for start in range(-30, 200)
            if (start - offset) % slide == 0 and start <= row[-1] < start + size
        }

    expected = Counter(
        (*a[:4], b[1], start, start + size, max(a[-1], b[-1]))
        for a in left
        for b in right
        if a[0] is not None and a[0] == b[0]
        for start in windows(a) & windows(b)
    )
    assert Counter(job.finish()) == expected
    assert job.kept_entries() == []


@pytest.mark.parametrize("how", ["inner", "semi"])
@QUICK
@given(seal_bytes=SEALS, steps=STEPS)
def test_without_bounds(how, seal_bytes, steps):
    job = TwoSubtasks(seal_bytes=seal_bytes, how=how)
    left, right = play(job, steps)
    assert told(job) == nested_loop(left, right, how, lambda a, b: True, None)


def as_of(steps, how):
    """What is expected of a join as of a time: rows are complete in the order of the watermarks."""
    found = Counter()
    lefts, rights = steps
    for row in lefts:
        versions = [
            other for other in rights if other[0] == row[0] and other[-1] <= row[-1] and row[0] is not None
        ]
        # Of equal times the one that came last.
        latest = max(versions, key=lambda other: other[-1], default=None) if versions else None
        for other in versions:
            if other[-1] == latest[-1]:
                latest = other
        if latest is not None or how == "left":
            found[(*row[:4], None if latest is None else latest[1], row[-1])] += 1
    return found


@pytest.mark.parametrize("how", ["left", "inner"])
@QUICK
@given(seal_bytes=SEALS, steps=STEPS)
def test_as_of_a_time(how, seal_bytes, steps):
    job = TwoSubtasks(seal_bytes=seal_bytes, method="join_as_of", how=how)
    sides = play(job, steps)
    assert Counter(job.finish()) == as_of(sides, how)


def test_of_versions_only_the_latest_stays():
    job = TwoSubtasks(method="join_as_of", how="left")
    job.take(1, [(1, f"v{time}", time) for time in range(20)])
    job.take(0, [(1, 1, 0, 0, 7)])
    for side in range(2):
        job.watermark(side, 12)
    job.take(0, [(1, 2, 0, 0, 13)])
    job.take(1, [(1, "late", 11)])
    assert job.finish() == [(1, 1, 0, 0, "v7", 7), (1, 2, 0, 0, "v13", 13)]
    assert job.late_rows == 0
    ((_, entry),) = [item for item in job.store.scan() if item[0] in job.kept_entries()]
    assert b"v19" in entry
    assert b"v18" not in entry


def test_states_of_before_there_were_late_versions_are_read():
    job = TwoSubtasks(method="join_as_of", how="left")
    job.take(1, [(1, "v5", 5)])
    job.take(0, [(1, 1, 0, 0, 7)])
    job.restart()
    for operator, written in zip(job.operators, job.restored.values(), strict=True):
        operator.close()
        assert written["codec"]["values"] == 2
        written["codec"]["values"] = 1
    job.open()
    assert job.finish() == [(1, 1, 0, 0, "v5", 7)]


def test_late_rows_are_dropped_and_counted():
    job = TwoSubtasks(how="left", within=("-10ms", "0ms"))
    job.take(0, [(1, 1, 0, 0, 20)])
    job.watermark(0, 20)
    job.watermark(1, 15)
    job.take(1, [(1, "late", 14), (1, "in time", 15)])
    job.restart()
    assert job.finish() == [(1, 1, 0, 0, "in time", 20)]
    assert (job.late_rows, job.late) == (1, [("late_right", 1)])


def test_rows_that_match_only_what_is_complete_are_not_kept():
    job = TwoSubtasks(between=("lo", "hi"))
    job.take(0, [(1, 1, 10, 50, 10)])
    job.watermark(0, 100)
    job.take(1, [(1, "a", 20), (2, "b", 30)])
    assert job.rows == [(1, 1, 10, 50, "a", 20)]
    for tables in job.tables:
        tables.flush()
    # Only the entry of key 1, and its row of the left side.
    (key,) = job.kept_entries()
    assert b"a" not in dict(job.store.scan())[key][13:]
