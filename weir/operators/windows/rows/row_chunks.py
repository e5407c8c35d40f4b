"""Rows as windows keep them in their states: some rows of one pane together. This is a persisted format.

A chunk of version 2 is, with integers little endian:

=====  ==========================================================================
bytes  field
=====  ==========================================================================
1      2
4      length of the schema
       the schema, as Arrow IPC has it
4      how many rows
4 each lengths of the rows
       the rows, each as ``weir.operators.joins.row_codec`` has it, in its version 1
=====  ==========================================================================

So the rows of many panes are written and read by columns: most chunks of most jobs have one row or two. A chunk of
version 1, which a step of few and large chunks still writes, is an Arrow IPC stream of one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from weir.errors import StateMismatchError
from weir.operators.joins.row_codec import RowCodec
from weir.rows.records import SYSTEM_COLUMNS, user_columns

CHUNK_VERSION = 2
#: The first byte of a chunk of version 1: what an IPC stream begins with.
_STREAM = 0xFF
_HEAD_BYTES = 5
_LENGTH_BYTES = 4


def chunk_of_rows(batch: pa.RecordBatch) -> bytes:
    """Returns the bytes of a chunk of version 1, which has these rows and their schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def chunks_of_rows(batch: pa.RecordBatch, stops: Sequence[int]) -> Iterator[bytes]:
    """Chunks of rows that follow one another; ``stops``: the row after each chunk's last."""
    head, codec = _head_of(batch.schema), RowCodec(batch.schema.types)
    rows, offsets = codec.encode(batch.columns, batch.num_rows)
    data, lengths = rows.data, np.diff(offsets).astype("<u4").view(np.uint8).data
    places = offsets.tolist()
    for start, stop in pairwise([0, *stops]):
        count = (stop - start).to_bytes(_LENGTH_BYTES, "little")
        own = lengths[_LENGTH_BYTES * start : _LENGTH_BYTES * stop]
        yield b"".join((head, count, own, data[places[start] : places[stop]]))


def rows_of_chunk(data: bytes) -> pa.RecordBatch:
    """Returns the rows of a chunk of any version.

    Raises:
        pyarrow.ArrowInvalid: the bytes are no chunk.
        StateMismatchError: it is of a version that this program does not read.
    """
    if data[0] != _STREAM:
        return rows_of_chunks([data])[0]
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def rows_of_chunks(
    chunks: Sequence[bytes], schema: pa.Schema | None = None
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Returns the rows of chunks of any version, one chunk after the other, and how many each has (int64).

    Args:
        chunks: one at least.
        schema: user columns of the rows: those that a chunk of before has not are null. None: as they are.

    Raises:
        pyarrow.ArrowInvalid: as for :func:`rows_of_chunk`, or they have different columns.
        StateMismatchError: see :func:`rows_of_chunk`.
    """
    found, counts = list[pa.RecordBatch](), list[np.ndarray]()
    for run in _alike(chunks):
        if run[0][0] == _STREAM:
            batches = [rows_of_chunk(data) for data in run]
            found += batches
            counts.append(np.array([batch.num_rows for batch in batches], dtype=np.int64))
        else:
            batch, own = _rows_of_run(run)
            found.append(batch)
            counts.append(own)
    if schema is not None and any(user_columns(batch.schema) != schema.names for batch in found):
        found = [_with_columns(batch, schema) for batch in found]
    return found[0] if len(found) == 1 else pa.concat_batches(found), np.concatenate(counts)


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with these user columns: the job may have had others when they were kept."""
    fields = [*schema, *(field for field in batch.schema if field.name in SYSTEM_COLUMNS)]
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in fields
    ]
    fields = [field.with_nullable(field.name not in SYSTEM_COLUMNS) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _alike(chunks: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Runs of chunks of one version and schema."""
    run, head = list[bytes](), b""
    for data in chunks:
        if run and not data.startswith(head):
            yield run
            run = []
        if not run:
            head = data[:1] if data[0] == _STREAM else data[: _head_bytes(data)]
        run.append(data)
    yield run


def _head_bytes(data: bytes) -> int:
    if data[0] != CHUNK_VERSION:
        raise StateMismatchError(
            f"rows of a window have format version {data[0]}, this program reads up to {CHUNK_VERSION}"
        )
    return _HEAD_BYTES + int.from_bytes(data[1:_HEAD_BYTES], "little")


def _rows_of_run(run: Sequence[bytes]) -> tuple[pa.RecordBatch, np.ndarray]:
    head = _head_bytes(run[0])
    schema = _schema_of(run[0][_HEAD_BYTES:head])
    data: np.ndarray = np.frombuffer(b"".join(run), dtype=np.uint8)
    firsts = _sums_before(_array(map(len, run), len(run))) + head
    counts = _integers_at(data, firsts)
    # Of each row the place of its length.
    before = np.repeat(_sums_before(counts), counts)
    places = np.repeat(firsts + _LENGTH_BYTES, counts) + _LENGTH_BYTES * (np.arange(len(before)) - before)
    lengths = _integers_at(data, places)
    rows = np.repeat(firsts + _LENGTH_BYTES * (1 + counts), counts)
    starts = rows + _sums_before(lengths)
    starts -= np.repeat(np.concatenate([[0], np.cumsum(lengths)])[_sums_before(counts)], counts)
    columns = RowCodec(schema.types).decode(data, starts)
    return pa.RecordBatch.from_arrays(columns, schema=schema), counts


def _array(values: Iterable[int], count: int) -> np.ndarray:
    return np.fromiter(values, dtype=np.int64, count=count)


def _sums_before(values: np.ndarray) -> np.ndarray:
    before: np.ndarray = np.cumsum(values) - values
    return before


def _integers_at(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Integers of 4 bytes, at any places; int64."""
    found = np.ascontiguousarray(data[places[:, None] + np.arange(_LENGTH_BYTES)]).view("<u4")
    integers: np.ndarray = found[:, 0].astype(np.int64)
    return integers


@lru_cache(maxsize=256)
def _head_of(schema: pa.Schema) -> bytes:
    data: bytes = schema.serialize().to_pybytes()
    return bytes([CHUNK_VERSION]) + len(data).to_bytes(_LENGTH_BYTES, "little") + data


@lru_cache(maxsize=256)
def _schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))
