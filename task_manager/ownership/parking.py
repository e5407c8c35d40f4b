"""Rows that wait until their key group is owned: taken in by arrival, given out by group, each row copied once.

With state that is shipped, groups come one by one, and half a million rows may wait meanwhile. So the rows of an input
are ordered by group when the first group is asked for after they came (a *run*), and a group is then a slice of each
run. Inputs stay apart, because their schemas may differ, and so do the schemas of one input, one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from weir.rows.records import InputRows, batch_bytes


@dataclass
class _Run:
    """Rows of one schema ordered by key group, those of a group in order of arrival."""

    rows: pa.RecordBatch
    #: By key group: where its rows begin, and how many of them still wait.
    starts: np.ndarray
    counts: np.ndarray
    rows_left: int
    bytes_per_row: float

    def take(self, group: int) -> pa.RecordBatch | None:
        """Give out the rows of a group; None if there are none."""
        count = int(self.counts[group])
        if not count:
            return None
        self.counts[group] = 0
        self.rows_left -= count
        return self.rows.slice(int(self.starts[group]), count)


@dataclass
class _ParkedInput:
    """The rows of one input."""

    recent: list[tuple[pa.RecordBatch, np.ndarray]] = field(default_factory=list)
    runs: list[_Run] = field(default_factory=list)

    def take(self, groups: Collection[int], group_count: int) -> Iterator[pa.RecordBatch]:
        """Give out the rows of these groups, those of a group in order of arrival."""
        for part in _of_one_schema(self.recent):
            self.runs.append(_run_of(part, group_count))
        self.recent = []
        # Runs of different schemas cannot be joined: then run by run, in their order, which keeps that of each group.
        for alike in _alike(self.runs):
            taken = [run.take(group) for group in groups for run in alike]
            pieces = [piece for piece in taken if piece is not None]
            if pieces:
                yield pa.concat_batches(pieces)
        self.runs = [run for run in self.runs if run.rows_left]

    @property
    def size_bytes(self) -> float:
        """Bytes of the rows that wait."""
        recent = sum(batch_bytes(batch) for batch, _ in self.recent)
        return recent + sum(run.rows_left * run.bytes_per_row for run in self.runs)


class ParkedRows:
    """Order is kept within each group of each input, hence within a key. Not thread-safe: for the subtask's thread."""

    def __init__(self, group_count: int) -> None:
        """``group_count``: key groups of the stage."""
        self._group_count = group_count
        self._inputs: dict[int, _ParkedInput] = {}
        self._bytes = 0.0

    def __bool__(self) -> bool:
        """Return whether rows wait."""
        return bool(self._inputs)

    @property
    def size_bytes(self) -> int:
        """Bytes of rows that wait."""
        return int(self._bytes)

    def add(self, rows: InputRows, groups: np.ndarray) -> None:
        """Park a batch of an input; ``groups`` are its rows' key groups, uint16, shape (rows,)."""
        self._inputs.setdefault(rows.input_index, _ParkedInput()).recent.append((rows.batch, groups))
        self._bytes += batch_bytes(rows.batch)

    def take(self, groups: Iterable[int]) -> list[InputRows]:
        """Give out the rows of these groups: input by input, and group by group."""
        wanted = list(groups)
        taken = [
            InputRows(index, batch)
            for index, rows in sorted(self._inputs.items())
            for batch in rows.take(wanted, self._group_count)
        ]
        self._inputs = {index: rows for index, rows in self._inputs.items() if rows.runs}
        self._bytes = sum(rows.size_bytes for rows in self._inputs.values())
        return taken


def _of_one_schema(
    batches: Sequence[tuple[pa.RecordBatch, np.ndarray]],
) -> list[list[tuple[pa.RecordBatch, np.ndarray]]]:
    """Neighbours that have the same schema, together."""
    parts: list[list[tuple[pa.RecordBatch, np.ndarray]]] = []
    for item in batches:
        if parts and item[0].schema.equals(parts[-1][0][0].schema):
            parts[-1].append(item)
        else:
            parts.append([item])
    return parts


def _alike(runs: Iterable[_Run]) -> list[list[_Run]]:
    """Neighbours that have the same schema, together."""
    parts: list[list[_Run]] = []
    for run in runs:
        if parts and run.rows.schema.equals(parts[-1][0].rows.schema):
            parts[-1].append(run)
        else:
            parts.append([run])
    return parts


def _run_of(batches: Sequence[tuple[pa.RecordBatch, np.ndarray]], group_count: int) -> _Run:
    rows = pa.concat_batches([batch for batch, _ in batches])
    groups = np.concatenate([numbers for _, numbers in batches])
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups, minlength=group_count)
    row_bytes = sum(batch_bytes(batch) for batch, _ in batches) / rows.num_rows
    ordered = rows.take(pa.array(order))
    return _Run(ordered, np.cumsum(counts) - counts, counts, rows.num_rows, row_bytes)
