"""What the compiled loops of the slot table share: bits, places of counters, types of arrays, and how a hash is read.

An index entry is ``(lower 32 bits of the hash) << 32 | slot + 1``; 0 is free.

The kernels take these arrays one by one: as one named tuple they made a probe 10 % slower (60 us for 32,768 rows).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.declare import kernel_part

#: Bits of ``flags[slot]``.
USED, DIRTY = 1, 2
#: A counter of two bits: how often the hand of the clock passes a slot by. See ``select_victims``.
USE, USES_MAX = 4, 12
#: Positions in ``counters``.
LIVE, FREE, ARENA_USED, LIVE_KEY_BYTES, HAND, NEW = range(6)
COUNTERS = 6

LOW_32 = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
ONE = np.uint64(1)


@kernel_part
def group_of(value: Any, groups: Any) -> Any:
    """As ``weir.keys.hashing.key_groups``."""
    return ((value >> SHIFT) * np.uint64(groups)) >> SHIFT
