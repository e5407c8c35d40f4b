"""Timers over rows of several subtasks, splits and inputs: as if all rows came in the order of time."""

import polars as pl
import pytest

import weir
from benchmarks.law import changelog_steps, order_steps, over_steps
from benchmarks.law.steps import case_of, difference
from tests.effort import cases

ROWS = cases(40, 80)
#: With restarts or savepoints in between; of one split, and of several.
SEEDS = (2, 5, 6, 11)
CASES = [
    (step, SEEDS[(number + more) % len(SEEDS)])
    for number, step in enumerate(order_steps.SURE)
    for more in range(cases(1, len(SEEDS)))
]
# Of few random rows those of another split are beyond a pause.
CASES += [(step, seed) for step in order_steps.SURE if "behind a join" in step.name for seed in (17, 21)]
#: Each third one; all of them in long runs.
CASES += [
    (step, 6 if step.several is None else 11)
    for step in (*over_steps.SURE, *changelog_steps.SURE)[:: cases(3, 1)]
]
HOUR_MS, VISITS = 3_600_000, 120


@pytest.mark.parametrize(("step", "seed"), CASES, ids=[f"{step.name}-{seed}" for step, seed in CASES])
def test_a_step_says_what_plain_python_says(step, seed):
    assert difference(step, case_of(step, seed, ROWS)) is None


class Clicks(weir.Source):
    """A click an hour of each of two users, in as many splits and pieces as given."""

    def __init__(self, splits, piece):
        self._splits, self._piece = splits, piece

    def splits(self):
        return list(range(self._splits))

    def read(self, split, position):
        rows = [
            {"k": hour % 2, "at": hour * HOUR_MS, "v": hour} for hour in range(split, VISITS, self._splits)
        ]
        for at in range(position or 0, len(rows), self._piece):
            yield rows[at : at + self._piece], at + self._piece


def visits(step, *, splits=1, piece=7, parallelism=2, **settings):
    flow = weir.Dataflow("visits")
    source = weir.UserSource(lambda: Clicks(splits, piece), schema={"k": int, "at": int, "v": int})
    bound = weir.bounded_out_of_orderness("0s")
    read = flow.source("clicks", source, event_time="at", watermark=bound, parallelism=parallelism)
    out = step(read, parallelism).key_by("k").process("out", order_steps.Pauses, **settings)
    return len(weir.run(out)["out"])


def counted(rows, parallelism):
    return rows.key_by("v").count("counted", parallelism=parallelism)


def as_they_come(rows, parallelism):
    return rows


@pytest.mark.parametrize("piece", [1, 1_000])
@pytest.mark.parametrize("step", [counted, as_they_come])
@pytest.mark.parametrize(("splits", "parallelism"), [(1, 3), (4, 1), (4, 3)])
def test_clicks_an_hour_apart_are_visits_of_their_own(splits, parallelism, step, piece):
    found = visits(step, splits=splits, parallelism=parallelism, piece=piece, schema=order_steps.COUNTED)
    assert found == VISITS


def test_a_step_may_take_rows_as_they_come():
    assert visits(counted, splits=4, parallelism=3, schema=order_steps.COUNTED, in_time_order=False) < VISITS


class InOrder(weir.KeyedProcess):
    """Tells whether a row is earlier than one that came before it."""

    latest = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        yield {"k": key[0], "at": row["at"], "n": int(row["at"] < self.latest.value)}
        self.latest.value = max(self.latest.value, row["at"])


@pytest.mark.parametrize("in_time_order", [True, None])
def test_rows_of_a_step_without_timers_come_in_order_where_it_asks_for_it(in_time_order):
    flow = weir.Dataflow("order")
    source = weir.UserSource(lambda: Clicks(4, 7), schema={"k": int, "at": int, "v": int})
    read = flow.source(
        "clicks", source, event_time="at", watermark=weir.bounded_out_of_orderness("0s"), parallelism=2
    )
    out = read.key_by("k").process("out", InOrder, order_steps.COUNTED, in_time_order=in_time_order)
    earlier = sum(row["n"] for row in weir.run(out)["out"].to_dicts())
    assert (earlier == 0) == (in_time_order is True)


def test_a_value_that_is_no_answer_is_refused():
    with pytest.raises(weir.errors.GraphError, match="in_time_order is 'yes'; it is True, False or None"):
        visits(counted, schema=order_steps.COUNTED, in_time_order="yes")
