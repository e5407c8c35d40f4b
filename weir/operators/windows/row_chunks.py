"""Rows as windows keep them in their states: one record batch as an Arrow IPC stream. This is a persisted format."""

from __future__ import annotations

import pyarrow as pa


def chunk_of_rows(batch: pa.RecordBatch) -> bytes:
    """Returns the bytes of a chunk, which has these rows and their schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def rows_of_chunk(data: bytes) -> pa.RecordBatch:
    """Returns the rows of a chunk.

    Raises:
        pyarrow.ArrowInvalid: the bytes are no chunk.
    """
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
