"""The compiled loop that tells every version of the first rows of keys; called by ``top`` only."""

from __future__ import annotations

from typing import Any

from numba import types

from weir.kernels.declare import kernel
from weir.rows.change_codes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE


def _input(dtype: Any) -> Any:
    return types.Array(dtype, 1, "C", readonly=True, aligned=False)


#: Untyped, for ``UniTuple``.
_types: Any = types
_I64, _OUT_I64, _OUT_U8 = _input(types.int64), types.int64[::1], types.uint8[::1]


@kernel(
    _types.UniTuple(types.int64, 2)(
        *(types.int64, _I64, _I64, _I64, types.int64, types.boolean, types.boolean),
        *(_I64, _OUT_I64, _OUT_I64, _OUT_I64, _OUT_I64, _OUT_U8, _OUT_I64),
    )
)
def top_versions(
    first: Any,
    rows: Any,
    keys: Any,
    orders: Any,
    rows_max: Any,
    prefers_later: Any,
    tells_places: Any,
    starts: Any,
    sizes: Any,
    top: Any,
    out_rows: Any,
    out_causes: Any,
    out_changes: Any,
    out_places: Any,
) -> tuple[int, int]:
    """Let rows enter the first rows of their keys, each as if it came alone, as long as there is room to tell it.

    Args:
        first: which of the rows is the first to enter.
        rows: their numbers in ``orders``.
        keys: position of each one's key.
        orders: of stored and new rows, the highest go first.
        rows_max: of a key.
        prefers_later: of rows of one order, the later one goes first.
        tells_places: each place that changes is told, and not only which rows leave and enter.
        starts: by key: where its rows are in ``top``.
        sizes: by key: how many it has; changed.
        top: numbers of the first rows of each key; changed.
        out_rows: gets numbers of rows that are told; has room for ``2 * rows_max`` at least,
        out_causes: which of the rows each of them is told because of,
        out_changes: what is told of it,
        out_places: and its place, from 0 on.

    Returns:
        The row that is the next to enter, and how many are told.
    """
    count = 0
    for at in range(first, rows.size):
        if count + 2 * rows_max > out_rows.size:
            return at, count
        row, key = rows[at], keys[at]
        start, size = starts[key], sizes[key]
        order = orders[row]
        place = size
        while place > 0:
            other = orders[top[start + place - 1]]
            if order < other or (order == other and not prefers_later):
                break
            place -= 1
        if place == rows_max:
            continue
        grows = size < rows_max
        if not tells_places and not grows:
            out_rows[count], out_causes[count] = top[start + size - 1], at
            out_changes[count], out_places[count] = DELETE, size - 1
            count += 1
        came, last = row, size + 1 if grows else size
        for spot in range(place, last):
            was = top[start + spot]
            if tells_places and spot < size:
                out_rows[count], out_causes[count] = was, at
                out_changes[count], out_places[count] = UPDATE_BEFORE, spot
                count += 1
            if tells_places or spot == place:
                is_update = tells_places and spot < size
                out_rows[count], out_causes[count] = came, at
                out_changes[count], out_places[count] = UPDATE_AFTER if is_update else INSERT, spot
                count += 1
            top[start + spot] = came
            came = was
        sizes[key] = last
    return rows.size, count
