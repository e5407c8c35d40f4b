"""Joins of several streams without bounds whose result is updated, against Polars' joins of the tables."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from tests import drawn
from tests.effort import cases
from tests.weir.operators.joins.join_jobs import SEAL_BYTES
from tests.weir.operators.joins.test_change_joins import changes_of, table_of
from weir import testing
from weir.operators.joins import row_chunks
from weir.plan.stages import physical_graph

NAMES = ("one", "two", "three")
SCHEMAS = (
    {"k": weir.Nullable(int), "x": weir.Nullable(str)},
    {"key": weir.Nullable(int), "y": int},
    {"id": weir.Nullable(int), "z": weir.Nullable(str)},
)
FRAMES = ({"k": pl.Int64, "x": pl.String}, {"k": pl.Int64, "y": pl.Int64}, {"k": pl.Int64, "z": pl.String})
KEYS = drawn.sampled_from([None, 0, 1, 0, 1])
ROWS = (
    drawn.tuples(KEYS, drawn.sampled_from([None, "a", "b"])),
    drawn.tuples(KEYS, drawn.integers(0, 2)),
    # Rows of the first stream and of this one may have the same bytes.
    drawn.tuples(KEYS, drawn.sampled_from([None, "a", "b"])),
)


def batch_of(side):
    """Rows that are added; of a changelog rows that go, as positions among those that are there; updates."""
    change = drawn.one_of(
        drawn.tuples(drawn.just("insert"), ROWS[side]),
        drawn.tuples(drawn.just("delete"), drawn.integers(0, 5)),
        drawn.tuples(drawn.just("update"), drawn.integers(0, 5), ROWS[side]),
    )
    return drawn.tuples(drawn.just(side), drawn.lists(change, max_size=6, min_size=1))


STEPS = drawn.drawn(
    drawn.lists(drawn.one_of(*map(batch_of, range(3)), drawn.just("savepoint")), max_size=10), byte_count=200
)
QUICK = settings(
    max_examples=cases(6),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def flow_of(how, are_changed):
    flow = weir.Dataflow("changes", max_parallelism=4)
    streams = [
        flow.source(
            name, weir.JsonLines("/absent", schema=schema | ({"_change": str} if is_changed else {}))
        ).key_by(next(iter(schema)))
        for name, schema, is_changed in zip(NAMES, SCHEMAS, are_changed, strict=True)
    ]
    joined = streams[0].join_all("j", *streams[1:], how=how, parallelism=2)
    joined.sink("out", weir.Collect())
    return flow, joined


def joined(tables, how):
    first, second, third = (
        pl.DataFrame(table, schema=schema, orient="row") for table, schema in zip(tables, FRAMES, strict=True)
    )
    return Counter(first.join(second, on="k", how=how).join(third, on="k", how=how).rows())


def rows_of(side, batch, table, *, is_changed):
    """A batch as rows of the source; the table becomes what they lead to."""
    names = [*SCHEMAS[side], "_change"]
    changes = changes_of(batch, table, is_changed=is_changed)
    # A source that is no changelog has no column with the change.
    return [dict(zip(names, change[: None if is_changed else -1], strict=is_changed)) for change in changes]


@pytest.mark.parametrize("how", ["inner", "left"])
@QUICK
@given(
    steps=STEPS,
    are_changed=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    seal_bytes=st.sampled_from([SEAL_BYTES, 60, 1]),
)
def test_the_changelog_leads_to_the_joins_of_the_tables_one_after_the_other(
    how, steps, are_changed, seal_bytes
):
    row_chunks.SEAL_BYTES = seal_bytes
    tables, told = ([], [], []), []
    job = testing.start(flow_of(how, are_changed)[0])
    try:
        for step in steps:
            if step == "savepoint":
                savepoint = job.savepoint()
                told += job.rows("j").to_dicts()
                job.stop()
                job = testing.start(flow_of(how, are_changed)[0], from_savepoint=savepoint)
                continue
            side, batch = step
            job.push(NAMES[side], rows_of(side, batch, tables[side], is_changed=are_changed[side]))
            assert table_of(told + job.rows("j").to_dicts()) == joined(tables, how)
        job.finish()
    finally:
        job.stop()


def test_a_row_without_partners_is_told_at_once_and_updated_as_they_come_and_go():
    flow, stream = flow_of("left", (False, True, False))
    assert stream.schema.names == ["k", "x", "y", "z", "_change"]
    assert [field.nullable for field in stream.schema] == [True, True, True, True, False]
    with testing.start(flow) as job:
        job.push("one", [{"k": 1, "x": "a"}, {"k": None, "x": "n"}])
        job.push("three", [{"id": 1, "z": "p"}, {"id": None, "z": "q"}])
        job.push("two", [{"key": 1, "y": 2, "_change": "insert"}])
        job.push(
            "two",
            [{"key": 1, "y": 2, "_change": "update_before"}, {"key": 1, "y": 3, "_change": "update_after"}],
        )
        job.push("two", [{"key": 1, "y": 3, "_change": "delete"}])
        told = [tuple(row.values()) for row in job.finish()["j"].to_dicts()]
    assert sorted(told[:2], key=str) == [(1, "a", None, None, "insert"), (None, "n", None, None, "insert")]
    assert told[2:] == [
        (1, "a", None, None, "update_before"),
        (1, "a", None, "p", "update_after"),
        (1, "a", None, "p", "update_before"),
        (1, "a", 2, "p", "update_after"),
        (1, "a", 2, "p", "update_before"),
        (1, "a", 3, "p", "update_after"),
        (1, "a", 3, "p", "update_before"),
        (1, "a", None, "p", "update_after"),
    ]


def test_a_row_that_is_taken_away_before_it_comes_waits_for_it():
    with testing.start(flow_of("left", (False, False, True))[0]) as job:
        job.push("three", [{"id": 1, "z": "p", "_change": "delete"}])
        job.push("one", [{"k": 1, "x": "a"}])
        job.push("three", [{"id": 1, "z": "p", "_change": "insert"}])
        assert [tuple(row.values()) for row in job.finish()["j"].to_dicts()] == [
            (1, "a", None, None, "insert")
        ]


def test_a_row_is_taken_away_from_its_own_stream_only():
    with testing.start(flow_of("left", (True, False, True))[0]) as job:
        job.push("three", [{"id": 1, "z": "a", "_change": "insert"}])
        job.push("one", [{"k": 1, "x": text, "_change": "insert"} for text in "ab"])
        job.push("one", [{"k": 1, "x": "a", "_change": "delete"}])
        job.push("one", [{"k": 1, "x": "c", "_change": "insert"}])
        assert table_of(job.finish()["j"].to_dicts()) == Counter([(1, "b", None, "a"), (1, "c", None, "a")])


@pytest.mark.parametrize(
    ("arguments", "change"),
    [({"how": "left"}, ("_change",)), ({"how": "left", "window": weir.tumbling("5s")}, ())],
)
def test_columns_that_nobody_reads_are_neither_sent_nor_kept(arguments, change):
    flow = weir.Dataflow("few")
    streams = [
        flow.source(name, weir.JsonLines("/absent", schema=schema | {"more": str})).key_by(next(iter(schema)))
        for name, schema in zip(NAMES, SCHEMAS, strict=True)
    ]
    joined = streams[0].join_all("j", *streams[1:], **arguments)
    assert joined.schema.names == ["k", "x", "more", "y", "more_2", "z", "more_3", *change]
    joined.select("some", "k", "z", *change).sink("out", weir.Collect())
    stage = next(stage for stage in physical_graph(flow.build()).stages if stage.nodes[0].name == "j")
    assert [edge.columns for edge in stage.inputs] == [("k",), ("key",), ("id", "z")]
    assert stage.nodes[0].schema.names == ["k", "z", *change]
    # How often a row is there depends on streams of which no column is read.
    rows = {
        "one": [{"k": 1, "x": "a", "more": "m"}],
        "two": [{"key": 1, "y": y, "more": "m"} for y in (1, 2)],
        "three": [],
    }
    some = testing.run(flow, rows)["some"]
    assert table_of(some.to_dicts()) == Counter({(1, None): 2})
