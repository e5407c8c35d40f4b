"""A source of one's own: the rows of a SQLite table, by ranges of ``rowid``.

Two ways::

    weir.UserSource(partial(TableRows, "shop.db", "orders"), schema={"id": int, "price": float})
    weir.UserSource(partial(NewRows, "shop.db", "orders"), schema={"id": int, "price": float})

The first one ends after the rows that are there when the job starts; the second one goes on with rows that are
inserted later. Rows must not change, and new ones must get a higher ``rowid`` than all others, as
``INTEGER PRIMARY KEY AUTOINCREMENT`` sees to.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import weir

#: Rows that one query reads.
_ROWS_AT_A_TIME = 1_000
_AWAY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN)

Json = Any


class _Table(weir.Source):
    """What both have in common."""

    def __init__(self, path: str, table: str) -> None:
        self._path = path
        self._table = '"' + table.replace('"', '""') + '"'
        self._connection: sqlite3.Connection | None = None

    def open(self, context: weir.OperatorContext) -> None:
        """Connect, for reading only."""
        self._connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, isolation_level=None)
        self._connection.row_factory = sqlite3.Row

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()

    def _rows(self, after: int, last: int) -> tuple[list[dict[str, Any]], int]:
        """Some rows after a ``rowid``, up to another one, and the ``rowid`` of the last of them."""
        assert self._connection is not None
        query = f"SELECT rowid AS _rowid, * FROM {self._table} WHERE rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?"
        try:
            rows = [dict(row) for row in self._connection.execute(query, (after, last, _ROWS_AT_A_TIME))]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _AWAY:
                raise
            # With an OSError the job waits for it as long as it takes.
            raise OSError(f"cannot read {self._table} of {self._path}: {error}") from error
        return rows, rows[-1]["_rowid"] if rows else after


class TableRows(_Table):
    """The rows that are there when the job starts; ranges of ``rowid`` are the splits.

    Args:
        path: the database.
        table: its table.
        rows_per_split: numbers in a range.
    """

    #: One range after the other, so that each subtask reads in order of ``rowid``.
    open_splits_max = 1

    def __init__(self, path: str, table: str, rows_per_split: int = 100_000) -> None:
        super().__init__(path, table)
        self._rows_per_split = rows_per_split

    def splits(self) -> list[Json]:
        """Ranges of the same size from 0 on: subtasks that look at different moments still agree on each of them."""
        assert self._connection is not None
        (last,) = self._connection.execute(f"SELECT max(rowid) FROM {self._table}").fetchone()
        size = self._rows_per_split
        return [[start, start + size] for start in range(0, last or 0, size)]

    def read(self, split: Json, position: Json) -> Iterator[tuple[list[dict[str, Any]], Json]]:
        """Rows with ``split[0] < rowid <= split[1]``; the position is the last one's ``rowid``."""
        after = split[0] if position is None else position
        while True:
            rows, after = self._rows(after, split[1])
            if not rows:
                return
            yield rows, after


class NewRows(_Table):
    """The rows that are there, then those that are inserted while the job runs; one split, which never ends."""

    def read(self, split: Json, position: Json) -> Iterator[tuple[list[dict[str, Any]], Json] | None]:
        """Rows after the position, None while there are no new ones."""
        after = 0 if position is None else position
        while True:
            rows, after = self._rows(after, (1 << 63) - 1)
            yield (rows, after) if rows else None


def insert(path: str, table: str, rows: list[dict[str, Any]]) -> None:
    """Add rows to a table, which is made if need be; for the examples and their tests."""
    columns = ", ".join(f'"{name}"' for name in rows[0])
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({columns})')
        marks = ", ".join("?" for _ in rows[0])
        connection.executemany(
            f'INSERT INTO "{table}" VALUES ({marks})', [tuple(row.values()) for row in rows]
        )
