"""What a step has dropped as late stays dropped after a restart, and what it has said stays said."""

from __future__ import annotations

import random

import pytest

import weir
from tests.effort import cases
from weir import testing

SCHEMA = {"id": int, "key": str, "at": int}


def joining(how, parallelism=1):
    flow = weir.Dataflow("joining")
    watermark = weir.bounded_out_of_orderness("0s")
    left, right = (
        flow.source(name, weir.JsonLines("/absent", schema=SCHEMA), event_time="at", watermark=watermark)
        for name in ("left", "right")
    )
    joined = left.key_by("key").join(
        "joined", right.key_by("key"), within=("-10ms", "10ms"), how=how, parallelism=parallelism
    )
    joined.sink("out", weir.Collect())
    return flow


@pytest.mark.parametrize("restarts", [False, True])
def test_a_left_row_that_was_late_is_not_told_without_its_partner(restarts):
    with testing.start(joining("left")) as job:
        for name in ("left", "right"):
            job.push(name, [{"id": 1, "key": "a", "at": 100}])
            job.push(name, [{"id": 2, "key": "a", "at": 1_000}])
            job.advance_watermark(name, 1_000)
        job.checkpoint()
        if restarts:
            job.restart()
        # It is late: its partner has been forgotten.
        job.push("left", [{"id": 3, "key": "a", "at": 100}])
        for name in ("left", "right"):
            job.push(name, [{"id": 4, "key": "b", "at": 3_000}])
        result = job.finish()
        assert sorted(row["id"] for row in result["out"].to_dicts()) == [1, 2, 4]
        assert result.late_rows == {"joined": 1}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_window_fires_whichever_input_was_idle_first(order):
    flow = weir.Dataflow("idle")
    watermark = weir.bounded_out_of_orderness("0s")
    sources = [
        flow.source(name, weir.JsonLines("/absent", schema=SCHEMA), event_time="at", watermark=watermark)
        for name in ("a", "b")
    ]
    counts = sources[0].union("both", sources[1]).key_by("key").window(weir.tumbling("5ms"))
    counts.aggregate("counts", n=weir.count()).sink("out", weir.Collect())
    with testing.start(flow) as job:
        job.push("a", [{"id": 1, "key": "a", "at": 2}])
        job.advance_watermark("a", 10)
        job.advance_watermark("b", 3)
        for name in order:
            job.mark_idle(name)
        assert [row["n"] for row in job.rows("out").to_dicts()] == [1]


@pytest.mark.parametrize("seed", range(cases(4)))
def test_restarts_at_random_places_change_no_answer(seed):
    dice = random.Random(seed)
    batches = []
    for number in range(60):
        at = 40 * number + dice.randrange(-120, 40)
        rows = [{"id": 3 * number + i, "key": "ab"[i % 2], "at": at + i} for i in range(3)]
        batches.append((dice.choice(["left", "right"]), rows))
    answers = []
    for restarts in (False, True):
        with testing.start(joining("full")) as job:
            for name, rows in batches:
                job.push(name, rows)
                job.advance_watermark(name, max(row["at"] for row in rows))
                if restarts and dice.random() < 0.2:
                    job.checkpoint()
                    job.restart()
            found = job.finish()["out"].to_dicts()
        answers.append(sorted(str(sorted(row.items(), key=str)) for row in found))
    assert answers[0] == answers[1]
