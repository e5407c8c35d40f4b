"""Late rows that wait until the watermark of all has come to that of their split, as of which they are late.

A late row finds done what was due before it by the watermark of its own split. Where other splits are behind, that is
still to be done, so the row waits: what it is counted in follows from its split alone, whoever is ahead.

The state ``_late`` has, after the prefix of the key group, ``watermark (8 bytes) | number (8, big endian)``, and a
block of rows (``weir.operators.keyed.held_rows``) as they came, without the watermark. This is a persisted format.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from weir.author.operator import TimedOperator
from weir.operators.keyed.held_rows import block_of, read_block
from weir.rows.row_watermarks import without_column
from weir.rows.side_outputs import SideRows
from weir.state.tables.opened import OperatorTables
from weir.state.tables.panes.pane_table import PaneTable
from weir.state.tables.panes.window_entries import NEVER_MS
from weir.state.tables.timers.time_first import time_bytes, time_of
from weir.state.tables.values.value_table import ValueTable

_NUMBER_BYTES = 8


class WaitingRows:
    """Rows of one subtask that wait. Its methods raise ``StateError`` where the store cannot be read or written."""

    def __init__(self, tables: OperatorTables, name: str) -> None:
        self._table: ValueTable = tables.values(name)
        #: By key group that has some: the lowest watermark that rows wait for.
        self._firsts_ms: dict[int, int] = {}
        self._ownership = -1
        #: The lowest of all.
        self.first_ms = NEVER_MS

    def look(self, windows: PaneTable) -> None:
        """Find out what has come, if key groups have; ``windows`` is the table of the same step."""
        if windows.ownership == self._ownership:
            return
        self._ownership = windows.ownership
        self._firsts_ms.clear()
        for group in windows.owned_groups:
            self._find_first(group, self._table.key_prefix(group))
        self.first_ms = min(self._firsts_ms.values(), default=NEVER_MS)

    def put(self, batch: pa.RecordBatch, marks_ms: np.ndarray, groups: np.ndarray) -> None:
        """Rows wait, each for a watermark, with their key groups."""
        batch = without_column(batch)
        order = np.lexsort((marks_ms, groups))
        pairs = np.stack([groups[order].astype(np.int64), marks_ms[order]])
        firsts = np.flatnonzero(np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)))
        for rows in np.split(order, firsts[1:]):
            group, mark_ms = int(groups[rows[0]]), int(marks_ms[rows[0]])
            owner, stop = self._bounds(group, mark_ms)
            last = next(iter(self._table.scan_stored(owner, stop, reverse=True)), None)
            number = 0 if last is None else int.from_bytes(last[0][-_NUMBER_BYTES:], "big") + 1
            block = block_of(batch.take(pa.array(rows)))
            self._table.write_stored([(owner + number.to_bytes(_NUMBER_BYTES, "big"), block)], ())
            self._firsts_ms[group] = min(self._firsts_ms.get(group, NEVER_MS), mark_ms)
        self.first_ms = min(self._firsts_ms.values())

    def released(self, operator: TimedOperator) -> Iterator[pa.RecordBatch | SideRows]:
        """Yield what becomes of each of the rows that wait for the lowest watermark, by itself; they wait no more."""
        for batch in self.take():
            for index in range(batch.num_rows):
                row = batch.slice(index, 1)
                try:
                    made = tuple(operator.process(row))
                except Exception as error:
                    if operator.set_aside is None or not operator.set_aside(row, error):
                        raise
                    continue
                yield from made

    def take(self) -> list[pa.RecordBatch]:
        """The rows that wait for the lowest watermark, in the order in which they came; they wait no more."""
        mark_ms, found = self.first_ms, list[pa.RecordBatch]()
        for group in sorted(group for group, first_ms in self._firsts_ms.items() if first_ms == mark_ms):
            owner, stop = self._bounds(group, mark_ms)
            blocks = list(self._table.scan_stored(owner, stop))
            found += [batch for _, value in blocks for batch in read_block(value)]
            self._table.write_stored((), [key for key, _ in blocks])
            self._find_first(group, stop)
        self.first_ms = min(self._firsts_ms.values(), default=NEVER_MS)
        return found

    def _find_first(self, group: int, start: bytes) -> None:
        stop = self._table.key_prefix(group) + b"\xff" * (2 * _NUMBER_BYTES)
        first = next(iter(self._table.scan_stored(start, stop)), None)
        self._firsts_ms.pop(group, None)
        if first is not None:
            self._firsts_ms[group] = time_of(first[0])

    def _bounds(self, group: int, mark_ms: int) -> tuple[bytes, bytes]:
        prefix = self._table.key_prefix(group)
        return prefix + time_bytes(mark_ms), prefix + time_bytes(mark_ms + 1)
