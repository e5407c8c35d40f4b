"""The state of one keyed subtask in a database: changes that are not applied lie in front of the rows.

What a subtask writes goes to the task manager's local store, as changes (``weir.state.cassandra.entries``), wherever
that keeps them: so images, checkpoints, handovers and restores are those of any other state, and small. A read takes
the change of a key, and asks the database only for keys that have none. When a checkpoint is complete, what it covers
is written to the database (``weir.state.cassandra.applying``), and then the changes are dropped here. See
docs/design/0006.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Protocol

import numpy as np

from weir.state import patience
from weir.state.api import Head, StateBackend
from weir.state.cassandra.entries import (
    HEADER_BYTES,
    changed_head,
    covered,
    decode,
    decoded,
    deletion,
    value_header,
)
from weir.state.cassandra.session import CheckCancelled, never_cancelled
from weir.state.cassandra.tables import DatabaseTables
from weir.state.overlay import overlaid
from weir.state.packed import PackedKeys
from weir.state.placement.group_places import Piece
from weir.state.placement.placed_store import PlacedStore
from weir.types import StoreStats

#: Entries that are deleted at a time where a range is.
_DELETE_ENTRIES = 1_000


class Pressure(Protocol):
    """How far the database is behind; implemented by ``weir.state.cassandra.applying.Applying``."""

    def hold_back(self, check_cancelled: CheckCancelled) -> None:
        """Wait while too much is not applied."""

    def check(self) -> None:
        """Raise what the database has refused for good."""


class DatabaseStore(StateBackend):
    """A store over a database, one per keyed subtask, shared by its operators. Any thread may call its methods.

    Args:
        changes: the subtask's part of the local store, which has changes only.
        tables: the rows.
        passed_id: returns the last checkpoint whose barrier the subtask has passed on; 0: none yet.
        ended_id: checkpoints up to this one were over when the subtask was made.
        check_cancelled: raises when the subtask is to stop.
        pressure: called before reads, to wait while too many complete checkpoints are not applied, and before writes.
    """

    reads_ahead = True

    def __init__(
        self,
        changes: PlacedStore,
        tables: DatabaseTables,
        *,
        passed_id: Callable[[], int],
        ended_id: int = 0,
        check_cancelled: CheckCancelled = never_cancelled,
        pressure: Pressure | None = None,
    ) -> None:
        self.changes = changes
        self._tables = tables
        self._passed_id = passed_id
        self._ended_id = ended_id
        self._check_cancelled = check_cancelled
        self._pressure = pressure
        self._gets = self._puts = self._deletes = 0
        #: Keys that the database was asked for.
        self._read_rows = 0

    def _covering_id(self) -> int:
        """The number of the checkpoint that covers what is written now, at the earliest."""
        passed_id = self._passed_id()
        if passed_id and self.changes.writes_captured():
            return passed_id
        # Before its first barrier the subtask does not know whether a checkpoint is being completed in which it
        # has no part: what it writes waits for a later one.
        return passed_id + 1 if passed_id else self._ended_id + 2

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; those without a change are read from the database, all at once."""
        self._before_read()
        self._gets += len(keys)
        # In this order: what leaves the changes is in the database before.
        changes = self.changes.get_many(keys)
        missing = [key for key, change in zip(keys, changes, strict=True) if change is None]
        self._read_rows += len(missing)
        if len(missing) == len(keys):
            return self._tables.get_many(missing, self._check_cancelled)
        if not missing:
            return [None if change is None else decode(change) for change in changes]
        stored = iter(self._tables.get_many(missing, self._check_cancelled))
        return [next(stored) if change is None else decode(change) for change in changes]

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Note puts, then deletes, atomically within each store."""
        self._before_write()
        number = self._covering_id()
        header = value_header(number)
        changes = [(key, header + value) for key, value in puts]
        if deletes:
            gone = deletion(number)
            changes += [(key, gone) for key in deletes]
        self.changes.write(changes)
        self._puts += len(puts)
        self._deletes += len(deletes)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write these pairs, as :meth:`write` does."""
        self._before_write()
        header = value_header(self._covering_id())
        self.changes.put_many(keys, [header + value for value in values])
        self._puts += len(keys)

    def put_packed(self, keys: PackedKeys, rows: np.ndarray) -> None:
        """Write packed rows, as ``StateBackend`` says."""
        self._before_write()
        header = np.frombuffer(value_header(self._covering_id()), np.uint8)
        changes = np.empty((len(rows), HEADER_BYTES + rows.shape[1]), np.uint8)
        changes[:, :HEADER_BYTES] = header
        changes[:, HEADER_BYTES:] = rows
        self.changes.put_packed(keys, changes)
        self._puts += len(keys)

    def _before_read(self) -> None:
        if self._pressure is not None and patience.current() is None:
            self._pressure.hold_back(self._check_cancelled)

    def _before_write(self) -> None:
        if self._pressure is not None:
            self._pressure.check()
        self.changes.wait_for_hold()

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of the owned groups in a range, as they are now. Exhaust or drop the iterator.

        What is applied meanwhile was written before, and does not show. The database has no view of one moment: what
        another thread than the caller's writes, and a complete checkpoint applies, before the iterator ends, may show.
        """
        return self._scan(start, stop, reverse, may_read_all=False)

    def scan_heads(
        self, ranges: Sequence[tuple[bytes, bytes]], rows_max: Sequence[int], *, reverse: bool = False
    ) -> list[Head]:
        """Return first entries of ranges, as ``StateBackend`` says; each range is of one state in one owned group."""
        self._before_read()
        self.changes.check_owned({start[:2] for start, _ in ranges})
        # In this order: what leaves the changes is in the database before.
        changes = [
            list(islice(decoded(self.changes.scan(start, stop, reverse=reverse)), count))
            for (start, stop), count in zip(ranges, rows_max, strict=True)
        ]
        rows = self._tables.heads(ranges, rows_max, reverse=reverse, check_cancelled=self._check_cancelled)
        self._gets += len(ranges)
        self._read_rows += sum(len(head.entries) for head in rows)
        return [
            changed_head(head, own, count, reverse=reverse)
            for head, own, count in zip(rows, changes, rows_max, strict=True)
        ]

    def scan_for_question(self, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield a range, as ``StateReader`` says; a range of rows that have no order is cut from all of them."""
        return self._scan(start, stop, reverse, may_read_all=True)

    def _scan(
        self, start: bytes | None, stop: bytes | None, reverse: bool, *, may_read_all: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        pieces = self.changes.pieces(start, stop)
        if reverse:
            pieces.reverse()
        # All of them now: so that later writes do not show.
        opened = [(piece, self.changes.scan(piece.start, piece.stop, reverse=reverse)) for piece in pieces]
        scanned = (self._scan_piece(*each, reverse, may_read_all) for each in opened)
        # A single one begins now: with others it takes no longer than alone.
        return next(scanned) if len(opened) == 1 else chain.from_iterable(scanned)

    def _scan_piece(
        self, piece: Piece, changes: Iterator[tuple[bytes, bytes]], reverse: bool, may_read_all: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._tables.scan(
            piece.start,
            piece.stop,
            reverse=reverse,
            may_read_all=may_read_all,
            check_cancelled=self._check_cancelled,
        )
        return overlaid(rows, decoded(changes), reverse)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range that belongs to the owned groups, key by key."""
        entries = self.scan(start, stop)
        while keys := [key for key, _ in islice(entries, _DELETE_ENTRIES)]:
            self.write(deletes=keys)

    def unapplied(self, checkpoint_id: int | None) -> Iterator[tuple[bytes, bytes]]:
        """Changes of the owned groups that a complete checkpoint covers (None: all), as the local store has them."""
        return covered(self.changes.scan(), checkpoint_id)

    def applied(self, changes: Sequence[tuple[bytes, bytes]]) -> None:
        """The database has these changes: drop those that are still the latest of their keys."""
        self.changes.drop_equal(changes)

    def may_hold(self, prefix: bytes) -> bool:
        """Return True: asking the database would cost more than a read in vain."""
        return True

    def flush(self) -> None:
        """The local store has every earlier write, also one elsewhere."""
        self.changes.flush()

    def is_settled(self, group: int) -> bool:
        """Return whether a group's changes are settled, as ``StateBackend`` says."""
        return self.changes.is_settled(group)

    def writes_wait(self) -> bool:
        """Return whether writes wait, as ``StateBackend`` says."""
        return self.changes.writes_wait()

    def is_stalled(self) -> bool:
        """Return whether the local store is stalled."""
        return self.changes.is_stalled()

    def stats(self) -> StoreStats:
        """Counters of this subtask; sizes are those of the local store, and what is remote is in the database."""
        below = self.changes.stats()
        return replace(
            below,
            gets=self._gets,
            puts=self._puts,
            deletes=self._deletes,
            remote_gets=below.remote_gets + self._read_rows,
        )

    def close(self) -> None:
        """Refuse all later calls; safe to call twice."""
        self.changes.close()
