"""Joins say the same over several splits and inputs, with restarts, savepoints and other parallelism, as plain Python.

Which rows are late is a matter of their own split: whichever input is ahead, the same rows count.
"""

import random

import pytest

from benchmarks.law import join_steps, table_join_steps
from benchmarks.law.cases import Case
from benchmarks.law.steps import case_of, difference
from weir.operators.joins import row_chunks

SURE = {step.name: step for step in (*join_steps.SURE, *table_join_steps.SURE)}
#: Each kind of join, each kind of bounds; the others in ``python -m benchmarks time_law``.
NAMES = (
    "inner join within",
    "left join between",
    "right join between of the right",
    "full join window",
    "anti join ttl",
    "semi join later",
    "late_right of full join",
    "left join as of rows",
    "inner join as of changes",
    "join of three within",
    "left join of three window",
    "left join of changed tables",
    "anti join of changed tables",
    "left join of three tables",
    "full join within, then windows",
    "full join of rows of functions",
    "full join of rows of requests",
    "join of windows",
    "full join within, with timers",
    "lookup",
)


@pytest.mark.parametrize(("seed", "name"), list(enumerate(NAMES, 4)))
def test_a_join_says_what_plain_python_says(seed, name):
    step = SURE[name]
    assert difference(step, case_of(step, seed, 60)) is None


def test_an_input_of_which_one_reader_has_read_nothing_begins_anew_for_other_subtasks():
    step = SURE["left join of three window"]
    assert difference(step, case_of(step, 9, 60)) is None


@pytest.mark.parametrize("seal_bytes", [row_chunks.SEAL_BYTES, 150, 20])
@pytest.mark.parametrize("seed", [10, 21])
def test_a_late_version_counts_from_the_watermark_of_its_split_on(seal_bytes, seed, monkeypatch):
    monkeypatch.setattr(row_chunks, "SEAL_BYTES", seal_bytes)
    step = SURE["left join as of rows"]
    case = case_of(step, seed, 100)
    assert any(row.late for row in case.seen()[1])
    assert difference(step, case) is None


@pytest.mark.parametrize("name", ["rows of functions", "rows of requests"])
def test_of_rows_of_one_time_the_late_ones_stay_late_after_functions(name):
    rng = random.Random(1)
    streams = []
    for _ in range(2):
        times = (
            10**9 + number * 100 - rng.choice([0, 0, 0, 1_000, 2_000, 3_000, 4_000]) for number in range(60)
        )
        rows = [
            {"k": rng.choice([0, 1]), "at": at // 1_000 * 1_000, "v": number, "to": at}
            for number, at in enumerate(times)
        ]
        streams.append([rows])
    case = Case(2, streams, cut=30, readers=1, parallelism=(2,), interruptions=0)
    assert difference(SURE[f"full join of {name}"], case) is None
