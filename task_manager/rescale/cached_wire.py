"""Cached entries of a table in ``TakeCopyRequest``: cells as arrays, values of any length as bytes and lengths."""

from __future__ import annotations

import numpy as np

from weir.rpc import control_pb2
from weir.state.tables.cached_entries import (
    CachedPart,
    CachedValues,
    decode_cached_values,
    decode_entries,
)


def put_entries(request: control_pb2.TakeCopyRequest, piece: CachedPart) -> None:
    """Put entries into a request; :func:`entries_of` returns them again."""
    request.state_id = piece.state_id
    if isinstance(piece, CachedValues):
        lengths = [-1 if value is None else len(value) for value in piece.values]
        request.key_data = b"".join(piece.keys)
        request.key_lengths = np.array([len(key) for key in piece.keys], dtype="<i4").tobytes()
        request.value_data = b"".join(value for value in piece.values if value is not None)
        request.value_lengths = np.array(lengths, dtype="<i4").tobytes()
        return
    request.cell_count = piece.cells.shape[1]
    request.hashes = np.ascontiguousarray(piece.hashes, dtype="<u8").tobytes()
    request.key_data = piece.key_data.tobytes()
    request.key_lengths = np.ascontiguousarray(piece.key_lengths, dtype="<i4").tobytes()
    request.cells = np.ascontiguousarray(piece.cells, dtype="<i8").tobytes()
    request.presence = piece.presence.tobytes()


def entries_of(request: control_pb2.TakeCopyRequest) -> CachedPart | None:
    """What came; None: nothing but a word on the groups.

    Raises:
        HandshakeError: its arrays do not fit together.
    """
    if request.value_lengths:
        return decode_cached_values(
            request.state_id,
            key_data=request.key_data,
            key_lengths=request.key_lengths,
            value_data=request.value_data,
            value_lengths=request.value_lengths,
        )
    if not request.hashes:
        return None
    return decode_entries(
        request.state_id,
        request.cell_count,
        hashes=request.hashes,
        key_data=request.key_data,
        key_lengths=request.key_lengths,
        cells=request.cells,
        presence=request.presence,
    )
