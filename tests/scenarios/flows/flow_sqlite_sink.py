"""Lines -> a table in SQLite: in transactions, or by key and at once."""

import contextlib
import functools
import sqlite3
from pathlib import Path

import weir
from experiments.held_source import held
from weir.author.operator import Operator

#: How long a write waits for another process that has locked the database; then it raises.
TIMEOUT_S = 0.05


def execute(path, statement, rows):
    with contextlib.closing(sqlite3.connect(path, TIMEOUT_S)) as connection, connection:
        connection.executemany(statement, rows)


class Transactions(weir.TwoPhaseSink):
    """Rows are inserted with the name of their transaction; the view ``delivered`` has those that are published.

    While the file ``refusals`` holds a number above 0, a commit raises, and the number falls by one.
    """

    def __init__(self, path, refusals):
        self._path, self._refusals = path, Path(refusals)

    def start(self, context, is_restart):
        for statement in (
            "CREATE TABLE IF NOT EXISTS staged (name TEXT, generation INTEGER, id INTEGER)",
            "CREATE TABLE IF NOT EXISTS published (name TEXT PRIMARY KEY)",
            "CREATE VIEW IF NOT EXISTS delivered AS SELECT id FROM staged NATURAL JOIN published",
        ):
            execute(self._path, statement, [()])

    def begin(self, transaction):
        self._name, self._generation, self._rows = str(transaction), transaction.generation, []

    def write(self, batch):
        self._rows += [(self._name, self._generation, number) for number in batch.column("id").to_pylist()]

    def prepare(self):
        execute(self._path, "INSERT INTO staged VALUES (?, ?, ?)", self._rows)
        return {"name": self._name}

    def commit_prepared(self, description):
        left = int(self._refusals.read_text()) if self._refusals.is_file() else 0
        if left > 0:
            self._refusals.write_text(str(left - 1))
            raise RuntimeError("the database takes no commits")
        execute(self._path, "INSERT OR IGNORE INTO published VALUES (?)", [(description["name"],)])

    def abort_unlisted(self, listed, generation):
        statement = "DELETE FROM staged WHERE generation < ? AND name NOT IN (SELECT name FROM published)"
        execute(self._path, statement, [(generation,)])


class ByKey(Operator):
    """Writes at once: a row that comes again replaces itself."""

    def __init__(self, path):
        self._path = path

    def open(self, context):
        execute(self._path, "CREATE TABLE IF NOT EXISTS delivered (id INTEGER PRIMARY KEY)", [()])

    def process(self, batch):
        rows = [(number,) for number in batch.column("id").to_pylist()]
        execute(self._path, "INSERT OR REPLACE INTO delivered VALUES (?)", rows)
        return ()


def build(
    input: str,
    output: str,
    refusals: str = "",
    rate: float | None = None,
    release: str = "",
    by_key: bool = False,
) -> weir.Dataflow:
    flow = weir.Dataflow("sqlite_sink")
    source = weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate)
    factory = (
        functools.partial(ByKey, output) if by_key else functools.partial(Transactions, output, refusals)
    )
    flow.source("lines", held(source, release)).sink("out", weir.UserSink(factory))
    return flow
