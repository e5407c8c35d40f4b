"""Parts of running aggregates (``weir.operators.aggregation.parts``) and their tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.part_entries import part_keys
from weir.operators.aggregation.parts import Pieces, make_parts
from weir.specs import Aggregate
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.opened import OperatorTables


class KeyedParts:
    """The parts of one step's running aggregates."""

    def __init__(self, aggregates: Sequence[Aggregate], tables: OperatorTables) -> None:
        # Cells of results are never filled from parts: each row changes its key's cells.
        parts = make_parts(aggregates, [0] * len(aggregates))
        self._parts = [(part, tables.cells(part.cell_count, part.name)) for part in parts]

    def take(
        self, batch: pa.RecordBatch, masks: list[np.ndarray], hashes: np.ndarray, keys: weir_keys.KeyColumn
    ) -> list[np.ndarray]:
        """Take in rows; returns masks for the cells of their keys."""
        masks = list(masks)
        for part, table in self._parts:

            def update(rows: np.ndarray, values: weir_keys.KeyColumn, table: CellTable = table) -> Pieces:
                is_all = len(rows) == len(hashes)
                some_hashes = hashes if is_all else hashes[rows]
                some_keys = keys if is_all else weir_keys.select_keys(keys, rows)
                found, users = part_keys(some_hashes, some_keys, values)
                return table.pieces(found, users.data, users.offsets)

            part.take(batch.column(part.column), masks, update, table)
        return masks
