"""Ballast for the demo job: state that is far larger than a count and rewritten at every event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

import weir

#: Characters of one entry.
JUNK_CHARACTERS = 6_890


class JunkRewriter(weir.KeyedProcess):
    """Rewrites all entries of a row's key, for every row, then passes the rows on.

    The value of an entry is its number and the row's running count, filled up with dots.
    """

    entries = weir.MapState(pl.Int64, pl.Binary)

    def __init__(self, entries: int, count_column: str = "count") -> None:
        """Remember how many entries a key has and the int64 column that makes each value a new one."""
        self._count = entries
        self._count_column = count_column

    def process(
        self, key: tuple[Any, ...], row: dict[str, Any], context: weir.KeyContext
    ) -> Iterator[dict[str, Any]]:
        """The very row.

        Raises:
            StateError: the store cannot be read.
        """
        for index in range(self._count):
            self.entries[index] = junk_value(index, row[self._count_column])
        yield row


def junk_value(index: int, count: int) -> bytes:
    """What entry ``index`` holds after its key's ``count``-th event; ``JUNK_CHARACTERS`` bytes."""
    return (b"%d:%d" % (index, count)).ljust(JUNK_CHARACTERS, b".")
