"""Times of stored entries of states with a TTL, as ``weir.state.tables.expiry`` describes their bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from weir.state.types import STAMP_BYTES, STAMPED

#: Stands for the time of an undated entry.
UNDATED = -(2**63)
STAMP = struct.Struct("<q")
#: See ``weir.state.tables.cells.accumulators``.
_TIMED_CELLS = np.dtype([("version", "u1"), ("presence", "u1"), ("value", "<i8"), ("time", "<i8")])


def cell_stamps(values: Sequence[bytes]) -> np.ndarray:
    """The times of stored values of a state whose last of two cells is the time; those of one cell are undated."""
    sizes = set(map(len, values))
    timed = _TIMED_CELLS.itemsize
    if sizes == {timed}:
        rows = np.frombuffer(b"".join(values), dtype=_TIMED_CELLS)
        return np.where(rows["presence"] & 2, rows["time"], UNDATED)
    stamps = np.full(len(values), UNDATED, dtype=np.int64)
    at = [index for index, value in enumerate(values) if len(value) == timed]
    if at:
        stamps[at] = cell_stamps([values[index] for index in at])
    return stamps


def value_stamps(values: Sequence[bytes]) -> np.ndarray:
    """The times of stored values of any length."""
    undated = STAMP.pack(UNDATED)
    stamps = b"".join([value[1:STAMP_BYTES] if value[:1] == STAMPED else undated for value in values])
    return np.frombuffer(stamps, dtype="<i8").astype(np.int64)
