"""Parts of windows' aggregates (``weir.operators.aggregation.parts``): their tables, and panes of them together.

Rows that stand for several, on their way from the step before an exchange to the one after it, have in ``window_part``
the number of these and their accumulators (``weir.operators.aggregation.packed_cells``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.aggregation.packed_cells import unpacked
from weir.operators.aggregation.part_entries import PartEntries, part_keys
from weir.operators.aggregation.parts import BucketsPart, Part, Pieces
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.window_texts import WindowTexts
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.windows import WINDOW_PART
from weir.state.tables.opened import OperatorTables
from weir.state.tables.panes.window_entries import WindowEntries, entry_keys
from weir.state.tables.panes.window_table import WindowTable


@dataclass(frozen=True)
class PartRows:
    """Rows that stand for several."""

    #: Key columns and system columns.
    batch: pa.RecordBatch
    #: Rows that each stands for; int64.
    counts: np.ndarray
    cells: Cells


def split_parts(
    batch: pa.RecordBatch, schema: pa.Schema, cell_count: int
) -> tuple[pa.RecordBatch, PartRows | None]:
    """Rows as they came, and those that stand for several.

    Args:
        batch: of a :class:`WindowPartOperator`.
        schema: of the columns that the step reads.
        cell_count: of an accumulator.
    """
    index = batch.schema.get_field_index(WINDOW_PART)
    parts = batch.column(index)
    batch = batch.remove_column(index)
    system = [batch.schema.field(name) for name in batch.schema.names if name in SYSTEM_COLUMNS]
    plain_schema = pa.schema([*(schema.field(name) for name in schema.names), *system])
    if parts.null_count < len(parts):
        added = parts.is_valid()
        rows = PartRows(batch.filter(added), *unpacked(parts.drop_null(), cell_count))
        batch = batch.filter(parts.is_null())
    else:
        rows = None
    columns = [batch.column(name) for name in plain_schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=plain_schema), rows


class LoadedPart(NamedTuple):
    """Entries of a part, of some entries of windows."""

    part: Part
    entries: PartEntries
    #: The entry of windows that each belongs to; -1: none.
    owners: np.ndarray
    #: Equal for entries of one key and value.
    values: np.ndarray

    def fill(self, index: np.ndarray, into: Cells) -> None:
        """Fill cells, as :meth:`WindowParts.fill` does for all parts."""
        rows, cells, targets = grouped(self, index)
        self.part.fill(targets, self.entries.some(rows), cells, into)


class WindowParts:
    """The parts of one step's aggregates."""

    def __init__(self, folds: Folds, tables: OperatorTables) -> None:
        parts = folds.parts
        self._parts = [(part, tables.windows(part.cell_count, part.name)) for part in parts]
        #: Cells have codes of these; they are no parts: accumulators that have codes can be combined.
        self.texts = WindowTexts(folds, tables)
        #: Whether windows of a single pane have all in their cells.
        self.single_is_whole = not any(isinstance(part, BucketsPart) for part in parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(
        self,
        batch: pa.RecordBatch,
        masks: list[np.ndarray],
        ends_ms: np.ndarray,
        hashes: np.ndarray,
        keys: weir_keys.KeyColumn,
    ) -> list[np.ndarray]:
        """Take in rows; returns masks for the cells of their keys."""
        masks = list(masks)
        for part, table in self._parts:

            def update(rows: np.ndarray, values: weir_keys.KeyColumn, table: WindowTable = table) -> Pieces:
                is_all = len(rows) == len(ends_ms)
                some_hashes, some_ends_ms = (hashes, ends_ms) if is_all else (hashes[rows], ends_ms[rows])
                some_keys = keys if is_all else weir_keys.select_keys(keys, rows)
                return table.update(some_ends_ms, *part_keys(some_hashes, some_keys, values))

            part.take(batch.column(part.column), masks, update, table)
        return masks

    def load(self, entries: WindowEntries) -> list[LoadedPart]:
        """What parts have of these entries."""
        if not self._parts or not len(entries):
            return []
        after_ms, until_ms = int(entries.ends_ms.min()) - 1, int(entries.ends_ms.max())
        return [_loaded(part, table, entries, after_ms, until_ms) for part, table in self._parts]

    def fill(self, loaded: Sequence[LoadedPart], index: np.ndarray, into: Cells) -> None:
        """Write what results say that consist of entries.

        Args:
            loaded: of :meth:`load`.
            index: which result each of its entries goes to; -1: none.
            into: cells of results.
        """
        for each in loaded:
            each.fill(index, into)

    def move(
        self, loaded: Sequence[LoadedPart], index: np.ndarray, ends_ms: np.ndarray, emptied: np.ndarray
    ) -> None:
        """Bring entries together in one pane, and empty others.

        Args:
            loaded: of :meth:`load`.
            index: which of the panes that stay each of its entries goes to; -1: none.
            ends_ms: of the panes that stay.
            emptied: whether each entry loses what it has, bool.
        """
        # Nothing is loaded of no entries.
        for (_, table), each in zip(self._parts, loaded, strict=False):
            rows, cells, targets = grouped(each, index)
            gone = np.flatnonzero((each.owners >= 0) & emptied[each.owners])
            entries = each.entries.some(np.concatenate([rows, gone]))
            cells = np.concatenate([cells, np.zeros((len(gone), cells.shape[1]), dtype=np.int64)])
            ends = np.concatenate([ends_ms[targets], each.entries.ends_ms[gone]])
            hashes, keys = part_keys(
                weir_keys.hash_keys(entries.user_keys), entries.user_keys, entries.values
            )
            presence = np.zeros((len(ends), table.presence.shape[1]), dtype=np.uint8)
            table.put(ends, keys, cells, presence, hashes)

    def drop(self, until_ms: int) -> None:
        """Drop the panes up to an event time in every part, as :class:`WindowTable` says."""
        for _, table in self._parts:
            table.drop(until_ms)
        self.texts.drop(until_ms)

    def advance(self, until_ms: int) -> None:
        """Advance the place of every part, as :class:`WindowTable` says."""
        for _, table in self._parts:
            table.advance(until_ms)
        self.texts.advance(until_ms)


def _loaded(
    part: Part, table: WindowTable, entries: WindowEntries, after_ms: int, until_ms: int
) -> LoadedPart:
    wanted = np.unique(entries.groups)
    blocks = list(table.entries(after_ms, until_ms, wanted))
    keys = weir_keys.joined_keys([block.keys for block in blocks])
    ends_ms = np.concatenate([np.empty(0, dtype=np.int64), *(block.ends_ms for block in blocks)])
    cells = np.concatenate(
        [np.empty((0, part.cell_count), dtype=np.int64), *(block.cells for block in blocks)]
    )
    found = PartEntries(keys, cells, ends_ms)
    users = found.user_keys
    all_ends = np.concatenate([entries.ends_ms, ends_ms])
    owners_keys = weir_keys.joined_keys([entries.keys, users])
    hashes, data, offsets = entry_keys(all_ends, weir_keys.hash_keys(owners_keys), owners_keys)
    firsts, _, inverse = weir_keys.distinct_keys(hashes, weir_keys.KeyColumn(data, offsets))
    owners = firsts[inverse[len(entries) :]]
    _, _, values = weir_keys.distinct_keys(weir_keys.hash_keys(keys), keys)
    return LoadedPart(part, found, np.where(owners < len(entries), owners, -1), values)


def grouped(loaded: LoadedPart, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An entry of each value in each result, the cells of all its panes together, and the result; by result."""
    targets = np.where(loaded.owners >= 0, index[loaded.owners], -1)
    rows = np.flatnonzero(targets >= 0)
    rows = rows[np.lexsort((loaded.values[rows], targets[rows]))]
    if not len(rows):
        return rows, loaded.entries.cells[rows], targets[rows]
    values, targets = loaded.values[rows], targets[rows]
    starts = np.flatnonzero(
        np.concatenate([[True], (values[1:] != values[:-1]) | (targets[1:] != targets[:-1])])
    )
    cells = loaded.entries.cells[rows]
    if len(starts) < len(rows):
        cells = loaded.part.combined(cells, starts)
    return rows[starts], cells, targets[starts]
