"""Names of the Numba types in kernels' signatures."""

from __future__ import annotations

from typing import Any

import numba

#: Untyped, because numba types only a part of it.
TYPES: Any = numba.types

INT = TYPES.int64
BOOL = TYPES.boolean
#: Flat arrays: uint8, int32, int64, float64; and a table of int64.
BYTES = TYPES.Array(TYPES.uint8, 1, "C")
OFFSETS = TYPES.Array(TYPES.int32, 1, "C")
INTS = TYPES.Array(TYPES.int64, 1, "C")
FLOATS = TYPES.Array(TYPES.float64, 1, "C")
INTS_2D = TYPES.Array(TYPES.int64, 2, "C")


def input_array(dtype: Any, dimensions: int = 1) -> Any:
    """Return the type of an array that a kernel only reads: also one that lies where Arrow has put it."""
    return TYPES.Array(dtype, dimensions, "C", readonly=True, aligned=False)
