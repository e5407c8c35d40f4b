"""Sinks of one's own: a SQLite table that is written by key, and one that is written in transactions.

    weir.UserSink(partial(UpsertSink, "shop.db", "totals", key=("customer",)))
    weir.UserSink(partial(TransactionSink, "shop.db", "orders"))

The first one keeps the last row of each key. It is simple, and rows that come again after a restart do no harm. The
second one keeps all rows, each exactly once, from the moment on at which a checkpoint covers it. All task managers must
see the same database file.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

import weir
from weir.errors import InputError

_TIMEOUT_S = 30
#: Rows that are held between two flushes.
_HELD_MAX = 10_000
_TYPES = {"int64": "INTEGER", "bool": "INTEGER", "double": "REAL", "binary": "BLOB"}

Json = Any


class UpsertSink(weir.Sink):
    """Writes rows by key: the last one counts.

    Args:
        path: the database.
        table: its table, made if need be.
        key: the columns that identify a row. All rows of a key must come from one subtask, so that their order
            is kept: put ``key_by`` over them before the sink, or in a step with state before it.
    """

    def __init__(self, path: str, table: str, key: Sequence[str]) -> None:
        self._path = path
        self._table = table
        self._key = tuple(key)
        self._connection: sqlite3.Connection | None = None
        self._held: list[pa.RecordBatch] = []

    def open(self, context: weir.OperatorContext) -> None:
        """Connect."""
        self._connection = sqlite3.connect(self._path, timeout=_TIMEOUT_S)

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows: one transaction of the database for many of them is much quicker."""
        names = [name for name in batch.schema.names if not name.startswith("_")]
        self._held.append(batch.select(names))
        if sum(held.num_rows for held in self._held) >= _HELD_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is held, and commit: now the rows survive."""
        if not self._held or self._connection is None:
            return
        schema = self._held[0].schema
        with self._connection:
            self._connection.execute(_create_table(self._table, schema, self._key))
            for held in self._held:
                self._connection.executemany(
                    _insert(self._table, schema.names, "INSERT OR REPLACE"), _values(held)
                )
        self._held = []

    def close(self) -> None:
        """Disconnect; what was not flushed comes again."""
        if self._connection is not None:
            self._connection.close()


class TransactionSink(weir.TwoPhaseSink):
    """Writes every row once: rows of a transaction wait in a table beside until a checkpoint covers them.

    ``TABLE`` has what is committed. ``TABLE_pending`` has one row per prepared transaction: its name, the
    generation that wrote it, and its rows as JSON.

    Args:
        path: the database.
        table: its table, made if need be.
    """

    def __init__(self, path: str, table: str) -> None:
        self._path = path
        self._table = table
        self._batches: list[pa.RecordBatch] = []

    def start(self, context: weir.OperatorContext, is_restart: bool) -> None:
        """Make the table of prepared transactions.

        Raises:
            InputError: the table has rows of an earlier run.
        """
        with self._database() as database:
            database.execute(self._make_pending())
            # Subtask 0 looks for all: one that joins a running job finds rows of this very run.
            if is_restart or context.subtask_index:
                return
            if self._has_rows(database):
                raise InputError(
                    f"sink: table {self._table!r} in {self._path} has rows of an earlier run; empty it or choose "
                    "another table"
                )

    def begin(self, transaction: weir.TransactionId) -> None:
        """Rows are collected here until the checkpoint; a sink with more of them would write them out at once."""
        self._transaction = transaction
        self._batches = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Collect."""
        names = [name for name in batch.schema.names if not name.startswith("_")]
        self._batches.append(batch.select(names))

    def prepare(self) -> Json:
        """Bring the rows to the database, where nobody looks for them yet."""
        name = repr(self._transaction)
        table = pa.Table.from_batches(self._batches)
        with self._database() as database:
            database.execute(
                f"INSERT OR REPLACE INTO {_quoted(self._table + '_pending')} VALUES (?, ?, ?, ?)",
                (
                    name,
                    self._transaction.generation,
                    _create_table(self._table, table.schema),
                    json.dumps([table.schema.names, [list(row) for row in _values(table)]], default=str),
                ),
            )
        return {"name": name}

    def commit_prepared(self, description: Json) -> None:
        """Move the rows to the table, in one transaction of the database; nothing if they are gone from here."""
        pending = _quoted(self._table + "_pending")
        with self._database() as database:
            database.execute(self._make_pending())
            database.execute("BEGIN IMMEDIATE")
            found = database.execute(
                f"SELECT make, rows FROM {pending} WHERE name = ?", (description["name"],)
            ).fetchone()
            if found is not None:
                names, rows = json.loads(found[1])
                database.execute(found[0])
                database.executemany(_insert(self._table, names, "INSERT"), rows)
                database.execute(f"DELETE FROM {pending} WHERE name = ?", (description["name"],))

    def abort_unlisted(self, listed: Collection[str], generation: int) -> None:
        """Drop what earlier deployments prepared and no checkpoint lists; listed ones were committed a moment ago."""
        with self._database() as database:
            database.execute(self._make_pending())
            database.execute(
                f"DELETE FROM {_quoted(self._table + '_pending')} WHERE generation < ?", (generation,)
            )

    def _has_rows(self, database: sqlite3.Connection) -> bool:
        found = database.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (self._table,)
        ).fetchone()
        return bool(found and database.execute(f"SELECT 1 FROM {_quoted(self._table)} LIMIT 1").fetchone())

    def _make_pending(self) -> str:
        name = _quoted(self._table + "_pending")
        return f"CREATE TABLE IF NOT EXISTS {name} (name TEXT PRIMARY KEY, generation INTEGER, make TEXT, rows TEXT)"

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each step: commits come in any thread, also after the end."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=_TIMEOUT_S)) as connection, connection:
            yield connection


def _create_table(table: str, schema: pa.Schema, key: Sequence[str] = ()) -> str:
    columns = [f"{_quoted(field.name)} {_TYPES.get(str(field.type), 'TEXT')}" for field in schema]
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, key))})")
    return f"CREATE TABLE IF NOT EXISTS {_quoted(table)} ({', '.join(columns)})"


def _insert(table: str, names: Sequence[str], how: str) -> str:
    columns, marks = ", ".join(map(_quoted, names)), ", ".join("?" for _ in names)
    return f"{how} INTO {_quoted(table)} ({columns}) VALUES ({marks})"


def _values(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
