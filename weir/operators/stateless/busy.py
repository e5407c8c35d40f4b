"""The operator that uses CPU: a stand-in for costly user code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from weir.author.operator import Operator
from weir.kernels.declare import kernel
from weir.specs import BusySpec

#: Work between two outputs: rows are handed on in pieces of this length at most, never less than a row.
PIECE_US_MAX = 1_000

_CLOCK_THREAD_CPUTIME_ID = 3
_NS_PER_MS = 1_000_000
#: Rounds of arithmetic between two looks at the clock; about 2 µs.
_ROUNDS = 1_000

_types: Any = numba.types
_external: Any = numba.types.ExternalFunction

#: The C library's function; Numba resolves it by name, which, unlike a ctypes pointer, can be cached on disk.
_clock_gettime = _external("clock_gettime", _types.int32(_types.int32, _types.CPointer(_types.int64)))


@kernel(_types.int64(_types.int64, _types.Array(_types.int64, 1, "C")))
def burn(target_ns: int, scratch: np.ndarray) -> int:
    """Use CPU time of this thread, without the GIL.

    Args:
        target_ns: CPU time to use, in ns.
        scratch: int64, shape (3,): two words for the clock, one for the arithmetic.

    Returns:
        CPU time used, in ns; a little more than asked for.
    """
    _clock_gettime(_CLOCK_THREAD_CPUTIME_ID, scratch.ctypes)
    start = scratch[0] * 1_000_000_000 + scratch[1]
    used = 0
    value = scratch[2] | 1
    while used < target_ns:
        for _ in range(_ROUNDS):
            value ^= value << 13
            value ^= value >> 7
            value ^= value << 17
        scratch[2] = value
        _clock_gettime(_CLOCK_THREAD_CPUTIME_ID, scratch.ctypes)
        used = scratch[0] * 1_000_000_000 + scratch[1] - start
    return used


class CpuBurner:
    """Uses given amounts of CPU time; what one call uses too much, the next ones use less."""

    def __init__(self) -> None:
        self._scratch = np.ones(3, dtype=np.int64)
        self._debt_ns = 0

    def burn_ms(self, load_ms: float) -> None:
        """Use this much CPU time of the calling thread, on average over calls."""
        self._debt_ns += int(load_ms * _NS_PER_MS)
        if self._debt_ns > 0:
            self._debt_ns -= int(burn(self._debt_ns, self._scratch))


class BusyOperator(Operator):
    """Uses ``load_ms`` of CPU per row, and hands on each piece of a batch as soon as it is done."""

    def __init__(self, spec: BusySpec) -> None:
        self._load_ms = spec.load_ms
        self._burner = CpuBurner()

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows unchanged, in pieces if they take time."""
        if self._load_ms <= 0:
            yield batch
            return
        piece_rows = max(1, int(PIECE_US_MAX / (self._load_ms * 1000)))
        for start in range(0, batch.num_rows, piece_rows):
            piece = batch.slice(start, piece_rows)
            self._burner.burn_ms(self._load_ms * piece.num_rows)
            yield piece
