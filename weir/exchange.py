"""What a HASH exchange does to a batch: the key hash of each row, and the rows of each consumer.

Used by the outputs of task managers and by jobs in one process (``weir.local``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.graph import Edge
from weir.keys import hash_keys, key_bytes, partition_hashes
from weir.records import KEY_HASH_COLUMN, SYSTEM_COLUMNS, plain_array

_KEY_HASH_FIELD = pa.field(KEY_HASH_COLUMN, pa.uint64(), nullable=False)
#: Of parts of a smaller batch the bytes are estimated by rows: counting them takes 10 µs each. Far below any bound.
_ESTIMATED_BYTES_MAX = 64 << 10


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
    column = plain_array(hashes)
    index = batch.schema.get_field_index(KEY_HASH_COLUMN)
    if index >= 0:
        return batch.set_column(index, _KEY_HASH_FIELD, column), hashes
    return batch.append_column(_KEY_HASH_FIELD, column), hashes


def split_by_owner(
    batch: pa.RecordBatch, hashes: np.ndarray, group_to_subtask: np.ndarray, consumers: Iterable[int]
) -> Iterator[tuple[int, pa.RecordBatch, int | None]]:
    """The rows of each consumer, in their order; consumers without rows are left out.

    Args:
        batch: the rows.
        hashes: of their keys; uint64, shape (rows,).
        group_to_subtask: int32, shape (max_parallelism,); its values are among ``consumers``.
        consumers: subtask indices.

    Yields:
        Subtask index, rows, and about how many bytes they occupy; None: to be counted.
    """
    indices = list(consumers)
    order, offsets = partition_hashes(hashes, group_to_subtask, max(indices) + 1)
    ordered = batch.take(plain_array(order))
    size_bytes = ordered.get_total_buffer_size()
    ends = offsets.tolist()
    for index in indices:
        rows = ends[index + 1] - ends[index]
        if rows:
            share = None if size_bytes > _ESTIMATED_BYTES_MAX else size_bytes * rows // batch.num_rows
            yield index, ordered.slice(ends[index], rows), share
