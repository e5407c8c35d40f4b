"""Rows that wait until their key group is owned: taken in by arrival, given out by group, each row copied once.

With state that is shipped, groups come one by one, and half a million rows may wait meanwhile. So rows are
ordered by group when the first group is asked for after they came (a *run*), and a group is then a slice of each run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.records import batch_bytes


@dataclass
class _Run:
    """Rows ordered by key group, those of a group in order of arrival."""

    rows: pa.RecordBatch
    #: By key group: where its rows begin, and how many of them still wait.
    starts: np.ndarray
    counts: np.ndarray
    rows_left: int
    bytes_per_row: float


class ParkedRows:
    """Order is kept within a group, hence within a key. Not thread-safe: the subtask's thread calls it."""

    def __init__(self, group_count: int) -> None:
        """``group_count``: key groups of the stage."""
        self._group_count = group_count
        self._recent: list[tuple[pa.RecordBatch, np.ndarray]] = []
        self._recent_bytes = 0
        self._runs: list[_Run] = []

    def __bool__(self) -> bool:
        """Whether rows wait."""
        return bool(self._recent) or bool(self._runs)

    @property
    def size_bytes(self) -> int:
        """Bytes of rows that wait."""
        return self._recent_bytes + int(sum(run.rows_left * run.bytes_per_row for run in self._runs))

    def add(self, batch: pa.RecordBatch, groups: np.ndarray) -> None:
        """Park a batch; ``groups`` are its rows' key groups, uint16, shape (rows,)."""
        self._recent.append((batch, groups))
        self._recent_bytes += batch_bytes(batch)

    def take(self, groups: Iterable[int]) -> pa.RecordBatch | None:
        """Give out the rows of these groups, group by group; None if there are none."""
        self._make_run()
        pieces = []
        for group in groups:
            for run in self._runs:
                count = int(run.counts[group])
                if count:
                    pieces.append(run.rows.slice(int(run.starts[group]), count))
                    run.counts[group] = 0
                    run.rows_left -= count
        self._runs = [run for run in self._runs if run.rows_left]
        return pa.concat_batches(pieces) if pieces else None

    def _make_run(self) -> None:
        if not self._recent:
            return
        rows = pa.concat_batches([batch for batch, _ in self._recent])
        groups = np.concatenate([numbers for _, numbers in self._recent])
        order = np.argsort(groups, kind="stable")
        counts = np.bincount(groups, minlength=self._group_count)
        row_bytes = self._recent_bytes / rows.num_rows
        ordered = rows.take(pa.array(order))
        self._runs.append(_Run(ordered, np.cumsum(counts) - counts, counts, rows.num_rows, row_bytes))
        self._recent, self._recent_bytes = [], 0
