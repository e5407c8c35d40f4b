"""Compiled loops of running totals: panes enter, and leave again. Called by ``running_totals`` only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel
from weir.kernels.kernel_types import input_array

_SLOTS, _CELLS, _PRESENCE = input_array(types.int32), input_array(types.int64, 2), input_array(types.uint8, 2)


@kernel(types.int64(_SLOTS, _CELLS, _PRESENCE, types.int64[:, ::1], types.int32[:, ::1], types.int32[::1]))
def enter(slots: Any, cells: Any, presence: Any, totals: Any, counts: Any, panes: Any) -> int:
    """Add the entries of a pane to the totals at their slots; returns the cell that passed 64 bits, or -1.

    ``counts`` has for each cell in how many panes it has had a value, ``panes`` how many panes a key has.
    """
    for entry in range(slots.size):
        slot = slots[entry]
        panes[slot] += 1
        for cell in range(totals.shape[1]):
            total, value = totals[slot, cell], cells[entry, cell]
            added = total + value
            if ((total ^ added) & (value ^ added)) < 0:
                return cell
            totals[slot, cell] = added
            counts[slot, cell] += (presence[entry, cell >> 3] >> np.uint8(cell & 7)) & 1
    return -1


@kernel(types.void(_SLOTS, _CELLS, _PRESENCE, types.int64[:, ::1], types.int32[:, ::1], types.int32[::1]))
def leave(slots: Any, cells: Any, presence: Any, totals: Any, counts: Any, panes: Any) -> None:
    """Undo :func:`enter`."""
    for entry in range(slots.size):
        slot = slots[entry]
        panes[slot] -= 1
        for cell in range(totals.shape[1]):
            totals[slot, cell] -= cells[entry, cell]
            counts[slot, cell] -= (presence[entry, cell >> 3] >> np.uint8(cell & 7)) & 1


@kernel(types.void(_SLOTS, types.int32[:, ::1], types.uint8[:, ::1]))
def presence_of(slots: Any, counts: Any, presence: Any) -> None:
    """Bits of the cells that have had a value in some pane."""
    for entry in range(slots.size):
        for cell in range(counts.shape[1]):
            if counts[slots[entry], cell]:
                presence[entry, cell >> 3] |= np.uint8(1 << (cell & 7))
