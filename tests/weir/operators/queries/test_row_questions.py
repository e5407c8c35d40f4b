"""What is told of steps that keep whole rows or sums of them: top, the top of windows, deduplicate, changelogs."""

import math

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.operators.queries.asked_states import Reading, table_of
from weir.author.operator import OperatorContext
from weir.operators.queries.answering import answer_one, answer_range, asked_state
from weir.operators.queries.state_format import ABSENT, Cut
from weir.operators.registry import create_operator
from weir.plan.stages import physical_graph
from weir.protocol.queries import QueryError, Question
from weir.rows.records import with_times
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

GROUPS, FIRST_STATE = 4, 3
SCHEMA = {"k": str, "v": int, "f": float, "day": pl.Date}


def rows_of(flow):
    return flow.source("rows", weir.JsonLines("none", schema=SCHEMA))


class Job:
    """One step that has taken some rows; its state is in a store."""

    def __init__(self, make):
        flow = weir.Dataflow("asked", max_parallelism=GROUPS)
        make(rows_of(flow)).sink("out", weir.Blackhole())
        self.graph = flow.build()
        stages = physical_graph(self.graph).stages
        # As they run: without columns that nobody reads.
        self.steps = {node.name: node for stage in stages for node in stage.nodes}
        self.node = self.steps["step"]
        self.backend, self.numbers = MemoryBackend(), {}
        for number, name in enumerate(self.node.states):
            self.numbers[name] = FIRST_STATE + number
        tables = StateTables(self.backend, 1 << 20, GROUPS)
        self.operator = create_operator(self.node.spec)
        context = OperatorContext(
            "asked",
            "step",
            1,
            0,
            1,
            max_parallelism=GROUPS,
            tables=tables.of("step", self.numbers),
            schema=self.node.schema,
        )
        self.operator.open(context)
        self.tables = tables

    def take(self, rows, times=None):
        columns = {name: [row.get(name) for row in rows] for name in rows[0]}
        types = {"v": pa.int64(), "f": pa.float64(), "day": pa.date32()}
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column, types.get(name)) for name, column in columns.items()], names=list(columns)
        )
        list(
            self.operator.process(
                with_times(batch, pa.array(times or [0] * len(rows)), pa.array([0] * len(rows)))
            )
        )
        self.tables.flush()

    def one(self, state, key, **given):
        question = Question("step", state, key, **given)
        asked = asked_state(self.graph, question, self.steps)
        group = asked.group_of(asked.keys.encode(key))
        number = self.numbers.get(state, self.numbers.get("", FIRST_STATE))
        return answer_one(asked, Reading(self.backend), number, group, question)

    def page(self, state, **given):
        question = Question("step", state, **given)
        asked = asked_state(self.graph, question, self.steps)
        number = self.numbers.get(state, self.numbers.get("", FIRST_STATE))
        return answer_range(asked, Reading(self.backend), number, range(GROUPS), question, lambda: None)


def test_top_of_a_changelog_tells_the_first_rows_of_those_that_it_keeps():
    def make(rows):
        changes = rows.with_columns("changes", pl.lit("insert").alias("_change"))
        return changes.key_by("k").top("step", by="f", rows=2)

    job = Job(make)
    given = [("a", 1, 0.5), ("a", 2, 2.5), ("b", 3, -1.0), ("a", 4, 1.5)]
    job.take([{"k": k, "v": v, "f": f, "day": None, "_change": "insert"} for k, v, f in given])
    assert [(each["rank"], each["value"]["v"]) for each in job.one("top", "a")] == [(1, 2), (2, 4)]
    job.take([{"k": "a", "v": 2, "f": 2.5, "day": None, "_change": "delete"}])
    assert [(each["rank"], each["value"]["v"]) for each in job.one("top", "a")] == [(1, 4), (2, 1)]
    (first, second) = job.page("top").rows
    assert [each["value"]["v"] for each in (*first["value"], *second["value"])] == [4, 1, 3]
    job.take([{"k": "b", "v": 3, "f": -1.0, "day": None, "_change": "delete"}])
    assert job.one("top", "b") is ABSENT


def test_deduplicate_of_a_changelog_tells_the_one_row_of_those_that_it_keeps():
    def make(rows):
        changes = rows.with_columns("changes", pl.lit("insert").alias("_change"))
        return changes.key_by("k").deduplicate("step", keep="last", by="v")

    job = Job(make)
    rows = [{"k": "a", "v": 1, "f": f, "day": None, "_change": "insert"} for f in (0.5, 2.5)]
    job.take(rows)
    job.take([{"k": "a", "v": 0, "f": 9.0, "day": None, "_change": "insert"}])
    # Of equals the one that came last, then the one before.
    one = {"k": "a", "v": 1, "f": 2.5, "day": None}
    assert job.one("top", "a") == [{"rank": 1, "value": one}]
    job.take([rows[1] | {"_change": "delete"}])
    assert job.one("top", "a") == [{"rank": 1, "value": one | {"f": 0.5}}]
    assert job.page("top").rows == [{"key": "a", "value": [{"rank": 1, "value": one | {"f": 0.5}}]}]
    assert job.one("top", "b") is ABSENT


def test_top():
    job = Job(lambda rows: rows.key_by("k").top("step", by="f", rows=2, rank="place"))
    job.take(
        [
            {"k": key, "v": v, "f": f, "day": None}
            for key, v, f in (("a", 1, 0.5), ("a", 2, 2.5), ("b", 3, -1.0))
        ]
    )
    job.take([{"k": "a", "v": 4, "f": 1.5, "day": None}])
    best = {"rank": 1, "value": {"k": "a", "v": 2, "f": 2.5, "day": None}}
    second = {"rank": 2, "value": {"k": "a", "v": 4, "f": 1.5, "day": None}}
    other = {"rank": 1, "value": {"k": "b", "v": 3, "f": -1.0, "day": None}}
    assert job.one("top", "a") == [best, second]
    assert job.one("top", "a", limit=1, cuts=True) == Cut([best])
    assert job.one("top", "a", limit=1, cuts=True, reverse=True) == Cut([second])
    assert job.one("top", "c") is ABSENT
    found = job.page("top")
    assert found.rows == [{"key": "a", "value": [best, second]}, {"key": "b", "value": [other]}]
    assert table_of(found).to_pylist() == found.rows
    assert job.page("top", counts=True).count == 2
    with pytest.raises(QueryError, match="it has top") as refused:
        job.one("place", "a")
    assert refused.value.status == 404
    with pytest.raises(QueryError, match="one value of each key"):
        job.one("top", "a", first="1")


def test_top_of_rows_of_which_not_all_columns_are_read():
    job = Job(lambda rows: rows.key_by("k").top("step", by="f", rows=2).select("some", "k", "v", "_change"))
    assert "day" not in job.node.schema.names
    job.take([{"k": "a", "v": v, "f": f} for v, f in ((1, 0.5), (2, 2.5))])
    rows = [{"k": "a", "v": 2, "f": 2.5}, {"k": "a", "v": 1, "f": 0.5}]
    named = [{name: row[name] for name in row if name in job.node.schema.names} for row in rows]
    assert [row["value"] for row in job.one("top", "a")] == named


def test_deduplicate():
    job = Job(lambda rows: rows.key_by("k").deduplicate("step", within="10ms"))
    job.take([{"k": key, "v": 1, "f": 0.0, "day": None} for key in ("a", "a", "b")], [100, 105, 103])
    assert [job.one("seen", key) for key in "abc"] == [100, 103, ABSENT]
    assert job.page("seen").rows == [{"key": "a", "value": 100}, {"key": "b", "value": 103}]


def test_running_aggregates_of_every_function():
    given = {
        "n": (weir.count(), 3),
        "spread": (weir.stddev("v"), math.sqrt(13)),
        "wide": (weir.variance("v"), 13.0),
        "early": (weir.first("v"), 1),
        "late": (weir.last("v"), 8),
        "best": (weir.largest("v", 2), [8, 3]),
        "kinds": (weir.count_distinct("v"), 3),
        "about": (weir.approx_distinct("v"), 3),
    }
    job = Job(
        lambda rows: rows.key_by("k").aggregate("step", **{name: call for name, (call, _) in given.items()})
    )
    job.take([{"k": "a", "v": v, "f": 0.0, "day": None} for v in (3, 1, 8)], [20, 10, 30])
    for name, (_, expected) in given.items():
        assert job.one(name, "a") == pytest.approx(expected), name
        assert job.page(name).rows == [{"key": "a", "value": pytest.approx(expected)}], name
        assert table_of(job.page(name)).num_rows == 1


def test_sums_over_a_changelog():
    def make(rows):
        first = rows.key_by("v").top("first", by="f", rows=1)
        return first.key_by("k").aggregate("step", n=weir.count(), total=weir.sum("f"), most=weir.max("v"))

    job = Job(make)
    changes = [
        ("a", 1, 0.5, "insert"),
        ("a", 2, 1.5, "insert"),
        ("b", 3, 2.0, "insert"),
        ("b", 3, 2.0, "delete"),
    ]
    rows = [{"k": k, "v": v, "f": f, "day": None, "_change": change} for k, v, f, change in changes]
    job.take(rows)
    assert job.one("totals", "a") == {"n": 2, "total": 2.0, "most": 2}
    assert job.one("totals", "b") is ABSENT
    found = job.page("totals")
    assert found.rows == [{"key": "a", "value": {"n": 2, "total": 2.0, "most": 2}}]
    assert table_of(found).to_pylist() == found.rows
    assert job.page("totals", counts=True).count == 1


def test_states_that_are_not_there_say_which_are():
    def joined(rows):
        return rows.key_by("k").join("step", rows.key_by("k"), within=("-1s", "1s"))

    for make, state, says in (
        (joined, "_recent", "it has rows"),
        (
            lambda rows: rows.key_by("k").window(weir.tumbling("1s")).process("step", _rows, {"n": int}),
            "panes",
            "it has rows",
        ),
    ):
        flow = weir.Dataflow("asked", max_parallelism=GROUPS)
        make(rows_of(flow)).sink("out", weir.Blackhole())
        with pytest.raises(QueryError, match=says) as refused:
            asked_state(flow.build(), Question("step", state, "a"))
        assert refused.value.status == 404


def _rows(key, window, rows):
    return [{"n": len(rows)}]


def test_the_top_of_windows_over_all_keys():
    def make(rows):
        counted = rows.key_by("k").window(weir.tumbling("10ms")).aggregate("counted", n=weir.count())
        return counted.window_top("step", by="n", rows=2)

    job = Job(make)
    rows = [("a", 0, 5), ("b", 0, 9), ("c", 0, 7), ("a", 10, 1)]
    job.take(
        [{"k": k, "window_start": start, "window_end": start + 10, "n": n} for k, start, n in rows],
        [start + 9 for _, start, _ in rows],
    )

    def row(k, start, n):
        return {"k": k, "window_start": start, "window_end": start + 10, "n": n}

    first = [{"rank": 1, "value": row("b", 0, 9)}, {"rank": 2, "value": row("c", 0, 7)}]
    assert job.one("rows", "[0, 10]") == first
    assert job.one("rows", "[10, 20]") == [{"rank": 1, "value": row("a", 10, 1)}]
    assert job.one("rows", "[20, 30]") is ABSENT
    found = job.page("rows")
    assert {"key": [0, 10], "value": first} in found.rows
    assert len(found.rows) == table_of(found).num_rows == 2
