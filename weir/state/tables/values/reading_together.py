"""Reads what is needed soon for several tables in one go, where the store is slow: each answer takes about as long."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import islice
from typing import Protocol

from weir.state.tables.values.value_ahead import ReadAhead


class ReadsAhead(Protocol):
    """What is needed of a cache of values, or of its table."""

    def reading_ahead(self, starts: Sequence[bytes]) -> AbstractContextManager[ReadAhead]:
        """Lock it while what owners have is read for it."""

    def shrink(self) -> None:
        """Evict down to the bound."""


def read_together(tables: Sequence[tuple[ReadsAhead, Sequence[bytes]]]) -> list[int]:
    """Read all that owners have, or the beginning where that is much; called by the subtask's thread.

    Args:
        tables: of one store, each once, with its owners, or of each the key from which on it is wanted.

    Returns:
        Of each table, of how many of its first owners there was room.

    Raises:
        StateError: the store cannot be read.
    """
    if not tables:
        return []
    with ExitStack() as locks:
        reads = [locks.enter_context(table.reading_ahead(starts)) for table, starts in tables]
        ranges = [each for read in reads for each in read.ranges]
        rows_max = [read.rows_max for read in reads for _ in read.ranges]
        heads = iter(reads[0].backend.scan_heads(ranges, rows_max) if ranges else ())
        for read in reads:
            read.end(list(islice(heads, len(read.ranges))))
    # Evicting may wait for who writes captures, and so for the locks.
    for table, _ in tables:
        table.shrink()
    return [read.owners for read in reads]
