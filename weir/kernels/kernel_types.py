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


def _input(dtype: Any, dimensions: int = 1) -> Any:
    return TYPES.Array(dtype, dimensions, "C", readonly=True, aligned=False)


#: Arrays that may be read-only and at any address; flat ones, and tables.
IN_U8, IN_U16, IN_U64, IN_I32, IN_I64, IN_F64 = map(
    _input, (TYPES.uint8, TYPES.uint16, TYPES.uint64, TYPES.int32, TYPES.int64, TYPES.float64)
)
IN_U8_2D, IN_I64_2D, IN_F64_2D = (_input(dtype, 2) for dtype in (TYPES.uint8, TYPES.int64, TYPES.float64))
#: Arrays that a kernel may write, likewise.
U8, U16, U32, U64 = TYPES.uint8[::1], TYPES.uint16[::1], TYPES.uint32[::1], TYPES.uint64[::1]
I32, I64, F64, MASK = TYPES.int32[::1], TYPES.int64[::1], TYPES.float64[::1], TYPES.boolean[::1]
U8_2D, U16_2D = TYPES.uint8[:, ::1], TYPES.uint16[:, ::1]
I32_2D, I64_2D, F64_2D = TYPES.int32[:, ::1], TYPES.int64[:, ::1], TYPES.float64[:, ::1]
