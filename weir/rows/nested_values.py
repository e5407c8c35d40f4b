"""Values of nested types (lists, structs, maps) and decimals as bytes: rows that are kept hold them so.

This is a persisted format: an Arrow IPC message of a batch with this one column and row, without its schema.
"""

from __future__ import annotations

import pyarrow as pa

from weir.errors import StateError


def packed_values(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return each value of a column of type ``dtype`` as a message, large_binary; null stays null."""
    if array.type != dtype:
        array = array.cast(dtype)
    # Bytes that lie under nulls are anything; equal values have equal messages: those that are taken have zeros there.
    array = array.take(pa.array(range(len(array)), pa.int64()))
    schema = pa.schema([pa.field("", dtype)])
    messages: list[bytes | None] = []
    for row in range(len(array)):
        one = array.slice(row, 1)
        if one.null_count:
            messages.append(None)
        else:
            # A copy: a slice would be sent with all that its buffers hold.
            own = pa.concat_arrays([one])
            messages.append(pa.RecordBatch.from_arrays([own], schema=schema).serialize().to_pybytes())
    return pa.array(messages, type=pa.large_binary())


def unpacked_values(packed: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The values again.

    Raises:
        StateError: the bytes are no value of this type.
    """
    schema = pa.schema([pa.field("", dtype)])
    parts = []
    try:
        for message in packed.to_pylist():
            parts.append(
                pa.nulls(1, dtype)
                if message is None
                else pa.ipc.read_record_batch(pa.py_buffer(message), schema).column(0)
            )
    except (pa.ArrowInvalid, OSError) as error:
        raise StateError(
            f"a row that was kept has no value of type {dtype} where one is due: {error}"
        ) from error
    return pa.concat_arrays(parts) if parts else pa.nulls(0, dtype)
