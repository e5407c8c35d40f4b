"""Compiled loop that numbers sessions; called by ``session_aggregates`` and ``session_entries`` only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel

_IN = types.Array(types.int64, 1, "C", readonly=True, aligned=False)


@kernel(types.int64(_IN, _IN, _IN, _IN, types.int64, types.int64[::1]))
def number_sessions(order: Any, key_of: Any, firsts: Any, lasts: Any, gap: Any, number: Any) -> int:
    """Number the sessions of entries, which ``order`` (int64) lists by key, then by their first time; returns how many.

    ``key_of``, ``firsts``, ``lasts`` and ``number`` are by entry.
    """
    count = 0
    key = np.int64(-1)
    last = np.int64(0)
    for entry in order:
        if key_of[entry] != key or firsts[entry] - last > gap:
            count += 1
            key = key_of[entry]
            last = lasts[entry]
        else:
            last = max(last, lasts[entry])
        number[entry] = count - 1
    return count
