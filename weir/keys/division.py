"""What a HASH exchange does to a batch: the key hash of each row, and the rows of each consumer.

Used by the outputs of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.keys.hashing import hash_keys, key_bytes, partition_hashes, partition_picked
from weir.rows.records import KEY_HASH_COLUMN, SYSTEM_COLUMNS, plain_array

_KEY_HASH_FIELD = pa.field(KEY_HASH_COLUMN, pa.uint64(), nullable=False)
#: Of parts of a smaller batch the bytes are estimated by rows: counting them takes 10 µs each. Far below any bound.
_ESTIMATED_BYTES_MAX = 64 << 10


class TextRoom(Protocol):
    """Memory for texts that are put together where they would be copied to otherwise."""

    #: Where it begins.
    address: int

    def taken(self, size_bytes: int) -> pa.Buffer:
        """Its first bytes, which are all that is used of it; called once."""
        ...


#: Makes room for so many bytes; None: there is none.
MakesRoom: TypeAlias = Callable[[int], TextRoom | None]


class LateColumn(Protocol):
    """A column of a batch that is read when it is known where its values go: once, page by page."""

    #: Its place among the columns of the batch with it.
    place: int
    #: About so many bytes.
    size_bytes: int
    #: Columns of the batch that have the same value in all its rows.
    constants: Collection[str]
    #: After :meth:`joined`: which rows it left; bool, shape (rows,). None: all.
    kept: np.ndarray | None

    def divided(
        self, order: np.ndarray, ends: Sequence[int], rooms: Sequence[MakesRoom | None] = ()
    ) -> list[pa.Array] | None:
        """The values of each consumer, in order; None: :meth:`joined` is to be used.

        Args:
            order: row numbers by consumer; uint32, shape (rows,).
            ends: where the rows of each consumer end in ``order``, after a 0; or of each part of them.
            rooms: for each of these what makes room for its texts; None, or none at all: they get memory of their own.
        """
        ...

    def joined(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with this column, which it lacks; without the rows that its values made bad.

        Raises:
            InputError: it cannot be read, or a row is bad that must not be.
        """
        ...

    def put_into(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        """The batch with these values as the column that it lacks."""
        ...


class HotRowCombiner(Protocol):
    """Adds up the rows of hot keys of a batch before they are sent; keeps no rows from one batch to the next."""

    def is_due(self, rows: int) -> bool:
        """Whether the next batch, of so many rows, is to be looked at by :meth:`combined`; it passes if it is not."""
        ...

    def combined(self, batch: pa.RecordBatch, hashes: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray] | None:
        """Add up the rows of each hot key; the last one of them then stands for all.

        Args:
            batch: with key hashes.
            hashes: of its keys; uint64, shape (rows,).

        Returns:
            The batch with the column of what rows stand for, and the numbers of the rows that are left: int64,
            ascending. None: all are to be sent as they came.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Bounds of a batch that is sent to a consumer."""

    rows_max: int
    #: About so many; a row that has more is a part of its own.
    bytes_max: int


def narrowed(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    """Of a batch these columns and the system columns; None: all. Shares memory with it; called for each edge."""
    if columns is None:
        return batch
    return batch.select([*columns, *(name for name in batch.schema.names if name in SYSTEM_COLUMNS)])


def with_key_hash(batch: pa.RecordBatch, key_columns: Sequence[str]) -> tuple[pa.RecordBatch, np.ndarray]:
    """Set the key hash column, replacing one from an earlier exchange by other columns.

    Returns:
        The batch with it, and the hashes: uint64, shape (rows,).
    """
    hashes = hash_keys(key_bytes(batch, key_columns))
    return _with_hashes(batch, hashes), hashes


def _with_hashes(batch: pa.RecordBatch, hashes: np.ndarray) -> pa.RecordBatch:
    column = plain_array(hashes)
    index = batch.schema.get_field_index(KEY_HASH_COLUMN)
    if index >= 0:
        return batch.set_column(index, _KEY_HASH_FIELD, column)
    return batch.append_column(_KEY_HASH_FIELD, column)


def split_by_owner(
    batch: pa.RecordBatch,
    hashes: np.ndarray,
    group_to_subtask: np.ndarray,
    consumers: Iterable[int],
    late: LateColumn | None = None,
    make_room: Callable[[int, pa.RecordBatch, int, int], TextRoom | None] | None = None,
    limits: PartLimits | None = None,
) -> Iterator[tuple[int, pa.RecordBatch, int | None]]:
    """The rows of each consumer, in their order; consumers without rows are left out.

    Args:
        batch: the rows.
        hashes: of their keys; uint64, shape (rows,).
        group_to_subtask: int32, shape (max_parallelism,); its values are among ``consumers``.
        consumers: subtask indices.
        late: a column that the batch lacks; the rows have it.
        make_room: makes room for texts of this column; it is told the subtask index, the rows without them, the place
            of their column, and how many bytes they have at most.
        limits: with ``late`` a consumer gets several parts where one would have more; None: always one.

    Yields:
        Subtask index, rows, and about how many bytes they occupy; None: to be counted.
    """
    indices = list(consumers)
    order, offsets = partition_hashes(hashes, group_to_subtask, max(indices) + 1)
    ends = offsets.tolist()
    if late is not None:
        row_bytes = (late.size_bytes + batch.get_total_buffer_size()) / max(1, batch.num_rows)
        owners, part_ends = _cut_parts(ends, row_bytes, limits)
        parts = _split_late(batch, order, owners, part_ends, late, make_room)
        if parts is not None:
            yield from (part for part in parts if part[1].num_rows)
            return
        whole = late.joined(batch)
        if whole.num_rows < batch.num_rows:
            hashes = whole.column(KEY_HASH_COLUMN).to_numpy()
            yield from split_by_owner(whole, hashes, group_to_subtask, indices)
            return
        batch = whole
    ordered = batch.take(plain_array(order))
    size_bytes = ordered.get_total_buffer_size()
    for index in indices:
        if rows := ends[index + 1] - ends[index]:
            share = None if size_bytes > _ESTIMATED_BYTES_MAX else size_bytes * rows // batch.num_rows
            yield index, ordered.slice(ends[index], rows), share


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
    make_room: Callable[[int, pa.RecordBatch, int, int], TextRoom | None] | None,
) -> list[tuple[int, pa.RecordBatch, int]] | None:
    """The parts of the rows with the column that they lack: their consumer, rows, and about how many bytes they have.

    None: the column is to be read first.
    """
    indices = plain_array(order)
    columns = [
        # All rows are in the order, so that no index need be looked at.
        column if name in late.constants else pc.take(column, indices, boundscheck=False)
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
        (
            owner,
            late.put_into(part, mine),
            mine.get_total_buffer_size() + others_bytes * part.num_rows // max(1, batch.num_rows),
        )
        for owner, part, mine in zip(owners, parts, values, strict=True)
    ]


def split_picked(
    batch: pa.RecordBatch,
    rows: np.ndarray,
    key_columns: Sequence[str],
    group_to_subtask: np.ndarray,
    consumers: Iterable[int],
    hashes: np.ndarray | None = None,
) -> Iterator[tuple[int, pa.RecordBatch, int | None]]:
    """Of some rows of a batch those of each consumer, hashed: what a filter keeps is copied once, not twice.

    Args:
        batch: the rows.
        rows: numbers of those that count; int64, ascending, shape (rows,).
        key_columns: as for :func:`with_key_hash`.
        group_to_subtask: as for :func:`split_by_owner`.
        consumers: subtask indices.
        hashes: of all keys, uint64, shape (rows,); None: they are not known.

    Yields:
        As :func:`split_by_owner`.
    """
    indices = list(consumers)
    if hashes is None:
        hashes = hash_keys(key_bytes(batch, key_columns))
    order, offsets, ordered_hashes = partition_picked(hashes, rows, group_to_subtask, max(indices) + 1)
    ends = offsets.tolist()
    ordered = _with_hashes(batch.take(plain_array(order)), ordered_hashes)
    size_bytes = ordered.get_total_buffer_size()
    for index in indices:
        if count := ends[index + 1] - ends[index]:
            share = None if size_bytes > _ESTIMATED_BYTES_MAX else size_bytes * count // len(rows)
            yield index, ordered.slice(ends[index], count), share
