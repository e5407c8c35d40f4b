"""Aggregates that keep entries of their own: different values, HyperLogLog registers, buckets of quantile sketches.

Each part is a table whose keys go on with a value (``part_entries``). Rows go into it before they go into the cells of
the key: what is new in the part is what the cells count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from typing_extensions import override

from weir.keys import hashing as weir_keys
from weir.operators.aggregation import part_kernels as kernels
from weir.operators.aggregation.columns import Cells, numbers, rows_that_count
from weir.operators.aggregation.part_entries import PartEntries
from weir.operators.aggregation.percentile_places import places_below
from weir.operators.aggregation.quantile_buckets import QuantileBuckets
from weir.specs.aggregate_functions import (
    AggregatePart,
    AnyAggregate,
    aggregate_parts,
    hyperloglog_precision,
)
from weir.state.tables.cells.cell_table import CellTable

#: Slots of entries, piece by piece: first row, end of rows, int32 slots. Called with rows, and values of theirs.
Pieces = Iterator[tuple[int, int, np.ndarray]]
#: How a part's table is asked for the entries of rows.
Update = Callable[[np.ndarray, weir_keys.KeyColumn], Pieces]


class Part(ABC):
    """A table of entries, and the aggregates that it belongs to."""

    #: Cells of an entry.
    cell_count = 1

    def __init__(self, part: AggregatePart, aggregates: Sequence[AnyAggregate], cells: Sequence[int]) -> None:
        """``cells``: the first cell of each aggregate of the step."""
        self.name, self.column = part.name, part.column
        self.members = part.members
        self.aggregates = [aggregates[member] for member in part.members]
        self.cells = [cells[member] for member in part.members]

    @abstractmethod
    def take(self, column: pa.Array, masks: list[np.ndarray], update: Update, table: CellTable) -> None:
        """Take in rows, and replace the masks of its aggregates by what their cells have to take.

        Args:
            column: the aggregated column.
            masks: of all aggregates of the step, for these rows; they change.
            update: finds slots of the entries of some rows, by row number and value.
            table: of the entries.
        """

    @abstractmethod
    def combined(self, cells: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Cells of entries of one value, those of each ``starts[i]:starts[i + 1]``, as one."""

    @abstractmethod
    def fill(self, index: np.ndarray, entries: PartEntries, cells: np.ndarray, into: Cells) -> None:
        """Write what the cells of results say.

        Args:
            index: which of the results each entry goes to; each value comes once for each of them.
            entries: what was read.
            cells: of the entries, perhaps of several panes together.
            into: cells of results.
        """


class DistinctPart(Part):
    """Different values of a column. An entry has a bit for each aggregate that has counted the value.

    Integers that follow one another share an entry: as many as have room in its 64 bits.
    """

    def __init__(self, part: AggregatePart, aggregates: Sequence[AnyAggregate], cells: Sequence[int]) -> None:
        super().__init__(part, aggregates, cells)
        #: Bits of a value, and how many values have room, of integers; powers of 2.
        self._value_bits = 1 << (len(self.members) - 1).bit_length()
        self._shift = (64 // self._value_bits).bit_length() - 1

    @override
    def take(self, column: pa.Array, masks: list[np.ndarray], update: Update, table: CellTable) -> None:
        bits = np.zeros(len(column), dtype=np.uint64)
        for bit, member in enumerate(self.members):
            valid = rows_that_count(column, masks[member])
            bits |= (valid.astype(np.uint64) if len(valid) else np.uint64(1)) << np.uint64(bit)
        rows = np.flatnonzero(bits)
        new = np.zeros(len(column), dtype=np.uint64)
        if len(rows):
            whole = len(rows) == len(column)
            values, places = self._entries(column if whole else column.take(pa.array(rows)))
            bits = bits if whole else bits[rows]
            for start, stop, slots in update(rows, values):
                found = np.empty(stop - start, dtype=np.uint64)
                kernels.note_seen(slots, table.cells, bits[start:stop] << places[start:stop], found)
                new[rows[start:stop]] = found >> places[start:stop]
        for bit, member in enumerate(self.members):
            masks[member] = ((new >> np.uint64(bit)) & np.uint64(1)).astype(np.uint8)

    def _entries(self, column: pa.Array) -> tuple[weir_keys.KeyColumn, np.ndarray]:
        """The entry of each value, and the first bit of the value there."""
        values = _value_keys(column)
        if not pat.is_integer(column.type) or values.integers is None:
            return values, np.zeros(len(column), dtype=np.uint64)
        integers = values.integers
        places = (integers & ((1 << self._shift) - 1)).astype(np.uint64) * np.uint64(self._value_bits)
        return weir_keys.KeyColumn(None, None, integers >> self._shift), places

    @override
    def combined(self, cells: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return np.bitwise_or.reduceat(cells, starts, axis=0)

    @override
    def fill(self, index: np.ndarray, entries: PartEntries, cells: np.ndarray, into: Cells) -> None:
        # The first bit of every value that may be in an entry.
        firsts = sum(1 << bit for bit in range(0, 64, self._value_bits))
        words = np.ascontiguousarray(cells[:, 0]).view(np.uint64)
        for bit, cell in enumerate(self.cells):
            counts = np.bitwise_count(words & np.uint64((firsts << bit) & (2**64 - 1)))
            totals = np.bincount(index, weights=counts, minlength=len(into.integers))
            into.integers[:, cell] = totals.astype(np.int64)


class RegistersPart(Part):
    """HyperLogLog registers, 64 to an entry; the cells of the key have the number of registers of each rank."""

    cell_count = 8

    def __init__(self, part: AggregatePart, aggregates: Sequence[AnyAggregate], cells: Sequence[int]) -> None:
        super().__init__(part, aggregates, cells)
        self._precision = hyperloglog_precision(self.aggregates[0].parameters[0])

    def take(self, column: pa.Array, masks: list[np.ndarray], update: Update, table: CellTable) -> None:
        """Take rows, as :class:`Part` says. The mask gets the shape (rows, 2): a register's rank before and now."""
        (member,) = self.members
        valid = rows_that_count(column, masks[member])
        changes = np.zeros((len(column), 2), dtype=np.uint8)
        rows = np.flatnonzero(valid) if len(valid) else np.arange(len(column))
        if len(rows):
            taken = column if len(rows) == len(column) else column.take(pa.array(rows))
            blocks, places, ranks = (
                np.empty(len(rows), dtype=kind) for kind in (np.int64, np.uint8, np.uint8)
            )
            hashes = weir_keys.hash_keys(_value_keys(taken))
            kernels.registers_of(hashes, self._precision, blocks, places, ranks)
            for start, stop, slots in update(rows, weir_keys.KeyColumn(None, None, blocks)):
                before = np.empty(stop - start, dtype=np.uint8)
                registers = table.cells.view(np.uint8)
                kernels.raise_registers(slots, registers, places[start:stop], ranks[start:stop], before)
                changes[rows[start:stop], 0] = before
                changes[rows[start:stop], 1] = ranks[start:stop]
        masks[member] = changes

    @override
    def combined(self, cells: np.ndarray, starts: np.ndarray) -> np.ndarray:
        registers = np.ascontiguousarray(cells).view(np.uint8)
        return np.maximum.reduceat(registers, starts, axis=0).view(np.int64)

    @override
    def fill(self, index: np.ndarray, entries: PartEntries, cells: np.ndarray, into: Cells) -> None:
        (cell,) = self.cells
        into.integers[:, cell : cell + kernels.RANKS // 4] = 0
        registers = np.ascontiguousarray(cells).view(np.uint8)
        kernels.ranks_of_registers(index, registers, into.integers.view(np.uint16), 4 * cell)


class BucketsPart(Part):
    """A quantile sketch (DDSketch): how many values are in each bucket, 8 to an entry. Bounds grow by a factor."""

    cell_count = 8

    def __init__(self, part: AggregatePart, aggregates: Sequence[AnyAggregate], cells: Sequence[int]) -> None:
        super().__init__(part, aggregates, cells)
        self._buckets = QuantileBuckets(self.aggregates[0].parameters[1])

    @override
    def take(self, column: pa.Array, masks: list[np.ndarray], update: Update, table: CellTable) -> None:
        values, valid = numbers(self.aggregates[0], column, masks[self.members[0]], pa.float64())
        counted = ~np.isnan(values)
        rows = np.flatnonzero(counted & (valid != 0) if len(valid) else counted)
        if not len(rows):
            return
        buckets = self._buckets.of(values[rows])
        places = (buckets & 7).astype(np.uint8)
        for start, stop, slots in update(rows, weir_keys.KeyColumn(None, None, buckets >> 3)):
            kernels.add_to_buckets(slots, table.cells, places[start:stop])

    @override
    def combined(self, cells: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return np.add.reduceat(cells, starts, axis=0)

    @override
    def fill(self, index: np.ndarray, entries: PartEntries, cells: np.ndarray, into: Cells) -> None:
        count = len(into.integers)
        blocks = entries.integers
        order = np.lexsort((blocks, index))
        totals = np.cumsum(cells[order].reshape(-1))
        sizes = np.bincount(index, weights=cells.sum(axis=1), minlength=count).astype(np.int64)
        before = np.cumsum(sizes) - sizes
        for aggregate, cell in zip(self.aggregates, self.cells, strict=True):
            ranks = places_below(aggregate.parameters[0], sizes)
            flat = np.searchsorted(totals, before + ranks, side="right")
            filled = np.flatnonzero(sizes)
            flat = flat[filled]
            into.floats[filled, cell] = self._buckets.values(8 * blocks[order][flat >> 3] + (flat & 7))
            into.presence[filled, cell // 8] |= np.uint8(1 << cell % 8)


_CLASSES: dict[str, type[Part]] = {
    "count_distinct": DistinctPart,
    "approx_distinct": RegistersPart,
    "quantile": BucketsPart,
}


def make_parts(aggregates: Sequence[AnyAggregate], cells: Sequence[int]) -> list[Part]:
    """The parts of a step; ``cells``: the first cell of each aggregate."""
    return [_CLASSES[part.function](part, aggregates, cells) for part in aggregate_parts(aggregates)]


def _value_keys(column: pa.Array) -> weir_keys.KeyColumn:
    """Values without nulls in the form of keys; equal floats are equal, and so are all NaN."""
    if pat.is_floating(column.type):
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        return weir_keys.KeyColumn(None, None, np.where(np.isnan(values), np.nan, values).view(np.int64))
    column = pc.drop_null(column)
    if pat.is_decimal(column.type):
        # Equal decimals of one column have the same digits after the point, and so the same bytes.
        sixteen = pa.Array.from_buffers(pa.binary(16), len(column), column.buffers(), offset=column.offset)
        column = sixteen.cast(pa.binary())
    return weir_keys.key_bytes(pa.RecordBatch.from_arrays([column], ["value"]), ["value"])
