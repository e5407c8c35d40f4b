"""The rows that a join keeps, by key, in a table of values: read for a batch at once, matched and rewritten as arrays.

A key has one entry, with the rows of all sides in the order in which they came; of a key with many rows those that came
first lie in chunks (``row_chunks``), so that a batch writes no more than it adds, and a bounded rest. Its store key is
that of a map's count (``weir.state.handles.elements``): what ``Keys.element_prefixes`` returns, then ``00``. Its value:

==========  =============================================================================================
bytes       field
==========  =============================================================================================
1           version: 1, or 2 with chunks
8           when the key is looked at next: the time of its timer, ms, little endian; 2**63 - 1: it has none
4           how many chunks
the rest    what is told of the chunks, and the rows that lie in none
==========  =============================================================================================

A row is:

==========  =============================================================================================
4           bytes of the row, these included, little endian
1           flags: 1: it is of the right side; 2: it has matched; of joins of more than two streams the number of
            the side is bit 0 and, above it, bits 3 to 7
8           its event time, ms, little endian
0 or 8      of the side that has intervals: the first time of the other side that belongs to it
0 or 8      of joins with bounds: the last time that belongs to it; of the other side the last watermark at which a row
            may come that it belongs to
the rest    its columns (``row_codec``)
==========  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.errors import StateMismatchError
from weir.operators.joins import join_kernels as kernels
from weir.operators.joins import row_chunks, row_kernels
from weir.operators.joins.row_chunks import CHUNKED_VERSION, PLAIN_VERSION, Chunks
from weir.specs.joins import JoinBounds
from weir.state.handles.block import Keys
from weir.state.tables.timers import TimerTable
from weir.state.tables.values import ValueTable

#: No timer, and the time of what is never complete.
NEVER_MS = kernels.NEVER
#: All sides.
ALL_SIDES = 2**kernels.SIDES_MAX - 1
_HEAD = b"\x00"


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of one side that have come; arrays are of shape (rows,)."""

    side: int
    #: Position of the key among the block's keys, int64.
    keys: np.ndarray
    #: Event times, ms, int64.
    times: np.ndarray
    #: As in the entry, int64; of a side without intervals ``lower`` means nothing.
    lower: np.ndarray
    until: np.ndarray


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Those of the new rows that are kept, by key."""

    #: Rows in the order of their keys, int64, and where those of each key begin, shape (keys + 1,).
    order: np.ndarray
    bounds: np.ndarray
    rows: NewRows
    #: uint8, shape (rows,).
    matched: np.ndarray
    #: Their columns: bytes, and offsets of shape (rows + 1,).
    data: np.ndarray
    offsets: np.ndarray


def stored_rows(
    rows: NewRows, keys: int, matched: np.ndarray, data: np.ndarray, offsets: np.ndarray
) -> StoredRows:
    """Sort rows by their keys, of which there are so many."""
    bounds = np.zeros(keys + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows.keys, minlength=keys), out=bounds[1:])
    return StoredRows(np.argsort(rows.keys, kind="stable"), bounds, rows, matched, data, offsets)


def no_rows(keys: int) -> StoredRows:
    """Nothing for so many keys."""
    none = np.empty(0, dtype=np.int64)
    empty = np.empty(0, dtype=np.uint8)
    bounds = np.zeros(keys + 1, dtype=np.int64)
    return StoredRows(none, bounds, NewRows(0, none, none, none, none), empty, empty, bounds)


class KeptRows:
    """Opens, reads and writes the entries of one join in a subtask."""

    def __init__(self, table: ValueTable, timers: TimerTable | None, layout: np.ndarray, told: int) -> None:
        """``layout``: of :func:`interval_layout` or :func:`version_layout`.

        ``told``: bit s: something is told of rows of side s when they are complete, and they have not matched.
        """
        self._table = table
        self.timers = timers
        self.told = told
        #: See ``join_kernels``.
        self.layout = layout

    def columns_at(self, side: int) -> int:
        """Where the columns of a row begin within it."""
        return int(self.layout[side, 2])

    def load(self, keys: Keys, sides: int = ALL_SIDES, *, due_ms: int | None = None) -> Block:
        """What is kept of these distinct keys.

        Args:
            keys: each once.
            sides: bit s: rows of side s are looked at; others may be missing from the block, but stay.
            due_ms: instead, of keys with many rows only those are looked at of which something is told by this time.

        Raises:
            StateMismatchError: an entry is of another version.
            StateError: a part of an entry is not there.
        """
        state_keys = [prefix + _HEAD for prefix in keys.element_prefixes(self._table)]
        found = self._table.get_stored(state_keys)
        values = [b"" if value is None else value for value in found]
        bounds = _bounds_of(values)
        data = np.frombuffer(bytearray().join(values), dtype=np.uint8)
        present = np.flatnonzero(np.diff(bounds) > 0)
        versions = data[bounds[:-1][present]]
        chunks = Chunks(self._table, self.layout, self.told)
        tails = bounds[:-1] + kernels.HEAD_BYTES
        if versions.size and (versions != PLAIN_VERSION).any():
            wrong = versions[(versions != PLAIN_VERSION) & (versions != CHUNKED_VERSION)]
            if wrong.size:
                raise StateMismatchError(
                    f"rows of a join have format version {int(wrong[0])}, this program reads {PLAIN_VERSION} and "
                    f"{CHUNKED_VERSION}"
                )
            in_chunks = np.zeros(len(values), dtype=np.int64)
            for key in present[versions == CHUNKED_VERSION].tolist():
                values[key], in_chunks[key] = chunks.assemble(
                    key, values[key], state_keys[key], sides, due_ms
                )
            bounds = _bounds_of(values)
            data = np.frombuffer(bytearray().join(values), dtype=np.uint8)
            tails = bounds[:-1] + kernels.HEAD_BYTES + in_chunks
        return Block(self, keys, state_keys, data, bounds, tails, chunks)

    def write(
        self, block: Block, new: StoredRows, watermark_ms: int, *, has_fired: bool
    ) -> dict[bytes, bool]:
        """Write what has become of a block, without rows that can match no more at a watermark.

        ``has_fired``: timers up to the watermark are gone. Returns what is to change in the table of timers.
        """
        count = len(block.keys)
        sizes, first_due, last_due = (np.empty(count, dtype=np.int64) for _ in range(3))
        side = new.rows.side
        kernels.measure(
            block.data,
            block.bounds,
            block.tails,
            self.layout,
            self.told,
            watermark_ms,
            block.changed,
            side,
            new.order,
            new.bounds,
            new.matched,
            new.rows.until,
            new.offsets,
            sizes,
            first_due,
            last_due,
        )
        self._settle_chunks(block, sizes, first_due, last_due, watermark_ms)
        timers, changes = self._timers(block, sizes, first_due, last_due, watermark_ms, has_fired=has_fired)
        out_bounds = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.maximum(sizes, 0), out=out_bounds[1:])
        # Eight bytes are written at a time.
        out = np.zeros(int(out_bounds[-1]) + 8, dtype=np.uint8)
        kernels.rewrite(
            block.data,
            block.bounds,
            block.tails,
            self.layout,
            watermark_ms,
            sizes,
            timers,
            side,
            new.order,
            new.bounds,
            new.matched,
            new.rows.times,
            new.rows.lower,
            new.rows.until,
            new.data,
            new.offsets,
            out_bounds,
            out,
        )
        written = np.flatnonzero(sizes > 0)
        buffers = [None, pa.py_buffer(out_bounds), pa.py_buffer(out)]
        entries = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)
        if len(written) < count:
            entries = entries.take(pa.array(written))
        keys, values, positions = block.state_keys, entries.to_pylist(), written.tolist()
        for index in self._to_seal(block, sizes, written):
            position = positions[index]
            values[index] = block.chunks.sealed(position, keys[position], values[index], watermark_ms)
        puts, deletes = block.chunks.drain()
        puts += zip([keys[position] for position in positions], values, strict=True)
        gone = np.flatnonzero((sizes == 0) & (np.diff(block.bounds) > 0))
        deletes += [keys[index] for index in gone.tolist()]
        if puts or deletes:
            self._table.write_stored(puts, deletes)
        return changes

    def _settle_chunks(
        self,
        block: Block,
        sizes: np.ndarray,
        first_due: np.ndarray,
        last_due: np.ndarray,
        watermark_ms: int,
    ) -> None:
        """Count the chunks of keys in with what ``measure`` found of the rest."""
        for key in block.chunks.keys:
            if sizes[key] < 0:
                continue
            entry_at = int(block.bounds[key])
            count, first, last = block.chunks.settle(
                key, block.state_keys[key], block.data, entry_at, watermark_ms
            )
            if count:
                # Without rows of its own the entry has no times, either.
                last_due[key] = max(last_due[key], last) if sizes[key] else last
                first_due[key] = min(first_due[key], first) if sizes[key] else first
                sizes[key] = max(sizes[key], kernels.HEAD_BYTES)

    def _to_seal(self, block: Block, sizes: np.ndarray, written: np.ndarray) -> list[int]:
        """Positions, among the keys that are written, of those with chunks, now or from now on."""
        large = sizes[written] - kernels.HEAD_BYTES >= row_chunks.SEAL_BYTES
        if block.chunks.keys:
            large |= np.isin(written, list(block.chunks.keys))
        found: list[int] = np.flatnonzero(large).tolist()
        return found

    def _timers(
        self,
        block: Block,
        sizes: np.ndarray,
        first_due: np.ndarray,
        last_due: np.ndarray,
        watermark_ms: int,
        *,
        has_fired: bool,
    ) -> tuple[np.ndarray, dict[bytes, bool]]:
        """The time of each key's timer, and what is to change in the table of timers.

        A key has one timer: when the first row is due of which it is told, else when all of its rows can match no
        more. An earlier one stays.
        """
        before = block.timers()
        if self.timers is None:
            return before, {}
        if has_fired:
            before[before <= watermark_ms] = NEVER_MS
        wanted = np.where(first_due < NEVER_MS, first_due, last_due)
        is_new = (sizes > 0) & (wanted < before) & ((first_due < NEVER_MS) | (before == NEVER_MS))
        after = np.where(sizes == 0, NEVER_MS, np.where(is_new, wanted, before))
        after[sizes < 0] = before[sizes < 0]
        changes: dict[bytes, bool] = {}
        for times, is_live in ((before, False), (after, True)):
            changed = np.flatnonzero((before != after) & (times < NEVER_MS))
            if len(changed):
                user_keys = block.user_keys
                stored = self.timers.keys(
                    block.keys.groups[changed],
                    times[changed],
                    [user_keys[index] for index in changed.tolist()],
                )
                changes.update(dict.fromkeys(stored, is_live))
        return after, changes


class Block:
    """What is kept of some distinct keys, as it is in memory."""

    def __init__(
        self,
        kept: KeptRows,
        keys: Keys,
        state_keys: list[bytes],
        data: np.ndarray,
        bounds: np.ndarray,
        tails: np.ndarray,
        chunks: Chunks,
    ) -> None:
        self._kept = kept
        self.keys = keys
        self.state_keys = state_keys
        #: What lies in chunks, and where the rows of each key begin that do not; int64, shape (keys,).
        self.chunks = chunks
        self.tails = tails
        #: Entries, uint8; flags of their rows are changed here.
        self.data = data
        self.bounds = bounds
        #: uint8, shape (keys,): whether flags of a key's rows were.
        self.changed = np.zeros(len(keys), dtype=np.uint8)

    @property
    def user_keys(self) -> list[bytes]:
        """The bytes of the keys."""
        return self.keys.user_keys

    @property
    def rows_max(self) -> int:
        """There are not more rows than this in the block."""
        return len(self.data) // kernels.ROW_BYTES + 1

    def timers(self) -> np.ndarray:
        """The time of each key's timer, int64; ``NEVER_MS`` if there is none."""
        times = np.full(len(self.keys), NEVER_MS, dtype=np.int64)
        present = np.flatnonzero(np.diff(self.bounds) > 0)
        if len(present):
            times[present] = self._numbers(self.bounds[:-1][present], kernels.TIMER_AT)
        return times

    def times(self, starts: np.ndarray) -> np.ndarray:
        """Event times of rows, int64."""
        return self._numbers(starts, kernels.TIME_AT)

    def until(self, side: int, starts: np.ndarray) -> np.ndarray:
        """The last times that belong to rows of a side, int64."""
        return self._numbers(starts, int(self._kept.layout[side, 1]))

    def _numbers(self, starts: np.ndarray, at: int) -> np.ndarray:
        out = np.empty(8 * len(starts), dtype=np.uint8)
        row_kernels.get_fixed(self.data, starts, at, 8, out)
        return out.view(np.int64)

    def rows_of(self, side: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the rows of a side begin, and for each key where its rows end among them; int64."""
        starts = np.empty(self.rows_max, dtype=np.int64)
        stops = np.empty(len(self.keys), dtype=np.int64)
        count = kernels.rows_of_side(self.data, self.bounds, side, starts, stops)
        return starts[:count].copy(), stops

    def unmatched(self, watermark_ms: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of which it is told now that they have not matched: where they begin, and their keys; int64."""
        starts, keys = (np.empty(self.rows_max, dtype=np.int64) for _ in range(2))
        count = kernels.unmatched_rows(
            self.data, self.bounds, self._kept.layout, self._kept.told, watermark_ms, starts, keys
        )
        return starts[:count], keys[:count]

    def drop_old_versions(self, watermark_ms: int) -> None:
        """Let right rows go that are older than the latest one below a watermark."""
        kernels.drop_old_versions(self.data, self.bounds, watermark_ms, self.changed)

    def versions(self, watermark_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Left rows below a watermark, each with the latest right row that is not after it.

        Returns:
            Where the left rows begin, where the right ones do (-1: there is none), and positions of the keys; int64, by
            key, then by time.
        """
        lefts, rights, keys = (np.empty(self.rows_max, dtype=np.int64) for _ in range(3))
        count = kernels.versions_of(self.data, self.bounds, watermark_ms, lefts, rights, keys)
        lefts, rights, keys = lefts[:count], rights[:count], keys[:count]
        order = np.lexsort((self.times(lefts), keys))
        return lefts[order], rights[order], keys[order]

    def sides(self, starts: np.ndarray) -> np.ndarray:
        """Which side rows are of, 0 or 1."""
        sides: np.ndarray = self.data[starts + kernels.FLAGS_AT] & kernels.SIDE
        return sides

    def match(
        self, new: NewRows, *, is_point: bool, flag: int, pairs_max: int
    ) -> tuple[np.ndarray, Iterator[tuple[np.ndarray, np.ndarray]]]:
        """Find the kept rows of the other side that new rows match.

        Args:
            new: rows of one side.
            is_point: the new rows have intervals, the kept ones times.
            flag: what to set in kept rows that match: ``MATCHED``; ``GONE``: each matches once only; 0: nothing.
            pairs_max: about so many pairs at a time.

        Returns:
            How many each new row matches (with ``GONE`` at most), int64, and pairs: number of the new row, where the
            kept one begins. All pairs are to be taken before the block is written.
        """
        side = 1 - new.side
        starts, stops = self.rows_of(side)
        counts = np.zeros(len(new.keys), dtype=np.int64)
        if len(starts):
            columns = (new.keys, new.times, new.lower, new.until)
            kernels.count_matches(
                *columns, self.data, self._kept.layout, side, is_point, starts, stops, counts
            )
        return counts, self._pairs(
            new, starts, stops, counts, is_point=is_point, flag=flag, pairs_max=pairs_max
        )

    def _pairs(
        self,
        new: NewRows,
        starts: np.ndarray,
        stops: np.ndarray,
        counts: np.ndarray,
        *,
        is_point: bool,
        flag: int,
        pairs_max: int,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        ends = np.cumsum(counts)
        first = 0
        while first < len(counts):
            done = int(ends[first - 1]) if first else 0
            if int(ends[-1]) == done:
                return
            stop = max(int(np.searchsorted(ends, done + pairs_max, side="right")), first + 1)
            size = int(ends[stop - 1]) - done
            new_rows, kept_rows = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
            count = kernels.fill_matches(
                first,
                stop,
                *(new.keys, new.times, new.lower, new.until),
                *(self.data, self._kept.layout, 1 - new.side, is_point, starts, stops),
                *(flag, self.changed, new_rows, kept_rows),
            )
            first = stop
            for begin in range(0, count, pairs_max):
                end = min(begin + pairs_max, count)
                yield new_rows[begin:end], kept_rows[begin:end]


def _bounds_of(values: list[bytes]) -> np.ndarray:
    bounds = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int64, count=len(values)), out=bounds[1:])
    return bounds


def version_layout() -> np.ndarray:
    """Of joins as of a time: left rows have a last time, right ones are versions, which have none."""
    at = kernels.ROW_BYTES
    return np.array([[-1, at, at + 8], [-1, -1, at]], dtype=np.int64)


def interval_layout(bounds: JoinBounds | None) -> np.ndarray:
    """Of joins within bounds, or without; see ``join_kernels``."""
    layout = np.full((2, 3), -1, dtype=np.int64)
    for side in range(2):
        at = kernels.ROW_BYTES
        if bounds is not None:
            if side == bounds.side:
                layout[side, 0] = at
                at += 8
            layout[side, 1] = at
            at += 8
        layout[side, 2] = at
    return layout
