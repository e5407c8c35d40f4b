"""Keys of maps from their bytes as columns, without an object for each key; ``map_keys`` has the form of the bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from weir.keys.hashing import KeyColumn
from weir.keys.key_kernels import gather_bytes, read_integers
from weir.state.types.declared import TEXT
from weir.state.types.value_types import IntegerType, ValueType


class KeyBytes:
    """The bytes of some keys, each after ``skipped`` bytes that say whose it is."""

    def __init__(self, keys: Sequence[bytes], skipped: int) -> None:
        column = KeyColumn.from_list(keys)
        self._data = column.data
        self._starts, self._stops = column.offsets[:-1] + skipped, column.offsets[1:]

    def column(self, part: ValueType, place: slice, *, is_escaped: bool) -> pl.Series | None:
        """One part of each key; None: it is to be decoded key by key.

        Args:
            part: of the keys, its type.
            place: where it is; what is negative counts from the end of a key.
            is_escaped: a zero within text has another byte behind it.
        """
        begins = (self._stops if place.start < 0 else self._starts) + place.start
        if isinstance(part, IntegerType) and part.cell_kind == "i":
            integers = np.empty(len(begins), dtype=np.int64)
            read_integers(self._data, begins, integers)
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
