"""Joins whose result is updated, against Polars' joins of the tables that the rows lead to."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from tests import drawn
from tests.effort import cases
from tests.weir.operators.joins.join_jobs import SEAL_BYTES
from weir import testing
from weir.operators.joins import row_chunks
from weir.rows.changes import folded

LEFT = {"k": weir.Nullable(int), "l": weir.Nullable(str)}
RIGHT = {"key": weir.Nullable(int), "r": int}
CHANGED = {"_change": str}
HOWS = ("inner", "left", "right", "full", "semi", "anti")
KEYS = drawn.one_of(drawn.just(None), drawn.integers(0, 2))
ROWS = {
    0: drawn.tuples(KEYS, drawn.sampled_from([None, "a", "b"])),
    1: drawn.tuples(KEYS, drawn.integers(0, 2)),
}


def batch_of(side):
    """Rows that are added; of a changelog rows that go, as positions among those that are there; updates."""
    change = drawn.one_of(
        drawn.tuples(drawn.just("insert"), ROWS[side]),
        drawn.tuples(drawn.just("delete"), drawn.integers(0, 5)),
        drawn.tuples(drawn.just("update"), drawn.integers(0, 5), ROWS[side]),
    )
    return drawn.tuples(drawn.just(side), drawn.lists(change, max_size=6))


STEPS = drawn.drawn(
    drawn.lists(drawn.one_of(batch_of(0), batch_of(1), drawn.just("savepoint")), max_size=8), byte_count=200
)
QUICK = settings(
    max_examples=cases(6),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def flow_of(how, are_changed):
    flow = weir.Dataflow("changes", max_parallelism=4)
    left, right = (
        flow.source(name, weir.JsonLines("/absent", schema=schema | (CHANGED if is_changed else {})))
        for name, schema, is_changed in zip(("left", "right"), (LEFT, RIGHT), are_changed, strict=True)
    )
    left.key_by("k").join("j", right.key_by("key"), how=how, parallelism=2).sink("out", weir.Collect())
    return flow


def changes_of(batch, table, *, is_changed):
    """The changes of a batch; the table becomes what they lead to."""
    found = []
    for step in batch:
        match step:
            case "insert", row:
                table.append(row)
                found.append((*row, "insert"))
            case "delete", position if is_changed and table:
                found.append((*table.pop(position % len(table)), "delete"))
            case "update", position, row if is_changed and table:
                found.append((*table.pop(position % len(table)), "update_before"))
                table.append(row)
                found.append((*row, "update_after"))
    return found


def joined(left, right, how):
    """By Polars: of changelog joins there is no time."""
    left = pl.DataFrame(left, schema={"k": pl.Int64, "l": pl.String}, orient="row")
    right = pl.DataFrame(right, schema={"key": pl.Int64, "r": pl.Int64}, orient="row")
    options = {} if how in ("semi", "anti") else {"coalesce": True}
    if how == "right":
        found = right.join(left, left_on="key", right_on="k", how="left").rename({"key": "k"})
        return Counter(found.select("k", "l", "r").rows())
    return Counter(left.join(right, left_on="k", right_on="key", how=how, **options).rows())


@pytest.mark.parametrize("how", HOWS)
@QUICK
@given(
    steps=STEPS,
    are_changed=st.tuples(st.booleans(), st.booleans()),
    seal_bytes=st.sampled_from([SEAL_BYTES, 60, 1]),
)
def test_the_changelog_leads_to_the_join_of_both_tables(how, steps, are_changed, seal_bytes):
    row_chunks.SEAL_BYTES = seal_bytes
    tables, told, savepoint = ([], []), [], None
    job = testing.start(flow_of(how, are_changed))
    try:
        for step in steps:
            if step == "savepoint":
                savepoint = job.savepoint()
                told += job.rows("j").to_dicts()
                job.stop()
                job = testing.start(flow_of(how, are_changed), from_savepoint=savepoint)
                continue
            side, batch = step
            names = [*(LEFT, RIGHT)[side], "_change"]
            rows = [
                dict(zip(names, row, strict=True))
                for row in changes_of(batch, tables[side], is_changed=are_changed[side])
            ]
            if not are_changed[side]:
                for row in rows:
                    del row["_change"]
            job.push(("left", "right")[side], rows)
            now = told + job.rows("j").to_dicts()
            assert table_of(now) == joined(*tables, how)
        job.finish()
    finally:
        job.stop()


def table_of(rows):
    """What rows of a changelog, or plain ones, lead to."""
    if not rows or "_change" not in rows[0]:
        return Counter(tuple(row.values()) for row in rows)
    # Of updates both halves are there, one after the other.
    for index, row in enumerate(rows):
        if row["_change"] == "update_before":
            assert rows[index + 1]["_change"] == "update_after"
    return Counter(folded(pl.DataFrame(rows, infer_schema_length=None)).rows())


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("before", "stays", "after"), [(None, 0, 1), (None, 0, 2), (None, 1, 2), (0, 1, 2)])
def test_the_half_of_an_update_whose_other_half_has_another_key_follows_a_whole_update(
    how, before, stays, after
):
    # What it tells is not half of an update: the other half went elsewhere. Two of the keys are of one subtask.
    tables = [[(stays, "a"), (before, "b")], [(after, 5), (before, 6)]]
    with testing.start(flow_of(how, (True, True))) as job:
        for side, name, names in ((0, "left", LEFT), (1, "right", RIGHT)):
            rows = [dict(zip(names, row, strict=True)) | {"_change": "insert"} for row in tables[side]]
            job.push(name, rows)
        updates = [((stays, "a"), (stays, "c")), ((before, "b"), (after, "b"))]
        tables[0] = [after for _, after in updates]
        job.push(
            "left",
            [
                {"k": k, "l": text, "_change": change}
                for update in updates
                for (k, text), change in zip(update, ("update_before", "update_after"), strict=True)
            ],
        )
        told = job.finish()["j"].to_dicts()
    assert table_of(told) == joined(*tables, how)


def test_a_row_that_is_taken_away_before_it_comes_waits_for_it():
    with testing.start(flow_of("full", (True, False))) as job:
        job.push("left", [{"k": 1, "l": "a", "_change": "delete"}])
        job.push("right", [{"key": 1, "r": 1}])
        job.push("left", [{"k": 1, "l": "b", "_change": "insert"}, {"k": 1, "l": "a", "_change": "insert"}])
        rows = job.finish()["j"].to_polars()
    assert folded(rows).rows() == [(1, "b", 1)]
    assert rows["_change"].to_list() == ["insert", "update_before", "update_after"]


def test_a_value_of_change_is_one_of_four():
    rows = {"left": [{"k": 1, "l": "a", "_change": "added"}], "right": []}
    with pytest.raises(weir.WeirError, match="_change is 'added'; it must be one of insert, update_before"):
        testing.run(flow_of("left", (True, False)), rows)
