"""What a HASH exchange does to a batch: the key hash of each row, and the rows of each consumer.

Used by the outputs of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.keys.hashing import KeyColumn, hash_keys, key_bytes, partition_hashes
from weir.rows.late_column import LateColumn, TextRoom
from weir.rows.records import KEY_HASH_COLUMN, SYSTEM_COLUMNS, Block, plain_array, taken

_KEY_HASH_FIELD = pa.field(KEY_HASH_COLUMN, pa.uint64(), nullable=False)
#: Of rows of which one in so many counts, and more, all keys are hashed: that costs less than to gather keys first.
_PICKED_SHARE = 3
#: Of parts of a smaller batch the bytes are estimated by rows: counting them takes 10 µs each. Far below any bound.
_ESTIMATED_BYTES_MAX = 64 << 10
#: Makes room for texts of a consumer; see :func:`split_by_owner`.
MakesRoomFor: TypeAlias = Callable[[int, pa.RecordBatch, int, int], TextRoom | None]


class HotRowCombiner(Protocol):
    """Adds up the rows of hot keys of a batch before they are sent; keeps no rows from one batch to the next."""

    def is_due(self, rows: int) -> bool:
        """Whether the next batch, of so many rows, is to be looked at by :meth:`combined`; it passes if it is not."""

    def combined(self, batch: pa.RecordBatch, hashes: np.ndarray) -> Block | None:
        """Add up the rows of each hot key; the last one of them then stands for all.

        Args:
            batch: with key hashes.
            hashes: of its keys; uint64, shape (rows,).

        Returns:
            The batch with the column of what rows stand for, of which the rows that are left count. None: all are to
            be sent as they came.
        """


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Bounds of a batch that is sent to a consumer."""

    rows_max: int
    #: About so many; a row that has more is a part of its own.
    bytes_max: int


def narrowed(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    """Return these columns of a batch, and system columns; None: all. Shares memory with it; called for each edge."""
    if columns is None:
        return batch
    return batch.select([*columns, *(name for name in batch.schema.names if name in SYSTEM_COLUMNS)])


def with_key_hash(batch: pa.RecordBatch, key_columns: Sequence[str]) -> tuple[pa.RecordBatch, np.ndarray]:
    """Set the key hash column, replacing one from an earlier exchange by other columns.

    Returns:
        The batch with it, and the hashes: uint64, shape (rows,).
    """
    hashes = hash_keys(key_bytes(batch, key_columns))
    column = plain_array(hashes)
    index = batch.schema.get_field_index(KEY_HASH_COLUMN)
    if index >= 0:
        return batch.set_column(index, _KEY_HASH_FIELD, column), hashes
    return batch.append_column(_KEY_HASH_FIELD, column), hashes


def row_hashes(batch: pa.RecordBatch, keys: KeyColumn) -> np.ndarray:
    """The ``_key_hash`` column (after a HASH exchange), else the hashes of ``keys``; uint64, shape (rows,)."""
    index = batch.schema.get_field_index(KEY_HASH_COLUMN)
    if index < 0:
        return hash_keys(keys)
    hashes: np.ndarray = batch.column(index).to_numpy(zero_copy_only=True)
    return hashes


class Part(NamedTuple):
    """Rows that go to one consumer, in their order; at least one."""

    #: Subtask index.
    consumer: int
    rows: pa.RecordBatch
    #: About how many bytes they occupy; None: to be counted.
    size_bytes: int | None
    #: What numbers they had; integers, ascending, shape (rows,).
    numbers: np.ndarray


class DividedBlock:
    """A block, divided among the consumers of one edge; valid as long as the edge's routing table holds.

    Used by the sending subtask's thread.
    """

    def __init__(self, block: Block, parts: Sequence[Part]) -> None:
        """``parts``: of all rows of the block that count; one for each consumer."""
        self.block = block
        # They share their buffers.
        size_bytes = parts[0].rows.get_total_buffer_size() if parts else 0
        self._row_bytes = size_bytes / max(1, sum(part.rows.num_rows for part in parts))
        self._parts = [(part.consumer, part.rows, part.numbers.tolist()) for part in parts]

    def between(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch, int]]:
        """Divide the block's rows from number ``start`` on and before ``stop`` among the consumers, in their order.

        Yields:
            Subtask index, rows (at least one), and about how many bytes they occupy.
        """
        for index, rows, numbers in self._parts:
            first = bisect_left(numbers, start)
            count = bisect_left(numbers, stop, first) - first
            if count:
                yield index, rows.slice(first, count), int(count * self._row_bytes)


def divided(
    block: Block,
    key_columns: Sequence[str],
    group_to_subtask: np.ndarray,
    consumers: Sequence[int],
    make_room: MakesRoomFor | None = None,
    limits: PartLimits | None = None,
) -> list[Part]:
    """The rows of a block that count, hashed, for each consumer.

    Args:
        block: the rows; what a filter keeps of them is copied once.
        key_columns: as for :func:`with_key_hash`.
        group_to_subtask: as for :func:`split_by_owner`, as all that follows.
        consumers: see there.
        make_room: see there.
        limits: see there.
    """
    columns, selection = block.columns, block.selection
    if selection is not None and _PICKED_SHARE * len(selection) < columns.num_rows:
        columns, hashes = with_key_hash(block.rows(), key_columns)
        parts = split_by_owner(Block(columns), hashes, group_to_subtask, consumers)
        return [part._replace(numbers=selection[part.numbers]) for part in parts]
    columns, hashes = with_key_hash(columns, key_columns)
    hashed = Block(columns, selection, block.late)
    return split_by_owner(hashed, hashes, group_to_subtask, consumers, make_room, limits)


def split_by_owner(
    block: Block,
    hashes: np.ndarray,
    group_to_subtask: np.ndarray,
    consumers: Sequence[int],
    make_room: MakesRoomFor | None = None,
    limits: PartLimits | None = None,
) -> list[Part]:
    """The rows of each consumer, in their order; consumers without rows are left out.

    Args:
        block: the rows, with their key hashes.
        hashes: of the keys of all of them; uint64, shape (rows,).
        group_to_subtask: int32, shape (max_parallelism,); its values are among ``consumers``.
        consumers: subtask indices, in the order in which they get their rows.
        make_room: makes room for texts of a late column; it is told the subtask index, the rows without them, the
            place of their column, and how many bytes they have at most.
        limits: with a late column a consumer gets several parts where one would have more; None: always one.
    """
    batch, late = block.columns, block.late
    order, offsets = partition_hashes(hashes, group_to_subtask, max(consumers) + 1, block.selection)
    ends = offsets.tolist()
    if late is not None:
        row_bytes = (late.size_bytes + batch.get_total_buffer_size()) / max(1, batch.num_rows)
        owners, part_ends = _cut_parts(ends, row_bytes, limits)
        parts = _split_late(batch, order, owners, part_ends, late, make_room)
        if parts is not None:
            return sorted(parts, key=lambda part: consumers.index(part.consumer))
        whole = block.joined()
        hashes = hashes if late.kept is None else hashes[late.kept]
        return split_by_owner(whole, hashes, group_to_subtask, consumers)
    ordered = taken(batch, order)
    size_bytes, rows = ordered.get_total_buffer_size(), ordered.num_rows
    return [
        Part(
            index,
            ordered.slice(start, end - start),
            None if size_bytes > _ESTIMATED_BYTES_MAX else size_bytes * (end - start) // rows,
            order[start:end],
        )
        for index in consumers
        if (start := ends[index]) < (end := ends[index + 1])
    ]


def _cut_parts(
    ends: Sequence[int], row_bytes: float, limits: PartLimits | None
) -> tuple[list[int], list[int]]:
    """Cut the rows of each consumer into parts of equal size.

    Args:
        ends: where the rows of each consumer end, after a 0.
        row_bytes: of a row, in the mean.
        limits: of a part; None: each consumer has one.

    Returns:
        The consumer of each part, and where the parts end, after a 0.
    """
    owners: list[int] = []
    part_ends = [0]
    for owner, (start, end) in enumerate(pairwise(ends)):
        rows = end - start
        parts = 1
        if limits is not None and rows:
            parts = max(-(-rows // limits.rows_max), ceil(rows * row_bytes / limits.bytes_max))
            parts = max(1, min(parts, rows))
        owners += [owner] * parts
        part_ends += [start + rows * part // parts for part in range(1, parts + 1)]
    return owners, part_ends


def _split_late(
    batch: pa.RecordBatch,
    order: np.ndarray,
    owners: Sequence[int],
    ends: Sequence[int],
    late: LateColumn,
    make_room: MakesRoomFor | None,
) -> list[Part] | None:
    """The parts of the rows with the column that they lack; None: the column is to be read first."""
    indices = plain_array(order)
    columns = [
        # What is in the order is in the batch, so that no index need be looked at.
        column.slice(0, len(order)) if name in late.constants else pc.take(column, indices, boundscheck=False)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    ordered = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    parts = [ordered.slice(start, end - start) for start, end in pairwise(ends)]
    rooms = [
        None if make_room is None else partial(make_room, owner, part, late.place)
        for owner, part in zip(owners, parts, strict=True)
    ]
    values = late.divided(order, ends, rooms)
    if values is None:
        return None
    # To count them takes 40 µs each. The late column is exact, and has most of them; the others are shared by rows.
    others_bytes = ordered.get_total_buffer_size()
    return [
        Part(
            owner,
            late.put_into(part, mine),
            mine.get_total_buffer_size() + others_bytes * part.num_rows // max(1, len(order)),
            order[start:end],
        )
        for owner, part, mine, (start, end) in zip(owners, parts, values, pairwise(ends), strict=True)
        if start < end
    ]
