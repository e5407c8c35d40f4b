"""What the compiled loops of the slot table share: bits, places of counters, types of arrays, and how a hash is read.

An index entry is ``(lower 32 bits of the hash) << 32 | slot + 1``; 0 is free.

The kernels take these arrays one by one: as one named tuple they made a probe 10 % slower (60 us for 32,768 rows).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel_part
from weir.kernels.kernel_types import input_array

#: Bits of ``flags[slot]``.
USED, DIRTY = 1, 2
#: A counter of two bits: how often the hand of the clock passes a slot by. See ``select_victims``.
USE, USES_MAX = 4, 12
#: Positions in ``counters``.
LIVE, FREE, ARENA_USED, LIVE_KEY_BYTES, HAND, NEW = range(6)
COUNTERS = 6


#: One-dimensional inputs, which may be read-only and at any address.
IN_U8, IN_U64, IN_I32, IN_I64 = (
    input_array(dtype) for dtype in (types.uint8, types.uint64, types.int32, types.int64)
)
#: Arrays of the table, and results.
U8, U32, U64, I32, I64, U16 = (
    dtype[::1] for dtype in (types.uint8, types.uint32, types.uint64, types.int32, types.int64, types.uint16)
)
U8_2D, I64_2D = types.uint8[:, ::1], types.int64[:, ::1]
MASK = types.boolean[::1]
IN_I64_2D = types.Array(types.int64, 2, "C", readonly=True, aligned=False)
IN_U8_2D = types.Array(types.uint8, 2, "C", readonly=True, aligned=False)

LOW_32 = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
ONE = np.uint64(1)


@kernel_part
def group_of(value: Any, groups: Any) -> Any:
    """As ``weir.keys.hashing.key_groups``."""
    return ((value >> SHIFT) * np.uint64(groups)) >> SHIFT
