"""Store keys in the order of a time: what is due lies together, at the beginning of its key group.

A table has one of two orders. In a *key-first* one (values, lists, maps) all entries of a user key lie together::

    key group | state id | 00 | user key | position or map key

In a *time-first* one (timers; later windows and expiry) all entries of a time do: firing and expiry are ranges::

    key group | state id | 00 | time | user key

The time is a signed number of milliseconds in 8 bytes, big endian, with the sign bit flipped: bytes order as times do.
This is a persisted format; see ``weir.state.layout`` for what comes before the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from weir.state.layout import NO_NAMESPACE_HEADER_BYTES

_SIGN = 1 << 63
#: Where the time ends and the user key begins, in a store key.
TIME_STOP = NO_NAMESPACE_HEADER_BYTES + 8
_TIME = slice(NO_NAMESPACE_HEADER_BYTES, TIME_STOP)


def time_bytes(time_ms: int) -> bytes:
    """The 8 bytes of a time.

    Raises:
        OverflowError: it does not fit.
    """
    return (time_ms + _SIGN).to_bytes(8, "big")


def times_bytes(times_ms: np.ndarray) -> list[bytes]:
    """The 8 bytes of each of these times (int64)."""
    raw = (times_ms.astype(np.int64, copy=False).view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8").tobytes()
    return [raw[start : start + 8] for start in range(0, len(raw), 8)]


def time_of(key: bytes) -> int:
    """The time in a store key, ms."""
    return int.from_bytes(key[_TIME], "big") - _SIGN


def times_of(keys: Sequence[bytes]) -> np.ndarray:
    """The times in store keys, ms; int64, shape (keys,)."""
    raw = b"".join([key[_TIME] for key in keys])
    return (np.frombuffer(raw, dtype=">u8").astype(np.uint64) ^ np.uint64(_SIGN)).view(np.int64)


#: The user key in a store key. Called for each timer that fires: a function of Python takes three times as long.
user_key_of: Callable[[bytes], bytes] = itemgetter(slice(TIME_STOP, None))
#: What entries of several key groups are sorted by, in a store key: time, then user key.
order_of: Callable[[bytes], bytes] = itemgetter(slice(NO_NAMESPACE_HEADER_BYTES, None))
