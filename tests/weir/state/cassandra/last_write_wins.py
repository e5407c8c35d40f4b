"""Rows of a database that keeps, of each key, the change with the highest timestamp: what Cassandra does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from weir.protocol.database_run import DatabaseRun
from weir.state.api import Head


class DatabaseStoppedError(Exception):
    """The database stopped in the middle of a write."""


class LastWriteWins:
    """What ``DatabaseStore`` and ``Applying`` need of ``DatabaseTables``."""

    def __init__(self) -> None:
        self.run = DatabaseRun("run")
        self.highest = 0
        self.rows: dict[bytes, tuple[int, bytes | None]] = {}
        #: Changes that are still written before the database stops; None: it does not.
        self.writes_left: int | None = None

    def get_many(self, keys: Sequence[bytes], check_cancelled: object = None) -> list[bytes | None]:
        return [self.rows.get(key, (0, None))[1] for key in keys]

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        reverse: bool = False,
        may_read_all: bool = False,
        look: Callable[[int], None] | None = None,
        check_cancelled: object = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        if look is not None:
            look(self.highest)
        found = [(key, value) for key, (_, value) in sorted(self.rows.items()) if start <= key < stop]
        kept = [(key, value) for key, value in found if value is not None]
        return iter(kept[::-1] if reverse else kept)

    def heads(
        self,
        ranges: Sequence[tuple[bytes, bytes]],
        rows_max: Sequence[int],
        *,
        reverse: bool = False,
        check_cancelled: object = None,
    ) -> list[Head]:
        found = []
        for (start, stop), rows in zip(ranges, rows_max, strict=True):
            entries = list(islice(self.scan(start, stop, reverse=reverse), rows))
            found.append(Head(entries, entries[-1][0] if len(entries) == rows else None))
        return found

    def begin(self, owner: str, checkpoint_id: int, check_cancelled: object) -> None:
        self.highest = max(self.highest, self.run.timestamp(checkpoint_id))

    def begun(self) -> int:
        return self.highest

    def write(
        self, changes: Sequence[tuple[bytes, bytes | None]], checkpoint_id: int, check_cancelled: object
    ) -> None:
        stamp = self.run.timestamp(checkpoint_id)
        for key, value in changes:
            if self.writes_left == 0:
                raise DatabaseStoppedError
            if self.writes_left is not None:
                self.writes_left -= 1
            known = self.rows.get(key, (-1, None))
            # At equal times a deletion wins, then the larger value.
            rank = (stamp, value is None, value or b"")
            if rank >= (known[0], known[1] is None, known[1] or b""):
                self.rows[key] = stamp, value
