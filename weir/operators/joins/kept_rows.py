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
0 or 8      of the side that has intervals: the first time of the other side that belongs to it; of a version that was
            late, side 3 of joins as of a time: the first time of left rows for which it counts
0 or 8      of joins with bounds: the last time that belongs to it; of the other side the last watermark at which a row
            may come that it belongs to
the rest    its columns (``row_codec``)
==========  =============================================================================================
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.errors import StateMismatchError
from weir.operators.joins import join_kernels as kernels
from weir.operators.joins import row_chunks
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.new_rows import StoredRows
from weir.operators.joins.row_chunks import CHUNKED_VERSION, PLAIN_VERSION, Chunks
from weir.specs.joins import JoinBounds, JoinSpec
from weir.specs.multi_joins import MultiJoinSpec
from weir.state.handles.block import Keys
from weir.state.tables.timers.timer_table import TimerTable
from weir.state.tables.values.value_table import ValueTable

#: The side of versions, of joins as of a time, that count from later than their own time on.
LATE_VERSIONS = 3
#: All sides.
ALL_SIDES = 2**kernels.SIDES_MAX - 1
_HEAD = b"\x00"


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

    def may_have_rows(self) -> bool:
        """Return whether there may be rows: those of a join within bounds have timers."""
        return self.timers is None or self.timers.next_ms() < NEVER_MS

    def columns_at(self, side: int) -> int:
        """Where the columns of a row begin within it."""
        return int(self.layout[side, 2])

    def load(
        self, keys: Keys, sides: int = ALL_SIDES, *, due_ms: int | None = None, will_write: bool = False
    ) -> Block:
        """What is kept of these distinct keys.

        Args:
            keys: each once.
            sides: bit s: rows of side s are looked at; others may be missing from the block, but stay.
            due_ms: instead, of keys with many rows only those are looked at of which something is told by this time.
            will_write: all of these keys are written next.

        Raises:
            StateMismatchError: an entry is of another version.
            StateError: a part of an entry is not there.
        """
        state_keys = [prefix + _HEAD for prefix in keys.element_prefixes(self._table)]
        found = self._table.get_stored(state_keys, will_write=will_write)
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
        return Block(self.layout, self.told, keys, state_keys, data, bounds, tails, chunks)

    def write(
        self, block: Block, new: StoredRows, watermark_ms: int, *, has_fired: bool
    ) -> dict[bytes, bool]:
        """Write what has become of a block, without rows that can match no more at a watermark.

        ``has_fired``: timers up to the watermark are gone. Returns what is to change in the table of timers.
        """
        count = len(block.keys)
        measured = np.empty((3, count), dtype=np.int64)
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
            measured,
        )
        sizes, first_due, last_due = measured
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
            timers,
            side,
            new.order,
            new.bounds,
            new.matched,
            np.stack((new.rows.times, new.rows.lower, new.rows.until)),
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


def _bounds_of(values: list[bytes]) -> np.ndarray:
    bounds = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int64, count=len(values)), out=bounds[1:])
    return bounds


def layout_of(spec: JoinSpec) -> np.ndarray:
    """Where the fields of rows are; see ``join_kernels``."""
    if spec.has_versions:
        return version_layout()
    return multi_layout(spec) if isinstance(spec, MultiJoinSpec) else interval_layout(spec.bounds)


def multi_layout(spec: MultiJoinSpec) -> np.ndarray:
    """Return the layout of joins of several streams: rows of bounded ones have a last time."""
    at = kernels.ROW_BYTES
    own = [-1, at, at + 8] if spec.is_bounded else [-1, -1, at]
    return np.array([own] * spec.inputs_count, dtype=np.int64)


def version_layout() -> np.ndarray:
    """Return the layout of joins as of a time: left rows have a last time, right ones are versions without; late ones.

    ``LATE_VERSIONS`` is a right side too, and there is none between.
    """
    at = kernels.ROW_BYTES
    return np.array([[-1, at, at + 8], [-1, -1, at], [-1, -1, at], [at, -1, at + 8]], dtype=np.int64)


def interval_layout(bounds: JoinBounds | None) -> np.ndarray:
    """Return the layout of joins within bounds, or without; see ``join_kernels``."""
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
