"""Values of which the scanner notes the place only: numbers for a slower parser, and raw values of any type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.kernels.bytes import PADDING_BYTES, load8, store8
from weir.kernels.declare import byte_kernel
from weir.kernels.kernel_types import BYTES, INT, INTS, TYPES
from weir.operators.sources.json.json_scan import ENTRY_KIND, ENTRY_SLOT, KIND_FLOAT
from weir.operators.sources.json.json_strict import StrictDecoder

_BEFORE, _AFTER = b'{"v":', b"}\n"


@byte_kernel(TYPES.void(BYTES, INTS, INTS, INT, INT, BYTES, INTS))
def _gather(
    data: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    before: int,
    after: int,
    out: np.ndarray,
    offsets: np.ndarray,
) -> None:
    """Copy slices one after the other, with room before and after each; fills ``offsets``, one more than slices."""
    to = 0
    for index in range(len(starts)):
        offsets[index] = to
        to += before
        at = starts[index]
        length = stops[index] - at
        offset = 0
        while offset < length:
            store8(out, to + offset, load8(data, at + offset))
            offset += 8
        to += length + after
    offsets[len(starts)] = to


def _gathered(
    data: np.ndarray, late: np.ndarray, before: int = 0, after: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    starts, stops = np.ascontiguousarray(late[:, 2]), np.ascontiguousarray(late[:, 3])
    size = int((stops - starts).sum()) + len(late) * (before + after)
    out = np.empty(size + PADDING_BYTES, dtype=np.uint8)
    offsets = np.empty(len(late) + 1, dtype=np.int64)
    _gather(data, starts, stops, before, after, out, offsets)
    return out, offsets


def by_entry(late: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Late values (int64, shape (values, 4)) by entry, in their order; and where those of each of ``count`` begin.

    A look at all of them for each entry takes longer than their decoding, where there are many.
    """
    bounds = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(late[:, 0], minlength=count), out=bounds[1:])
    if np.diff(bounds).max(initial=0) == len(late):
        return late, bounds
    # NumPy sorts 16 bits without comparisons.
    entries = late[:, 0].astype(np.int16 if count < 1 << 15 else np.int64)
    return late[np.argsort(entries, kind="stable")], bounds


def gathered_texts(data: np.ndarray, late: np.ndarray) -> pa.Array:
    """Late values (int64, shape (values, 4)) as texts (large_string), in their order."""
    text, offsets = _gathered(data, late)
    return pa.Array.from_buffers(
        pa.large_string(), len(late), [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def put_late_numbers(
    data: np.ndarray, late: np.ndarray, table: np.ndarray, rows_max: int, decimals: np.ndarray
) -> None:
    """Parse the numbers among late values (int64, shape (values, 4)) into their cells, correctly rounded."""
    numbers = late[table[late[:, 0], ENTRY_KIND] == KIND_FLOAT]
    if not len(numbers):
        return
    array = gathered_texts(data, numbers)
    cells = table[numbers[:, 0], ENTRY_SLOT] * rows_max + numbers[:, 1]
    decimals[cells] = pc.cast(array, pa.float64()).to_numpy(zero_copy_only=False)


class RawValues:
    """Decodes values of one entry that are whole JSON texts: lists, and types that only pyarrow converts."""

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        schema = pa.schema([pa.field("v", data_type)])
        self._strict = StrictDecoder(schema, [], line_bytes_max=2**62)

    def decode(self, data: np.ndarray, late: np.ndarray, rows: int, good: np.ndarray) -> pa.Array:
        """The column; null where there is no value.

        Args:
            data: uint8, what was scanned.
            late: int64, shape (values, 4): entry, row, start, end.
            rows: length of the column.
            good: bool, shape (rows,); False is put where a value is not of the type.
        """
        if not len(late):
            return pa.nulls(rows, self.type)
        text, offsets = _gathered(data, late, len(_BEFORE), len(_AFTER))
        # Copies of eight bytes reach beyond their slices, so what is around these comes afterwards.
        for place, byte in enumerate(_BEFORE):
            text[offsets[:-1] + place] = byte
        for place, byte in enumerate(_AFTER):
            text[offsets[1:] - len(_AFTER) + place] = byte
        lines = np.zeros((len(late), 3), dtype=np.int64)
        lines[:, 0], lines[:, 1] = offsets[:-1], offsets[1:]
        decoded = self._strict.decode(text, lines, len(late))
        values = decoded.batch.column(0)
        row_of = late[decoded.line_indices, 1]
        if len(row_of) == rows:
            return values
        missing = np.ones(len(late), dtype=np.bool_)
        missing[decoded.line_indices] = False
        good[late[missing, 1]] = False
        places = np.full(rows, -1, dtype=np.int64)
        places[row_of] = np.arange(len(row_of))
        return values.take(pa.array(places, mask=places < 0))
