"""Compiled loops of running totals: panes enter, and leave again. Called by ``running_totals`` only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel
from weir.kernels.kernel_types import I32, I32_2D, I64_2D, IN_I32, IN_I64_2D, IN_U8_2D, U8_2D


@kernel(types.int64(IN_I32, IN_I64_2D, IN_U8_2D, I64_2D, I32_2D, I32))
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


@kernel(types.void(IN_I32, IN_I64_2D, IN_U8_2D, I64_2D, I32_2D, I32))
def leave(slots: Any, cells: Any, presence: Any, totals: Any, counts: Any, panes: Any) -> None:
    """Undo :func:`enter`."""
    for entry in range(slots.size):
        slot = slots[entry]
        panes[slot] -= 1
        for cell in range(totals.shape[1]):
            totals[slot, cell] -= cells[entry, cell]
            counts[slot, cell] -= (presence[entry, cell >> 3] >> np.uint8(cell & 7)) & 1


@kernel(types.void(IN_I32, I32_2D, U8_2D))
def presence_of(slots: Any, counts: Any, presence: Any) -> None:
    """Bits of the cells that have had a value in some pane."""
    for entry in range(slots.size):
        for cell in range(counts.shape[1]):
            if counts[slots[entry], cell]:
                presence[entry, cell >> 3] |= np.uint8(1 << (cell & 7))
