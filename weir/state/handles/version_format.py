"""The bytes of one version of a value. A promise: the tests have golden bytes.

``01``, the time from which on it is in force (int64, little endian), then the value; no value: it was deleted.
"""

from __future__ import annotations

import struct

from weir.errors import StateMismatchError

_FORMAT = struct.Struct("<Bq")
_VERSION = 1


def pack_version(valid_from_ms: int, data: bytes) -> bytes:
    """The bytes of a version; ``data`` is empty if the value was deleted."""
    return _FORMAT.pack(_VERSION, valid_from_ms) + data


def unpack_version(data: bytes) -> tuple[int, bytes]:
    """From when on it is in force, and the value's bytes; empty: it was deleted.

    Raises:
        StateMismatchError: another version of Weir wrote it.
    """
    version, valid_from_ms = _FORMAT.unpack_from(data)
    if version != _VERSION:
        raise StateMismatchError(f"a stored version has format {version}, this program reads {_VERSION}")
    return valid_from_ms, data[_FORMAT.size :]


def is_gone_before(data: bytes, cut_ms: int) -> bool:
    """Whether it says that a value was deleted before that time."""
    valid_from_ms, value = unpack_version(data)
    return not value and valid_from_ms < cut_ms
