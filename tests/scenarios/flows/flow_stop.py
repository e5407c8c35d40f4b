"""Running counts into two sinks that deliver with checkpoints: JSON lines, and a user's own table in SQLite."""

import contextlib
import functools
import sqlite3

import weir
from experiments.held_source import held


class Table(weir.TwoPhaseSink):
    """Rows carry the name of their transaction; the view ``delivered`` has those of committed ones."""

    def __init__(self, path):
        self._path = path

    def start(self, context, is_restart):
        self._execute("CREATE TABLE IF NOT EXISTS rows (name TEXT, id INTEGER, server TEXT, n INTEGER)")
        self._execute("CREATE TABLE IF NOT EXISTS committed (name TEXT PRIMARY KEY)")
        self._execute(
            "CREATE VIEW IF NOT EXISTS delivered AS SELECT id, server, n FROM rows NATURAL JOIN committed"
        )

    def begin(self, transaction):
        self._name, self._rows = str(transaction), []

    def write(self, batch):
        columns = (batch.column(name).to_pylist() for name in ("id", "server", "n"))
        self._rows += [(self._name, *row) for row in zip(*columns, strict=True)]

    def prepare(self):
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", self._rows)
        return {"name": self._name}

    def commit_prepared(self, description):
        self._execute("INSERT OR IGNORE INTO committed VALUES (?)", description["name"])

    def abort_unlisted(self, listed, generation):
        self._execute("DELETE FROM rows WHERE name NOT IN (SELECT name FROM committed)")

    def _execute(self, statement, *values):
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(statement, values)


def build(input: str, output: str, table: str, release: str, rate: float = 2_000) -> weir.Dataflow:
    flow = weir.Dataflow("stop")
    source = held(weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate), release)
    counts = flow.source("events", source).key_by("server").count("counted", "n", parallelism=2)
    counts.rebalance().sink("lines", weir.JsonLinesSink(output), parallelism=1)
    counts.rebalance().sink("table", weir.UserSink(functools.partial(Table, table)), parallelism=1)
    return flow
