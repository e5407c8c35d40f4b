"""The bytes of a state key: key group, state id, namespace, user key.

========  =====================  ======================================================================
bytes     field                  notes
========  =====================  ======================================================================
2         key group              big endian, so that a group is one contiguous range
2         state id               big endian, number of the operator's state in the job
1         namespace length       0 to 255; a length prefix keeps (namespace, key) pairs apart
n         namespace              empty, or a window
rest      user key               ``weir.keys.hashing`` form
========  =====================  ======================================================================

This is a persisted format: a change needs a new store format version in ``weir.state.stores.directory_lock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

KEY_GROUP_MAX = 0xFFFF
STATE_ID_MAX = 0xFFFF
NAMESPACE_BYTES_MAX = 0xFF

_HEADER_BYTES = 5
#: Bytes before the user key of an entry without a namespace.
NO_NAMESPACE_HEADER_BYTES = _HEADER_BYTES
#: The key group of a state key, as its two bytes.
GROUP_OF = itemgetter(slice(0, 2))


@dataclass(frozen=True, slots=True)
class StateKey:
    """A decoded state key."""

    key_group: int
    state_id: int
    namespace: bytes
    user_key: bytes


def encode_key(key_group: int, state_id: int, user_key: bytes, namespace: bytes = b"") -> bytes:
    """The bytes of one state key.

    Raises:
        ValueError: a field does not fit.
    """
    return key_prefix(key_group, state_id, namespace) + user_key


def key_prefix(key_group: int, state_id: int, namespace: bytes = b"") -> bytes:
    """What all keys of one state, group and namespace start with.

    Raises:
        ValueError: a field does not fit.
    """
    if not 0 <= key_group <= KEY_GROUP_MAX:
        raise ValueError(f"key group {key_group} is not in 0..{KEY_GROUP_MAX}")
    if len(namespace) > NAMESPACE_BYTES_MAX:
        raise ValueError(f"a namespace of {len(namespace)} bytes is longer than {NAMESPACE_BYTES_MAX}")
    return state_prefix(key_group, state_id) + bytes([len(namespace)]) + namespace


def encode_keys(key_groups: np.ndarray, state_id: int, user_keys: Sequence[bytes]) -> list[bytes]:
    """State keys with an empty namespace, in the order given; ``key_groups`` is integer, shape (keys,)."""
    prefixes = {int(group): key_prefix(int(group), state_id) for group in np.unique(key_groups)}
    return [prefixes[group] + key for group, key in zip(key_groups.tolist(), user_keys, strict=True)]


def decode_key(key: bytes) -> StateKey:
    """The fields of a state key.

    Raises:
        ValueError: the bytes are too short to be one.
    """
    namespace_end = _HEADER_BYTES + key[4] if len(key) >= _HEADER_BYTES else _HEADER_BYTES
    if len(key) < namespace_end:
        raise ValueError(f"{key.hex()} is not a state key: it ends within its header")
    return StateKey(
        key_group=int.from_bytes(key[0:2], "big"),
        state_id=int.from_bytes(key[2:4], "big"),
        namespace=key[_HEADER_BYTES:namespace_end],
        user_key=key[namespace_end:],
    )


def state_prefix(key_group: int, state_id: int) -> bytes:
    """What all keys of one state start with within one group, whatever their namespace.

    Raises:
        ValueError: the state id does not fit.
    """
    if not 0 <= state_id <= STATE_ID_MAX:
        raise ValueError(f"state id {state_id} is not in 0..{STATE_ID_MAX}")
    return key_group.to_bytes(2, "big") + state_id.to_bytes(2, "big")
