"""Changelogs behind filters and key_by, which part the halves of updates: every step that takes changes, at random.

A lone half is an addition or a removal: what each step tells is what plain Python makes of the table.
"""

import random

import polars as pl
import pytest

import weir
from tests.effort import cases
from weir import testing
from weir.rows.changes import folded

COLUMNS = {"id": int, "k": int, "v": int, "at": int, "_change": str}
LEFT = {"k": int, "number": int, "at": int}
KEYS = 3


def drawn(seed):
    """Changes of a table with one row for each ``id`` and ``k``, and what the table is after each time."""
    chance, table, changes, versions = random.Random(seed), {}, [], [{}]
    for at in range(1, 40):
        number = chance.randrange(4)
        taken = {row["k"] for other, row in table.items() if other != number}
        free = [key for key in range(KEYS) if key not in taken]
        before = table.pop(number, None)
        after = None
        if free and (before is None or chance.random() < 0.8):
            after = {"id": number, "k": chance.choice(free), "v": chance.randrange(10)}
            table[number] = after
        if before is not None and after is not None:
            changes += [
                before | {"at": at, "_change": "update_before"},
                after | {"at": at, "_change": "update_after"},
            ]
        elif before is not None or after is not None:
            changes.append((before or after) | {"at": at, "_change": "delete" if before else "insert"})
        versions.append({row["k"]: row["v"] for row in table.values() if row["v"] > 4})
    return changes, versions


def streams():
    flow = weir.Dataflow("job")
    table = flow.source("table", weir.JsonLines("none", schema=COLUMNS, event_time="at"))
    return flow, table.filter("high", pl.col("v") > 4).key_by("k")


def tables(step, changes, seed):
    """What a step tells of changes that come in random batches, as a table; the step is called ``last``."""
    flow, high = streams()
    step(flow, high)
    chance = random.Random(seed)
    with testing.start(flow, {"table": []}, watermarks="by_hand") as job:
        while changes:
            count = chance.choice([1, 2, 7])
            job.push("table", changes[:count])
            changes = changes[count:]
            if chance.random() < 0.2:
                job.checkpoint()
            if chance.random() < 0.1:
                job.restart()
        return job.finish()["last"].to_polars()


STEPS = {
    "aggregate": (
        lambda flow, high: high.aggregate("last", total=weir.sum("v"), low=weir.min("v"), n=weir.count()),
        lambda now: [(key, v, v, 1) for key, v in now.items()],
    ),
    "count": (lambda flow, high: high.count("last", "n"), lambda now: [(key, 1) for key in now]),
    "top": (
        lambda flow, high: high.select("less", "k", "v", "_change").key_by("k").top("last", by="v", rows=2),
        lambda now: list(now.items()),
    ),
    "top of places": (
        lambda flow, high: (
            high.select("less", "k", "v", "_change").key_by("k").top("last", by="v", rows=2, rank="place")
        ),
        lambda now: [(key, v, 1) for key, v in now.items()],
    ),
    "deduplicate": (
        lambda flow, high: (
            high.select("less", "k", "v", "_change").key_by("k").deduplicate("last", keep="last", by="v")
        ),
        lambda now: list(now.items()),
    ),
    "join": (
        lambda flow, high: (
            high.select("less", "k", "v", "_change")
            .key_by("k")
            .join("last", high.select("more", "k", "v", "_change").key_by("k"), how="full", suffix="_too")
        ),
        lambda now: [(key, v, v) for key, v in now.items()],
    ),
    "window": (
        lambda flow, high: high.window(weir.tumbling("1m")).aggregate("last", total=weir.sum("v")),
        lambda now: [(key, 0, 60_000, v) for key, v in now.items()],
    ),
}


@pytest.mark.parametrize("seed", range(cases(4)))
@pytest.mark.parametrize("what", STEPS)
def test_a_step_tells_the_table_of_plain_python(what, seed):
    step, expected = STEPS[what]
    changes, versions = drawn(seed)
    told = tables(step, changes, seed)
    found = folded(told) if "_change" in told.columns else told
    assert sorted(found.rows()) == sorted(expected(versions[-1]))


@pytest.mark.parametrize("seed", range(cases(6)))
def test_an_as_of_join_finds_the_version_that_was_there(seed):
    changes, versions = drawn(seed)
    flow, high = streams()
    left = flow.source("left", weir.JsonLines("none", schema=LEFT, event_time="at"))
    left.key_by("k").join_as_of("last", high, how="left")
    chance = random.Random(seed)
    rows = [{"k": key, "number": at * KEYS + key, "at": at} for at in range(1, 40) for key in range(KEYS)]
    with testing.start(flow, {"table": [], "left": []}) as job:
        now = 0
        while now < 40:
            now = min(40, now + chance.choice([1, 3, 9]))
            come = [change for change in changes if change["at"] <= now]
            changes = changes[len(come) :]
            count = chance.randrange(len(come) + 1)
            for part in (come[:count], come[count:]):
                job.push("table", part)
            job.push("left", [row for row in rows if row["at"] <= now])
            rows = [row for row in rows if row["at"] > now]
            for source in ("table", "left"):
                job.advance_watermark(source, now)
            if chance.random() < 0.3:
                job.checkpoint()
                job.restart()
        found = job.finish()["last"].to_dicts()
    wrong = [
        (row["k"], row["at"], row["v"], versions[row["at"]].get(row["k"]))
        for row in found
        if row["v"] != versions[row["at"]].get(row["k"])
    ]
    assert (len(found), wrong) == (39 * KEYS, [])
