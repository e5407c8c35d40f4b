"""Keys of maps from their bytes as columns, without an object for each key; ``weir.state.types.map_keys`` has the form.

Not a part of the types: it needs compiled loops, which who only declares a state need not load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from weir.keys.hashing import KeyColumn
from weir.keys.key_kernels import gather_bytes, read_integers
from weir.state.types.declared import TEXT
from weir.state.types.map_keys import MapKeyType
from weir.state.types.value_types import IntegerType, ValueType


def key_columns(key_type: MapKeyType, found: Sequence[bytes], skipped: int) -> list[pl.Series]:
    """Decode keys, of which each has ``skipped`` bytes before it; returns a column for each part of them."""
    raw = _Bytes(found, skipped)
    types, places = key_type.types, key_type.places
    columns = [
        raw.column(part, place, is_escaped=key_type.is_tuple)
        for part, place in zip(types, places or (), strict=places is not None)
    ]
    known = [column for column in columns if column is not None]
    if len(known) == len(types):
        return known
    rows = key_type.decode_many([key[skipped:] for key in found])
    listed: Sequence[Sequence[Any]] = [rows]
    if key_type.is_tuple:
        listed = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    return [pl.Series(values, dtype=part.dtype) for part, values in zip(types, listed, strict=True)]


class _Bytes:
    """The bytes of some keys, one after the other."""

    def __init__(self, keys: Sequence[bytes], skipped: int) -> None:
        column = KeyColumn.from_list(keys)
        self._data = column.data
        self._starts, self._stops = column.offsets[:-1] + skipped, column.offsets[1:]

    def column(self, part: ValueType, place: slice, *, is_escaped: bool) -> pl.Series | None:
        """Decode one part of each key; None: it is to be decoded key by key.

        Args:
            part: of the keys, its type.
            place: where it is; what is negative counts from the end of a key.
            is_escaped: a zero within text has another byte behind it.
        """
        begins = (self._stops if place.start < 0 else self._starts) + place.start
        if isinstance(part, IntegerType) and part.cell_kind == "i":
            integers = np.empty(len(begins), dtype=np.int64)
            read_integers(self._data, begins, integers)
            assert part.dtype is not None
            return pl.Series(integers).cast(part.dtype)
        if part is not TEXT:
            return None
        stop = place.stop
        ends = self._stops if stop is None else (self._stops if stop < 0 else self._starts) + stop
        offsets = np.zeros(len(begins) + 1, dtype=np.int64)
        np.cumsum(ends - begins, out=offsets[1:])
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        gather_bytes(self._data, begins, offsets, data)
        if is_escaped and not data.all():
            return None
        texts = pa.LargeStringArray.from_buffers(len(begins), pa.py_buffer(offsets), pa.py_buffer(data))
        return pl.Series(texts)
