"""Results that late rows change are late for the steps after them, however rows are cut into batches."""

from collections import Counter
from dataclasses import replace

import polars as pl
import pytest

import weir
from benchmarks.law import late_steps
from benchmarks.law.running import told
from benchmarks.law.steps import Step, case_of, difference

WINDOWS = {
    "tumbling": weir.tumbling("2s"),
    "sliding": weir.sliding("4s", "2s"),
    "session": weir.session("2s"),
}
TWO_STREAMS = Step("two streams", None, None, streams=2, several=None)
#: Of which each reader says something else where results of late rows are not late.
SEEDS = (4, 6, 9, 15)


def left(streams):
    return streams[0].with_columns("named", u=pl.col("v")).select("left", "k", "u").key_by("k")


READERS = {
    "windows": lambda sums, streams: sums.window(weir.tumbling("4s")).aggregate(
        "out", m=weir.count(), s=weir.sum("n")
    ),
    "join": lambda sums, streams: left(streams).join("out", sums, within=("-3s", "3s"), how="full"),
    "join as of": lambda sums, streams: left(streams).join_as_of("out", sums),
}


@pytest.mark.parametrize("seed", range(5, 11))
@pytest.mark.parametrize("step", late_steps.STEPS, ids=[step.name for step in late_steps.STEPS])
def test_results_of_late_rows_are_those_of_single_rows(seed, step):
    assert difference(step, case_of(step, seed, 80)) is None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("window", WINDOWS)
def test_one_batch_says_what_single_rows_say(window, reader):
    def build(streams, parallelism):
        opened = streams[1].key_by("k").window(WINDOWS[window], allowed_lateness="3s")
        return READERS[reader](opened.aggregate("told", n=weir.count()).key_by("k"), streams)

    for seed in SEEDS:
        case = replace(case_of(TWO_STREAMS, seed, 80), interruptions=0, parallelism=(1,) * 4)
        rows = [
            Counter(
                tuple(value for name, value in row.items() if name != "_ingest_time_us")
                for row in told(build, replace(case, cut=cut))
            )
            for cut in (1, 1_000_000)
        ]
        assert rows[0] == rows[1], seed
