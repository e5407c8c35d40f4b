"""A user's two-phase sink: a table in SQLite, whose transactions are rows that are not published yet."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import ClassVar

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.author.operator import Operator, OperatorContext
from weir.errors import GraphError
from weir.operators.delegate import UserOperator
from weir.operators.registry import create_operator
from weir.rows.records import with_system_columns
from weir.specs import UserSinkSpec


class SqliteSink(weir.TwoPhaseSink):
    """Rows are inserted with the name of their transaction; readers use the view ``ids`` of published ones."""

    def __init__(self, path):
        self._path = path

    def start(self, context, is_restart):
        self._execute("CREATE TABLE IF NOT EXISTS rows (name TEXT, generation INTEGER, id INTEGER)")
        self._execute("CREATE TABLE IF NOT EXISTS published (name TEXT PRIMARY KEY)")
        self._execute("CREATE VIEW IF NOT EXISTS ids AS SELECT id FROM rows NATURAL JOIN published")

    def begin(self, transaction):
        self._name, self._generation, self._rows = str(transaction), transaction.generation, []

    def write(self, batch):
        self._rows += [(self._name, self._generation, number) for number in batch.column("id").to_pylist()]

    def prepare(self):
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", self._rows)
        return {"name": self._name}

    def commit_prepared(self, description):
        self._execute("INSERT OR IGNORE INTO published VALUES (?)", description["name"])

    def abort_unlisted(self, listed, generation):
        self._execute(
            "DELETE FROM rows WHERE generation < ? AND name NOT IN (SELECT name FROM published)", generation
        )

    def _execute(self, statement, *values):
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(statement, values)

    def found(self, table="ids"):
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            return [row[0] for row in connection.execute(f"SELECT id FROM {table} ORDER BY id")]


def batch(*ids):
    return with_system_columns(pa.record_batch({"id": pa.array(ids)}), 1, 2)


def opened(path, generation, restored):
    sink = create_operator(UserSinkSpec(lambda: SqliteSink(path)))
    sink.open(OperatorContext("job", "out", 1, 0, 1, generation=generation, restored=restored))
    return sink


def test_a_users_sink_delivers_once_over_a_crash(tmp_path):
    sink = opened(tmp_path / "db", 1, {})
    sink.process(batch(1, 2))
    sink.snapshot(1)
    assert sink.found() == []
    sink.commit(1)
    sink.process(batch(3))
    manifest = json.loads(json.dumps(sink.snapshot(2)))
    sink.process(batch(4))
    sink.snapshot(3)
    assert sink.found() == [1, 2]
    assert sink.found("rows") == [1, 2, 3, 4]
    successor = opened(tmp_path / "db", 2, {0: manifest})
    assert successor.found() == successor.found("rows") == [1, 2, 3]
    successor.process(batch(4, 5))
    successor.snapshot(0)
    successor.commit(0)
    assert successor.found() == [1, 2, 3, 4, 5]


def test_a_users_sink_ends_a_dataflow():
    flow = weir.Dataflow("job")
    lines = flow.source("lines", weir.JsonLines("in", schema={"id": int}))
    lines.filter("even", pl.col("id") % 2 == 0).sink("out", weir.UserSink(lambda: SqliteSink("db")))
    node = flow.build().nodes[-1]
    assert node.is_sink
    assert node.spec.describe()["kind"] == "user_sink"


def test_a_factory_that_makes_something_else_is_refused():
    with pytest.raises(GraphError, match="gave int, not a TwoPhaseSink"):
        create_operator(UserSinkSpec(lambda: 5))


class Remembering(Operator):
    """Keeps what it is given; no two-phase sink."""

    batches = None

    def open(self, context):
        self.batches = []

    def process(self, batch):
        self.batches.append(batch)
        return ()


class RememberingSink(SqliteSink):
    def write(self, batch):
        self.batches = [*getattr(self, "batches", ()), batch]
        super().write(batch)


def test_users_sinks_do_not_see_the_key_hash(tmp_path):
    hashed = batch(1, 2).append_column("_key_hash", pa.array([3, 4], pa.uint64()))
    made = []
    for factory in (Remembering, lambda: RememberingSink(tmp_path / "db")):
        sink = create_operator(UserSinkSpec(lambda factory=factory: made.append(factory()) or made[-1]))
        sink.open(OperatorContext("job", "out", 1, 0, 1))
        sink.process(hashed)
        assert [item.schema.names for item in made[-1].batches] == [
            ["id", "_event_time_ms", "_ingest_time_us"]
        ]
        assert made[-1].batches[0].column("id").to_pylist() == [1, 2]


def test_every_call_reaches_a_users_sink():
    """A method that the contract gets later must be handed on too, unless only aggregates have it."""
    of_aggregates = {
        "copy_groups",
        "good_copies",
        "changes_since_copy",
        "warm_up",
        "keep_groups",
        "clear_groups",
    }
    names = {name for name in vars(Operator) if not name.startswith("_")} - of_aggregates
    handed_on = {name for cls in UserOperator.__mro__ if cls not in Operator.__mro__ for name in vars(cls)}
    assert names <= handed_on


def test_a_sink_may_fill_the_same_description_again(tmp_path):
    class Reusing(SqliteSink):
        """Has one description for all."""

        told: ClassVar[dict[str, str]] = {}

        def prepare(self):
            self.told.update(super().prepare())
            return self.told

    sink = create_operator(UserSinkSpec(lambda: Reusing(tmp_path / "db")))
    sink.open(OperatorContext("job", "out", 1, 0, 1, generation=1, restored={}))
    for number in (1, 2):
        sink.process(batch(number))
        sink.snapshot(number)
    sink.commit(2)
    assert sink.found() == [1, 2]
