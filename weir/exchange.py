"""What a HASH exchange does to a batch: the key hash of each row, and the rows of each consumer.

Used by the outputs of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from weir.graph import Edge
from weir.keys import hash_keys, key_bytes, partition_hashes, partition_picked
from weir.records import KEY_HASH_COLUMN, SYSTEM_COLUMNS, plain_array

_KEY_HASH_FIELD = pa.field(KEY_HASH_COLUMN, pa.uint64(), nullable=False)
#: Of parts of a smaller batch the bytes are estimated by rows: counting them takes 10 µs each. Far below any bound.
_ESTIMATED_BYTES_MAX = 64 << 10


class LateColumn(Protocol):
    """A column of a batch that is read when it is known where its values go: once, page by page."""

    #: About so many bytes.
    size_bytes: int

    def divided(self, order: np.ndarray, ends: Sequence[int]) -> list[pa.Array] | None:
        """The values of each consumer, in order; None: :meth:`joined` is to be used.

        Args:
            order: row numbers by consumer; uint32, shape (rows,).
            ends: where the rows of each consumer end in ``order``, after a 0.
        """
        ...

    def joined(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with this column, which it lacks.

        Raises:
            InputError: it cannot be read.
        """
        ...

    def put_into(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        """The batch with these values as the column that it lacks."""
        ...


def sent_columns(batch: pa.RecordBatch, edge: Edge) -> pa.RecordBatch:
    """Of a batch the columns that its consumers read, and the system columns; shares memory with it."""
    if not edge.is_narrowed or edge.columns is None:
        return batch
    return batch.select([*edge.columns, *(name for name in batch.schema.names if name in SYSTEM_COLUMNS)])


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
) -> Iterator[tuple[int, pa.RecordBatch, int | None]]:
    """The rows of each consumer, in their order; consumers without rows are left out.

    Args:
        batch: the rows.
        hashes: of their keys; uint64, shape (rows,).
        group_to_subtask: int32, shape (max_parallelism,); its values are among ``consumers``.
        consumers: subtask indices.
        late: a column that the batch lacks; the rows have it.

    Yields:
        Subtask index, rows, and about how many bytes they occupy; None: to be counted.
    """
    indices = list(consumers)
    order, offsets = partition_hashes(hashes, group_to_subtask, max(indices) + 1)
    ends = offsets.tolist()
    parts = None if late is None else late.divided(order, ends)
    if late is not None and parts is None:
        batch = late.joined(batch)
    ordered = batch.take(plain_array(order))
    size_bytes = ordered.get_total_buffer_size()
    for index in indices:
        rows = ends[index + 1] - ends[index]
        if rows and late is not None and parts is not None:
            yield index, late.put_into(ordered.slice(ends[index], rows), parts[index]), None
        elif rows:
            share = None if size_bytes > _ESTIMATED_BYTES_MAX else size_bytes * rows // batch.num_rows
            yield index, ordered.slice(ends[index], rows), share


def split_picked(
    batch: pa.RecordBatch,
    rows: np.ndarray,
    key_columns: Sequence[str],
    group_to_subtask: np.ndarray,
    consumers: Iterable[int],
) -> Iterator[tuple[int, pa.RecordBatch, int | None]]:
    """Of some rows of a batch those of each consumer, hashed: what a filter keeps is copied once, not twice.

    Args:
        batch: the rows.
        rows: numbers of those that count; int64, ascending, shape (rows,).
        key_columns: as for :func:`with_key_hash`.
        group_to_subtask: as for :func:`split_by_owner`.
        consumers: subtask indices.

    Yields:
        As :func:`split_by_owner`.
    """
    indices = list(consumers)
    hashes = hash_keys(key_bytes(batch, key_columns))
    order, offsets, ordered_hashes = partition_picked(hashes, rows, group_to_subtask, max(indices) + 1)
    ends = offsets.tolist()
    ordered = _with_hashes(batch.take(plain_array(order)), ordered_hashes)
    size_bytes = ordered.get_total_buffer_size()
    for index in indices:
        if count := ends[index + 1] - ends[index]:
            share = None if size_bytes > _ESTIMATED_BYTES_MAX else size_bytes * count // len(rows)
            yield index, ordered.slice(ends[index], count), share
