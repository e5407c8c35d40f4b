"""The state of a checkpoint whose rows are in a database: the changes of its image in front of the rows.

The database goes on to later checkpoints meanwhile, so what was read counts only if no change of a later one may have
been written before. It is told otherwise, never returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from weir.protocol.queries import QueryError, Question
from weir.state.cassandra.entries import decode, decoded
from weir.state.cassandra.schema import StateTable
from weir.state.cassandra.tables import DatabaseTables
from weir.state.overlay import overlaid
from weir.state.placement.remote import RemoteStateClient

Entry = tuple[bytes, bytes]


class ImageOverRows:
    """What questions need of a ``RemoteStateClient``. Methods may be called from any thread.

    Args:
        changes: access to the checkpoint's images.
        tables: the rows.
        checkpoint_id: of the checkpoint.
    """

    def __init__(self, changes: RemoteStateClient, tables: DatabaseTables, checkpoint_id: int) -> None:
        self._changes = changes
        self._tables = tables
        self._checkpoint_id = checkpoint_id

    def start_get(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """Begin a read, as ``RemoteStateClient`` says; its result raises QueryError 503 if the database has gone on."""
        wait = self._changes.start_get(keys)

        def result() -> list[bytes | None]:
            changes = wait()
            missing = [key for key, change in zip(keys, changes, strict=True) if change is None]
            if missing:
                rows = iter(self._tables.get_many(missing))
                self._check(self._tables.begun())
                return [next(rows) if change is None else decode(change) for change in changes]
            return [None if change is None else decode(change) for change in changes]

        return result

    def scan(
        self, start: bytes, stop: bytes, *, prefixes: Sequence[bytes], reverse: bool = False
    ) -> Iterator[Entry]:
        """Yield a range, as ``RemoteStateClient`` says; raises QueryError 503 if the database has gone on."""
        changes = self._changes.scan(start, stop, prefixes=prefixes, reverse=reverse)
        rows = self._tables.scan(start, stop, reverse=reverse, may_read_all=True, look=self._check)
        return overlaid(rows, decoded(changes), reverse)

    def _check(self, begun: int) -> None:
        """Refuse what was read if changes of a later checkpoint may have been written by then.

        Raises:
            QueryError: 503.
        """
        if begun > self._tables.run.timestamp(self._checkpoint_id):
            raise QueryError(
                503,
                f"the database has gone on to checkpoint {begun - self._tables.run.base}, and checkpoint "
                f"{self._checkpoint_id} cannot be read any more: try again, or ask for consistency=latest",
            )

    def close(self) -> None:
        """Close the images; the session with the database stays."""
        self._changes.close()


def check_question(table: StateTable | None, question: Question) -> None:
    """Called before a question about a range of keys is answered; None: the job has no such state now.

    Raises:
        QueryError: 400: rows of the state have no order, or are not to be counted.
    """
    if table is None:
        return
    has_ends = (question.first, question.last, question.prefix) != (None, None, None)
    if table.layout == "global" and has_ends:
        raise QueryError(400, f"{table.no_order}; a question without from, to and prefix reads all rows")
    if question.counts and not table.counts:
        raise QueryError(400, table.not_counted)
