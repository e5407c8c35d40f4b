"""The bytes of a key's accumulators in the store. A promise: the tests have golden bytes.

=====================  =============================================================================
1                      format version, now 1
ceil(cells / 8)        presence: bit ``i % 8`` of byte ``i // 8`` says that cell i has had a value
8 for each cell        int64 or float64, little endian
=====================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weir.errors import StateMismatchError
from weir.state.packed import pack_values

FORMAT_VERSION = 1
_VERSION_BYTE = bytes([FORMAT_VERSION])


def presence_bytes(cell_count: int) -> int:
    """Bytes of the presence bits."""
    return (cell_count + 7) // 8


def value_bytes(cell_count: int) -> int:
    """Length of one value."""
    return 1 + presence_bytes(cell_count) + 8 * cell_count


def encode_values(cells: np.ndarray, presence: np.ndarray) -> bytes:
    """The values of several keys, one after the other; see :func:`encode_rows`."""
    return encode_rows(cells, presence).tobytes()


def encode_rows(cells: np.ndarray, presence: np.ndarray) -> np.ndarray:
    """The values of several keys, uint8, shape (keys, value_bytes).

    Args:
        cells: int64 (or the bits of float64), shape (keys, cells).
        presence: uint8, shape (keys, presence_bytes).
    """
    keys, cell_count = cells.shape
    split = 1 + presence_bytes(cell_count)
    out = np.empty((keys, value_bytes(cell_count)), dtype=np.uint8)
    out[:, 0] = FORMAT_VERSION
    out[:, 1:split] = presence
    out[:, split:] = np.ascontiguousarray(cells, dtype="<i8").view(np.uint8).reshape(keys, -1)
    return out


def encode_one(cells: np.ndarray, presence: np.ndarray) -> bytes:
    """As :func:`encode_values` of one key, in a tenth of the time; shapes (cells,) and (presence_bytes,)."""
    return _VERSION_BYTE + presence.tobytes() + cells.astype("<i8", copy=False).tobytes()


def decode_one(value: bytes, cell_count: int) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`decode_values` of one value, in a tenth of the time, and into arrays that can be written.

    Raises:
        StateMismatchError: it has another length or format version.
    """
    if len(value) != value_bytes(cell_count) or value[0] != FORMAT_VERSION:
        return decode_values([value], cell_count)
    split = 1 + presence_bytes(cell_count)
    # Copies, since kernels take no array that cannot be written or does not lie at a multiple of 8 bytes.
    cells = np.frombuffer(value, "<i8", offset=split).reshape(1, cell_count).copy()
    return cells, np.frombuffer(value, np.uint8, split - 1, 1).reshape(1, -1).copy()


def decode_values(values: Sequence[bytes], cell_count: int) -> tuple[np.ndarray, np.ndarray]:
    """``cells`` (int64) and ``presence`` (uint8) of several values, shaped as for :func:`encode_rows`.

    Values that were written before aggregates were added have fewer cells: the last ones are without a value then.

    Raises:
        StateMismatchError: a value has another length or format version.
    """
    _, rows = pack_padded(values, cell_count)
    return decode_rows(rows, cell_count)


def decode_rows(rows: np.ndarray, cell_count: int) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`decode_values`, of uint8, shape (keys, value_bytes).

    Raises:
        StateMismatchError: a value has another format version.
    """
    if rows.size and (rows[:, 0] != FORMAT_VERSION).any():
        found = int(rows[rows[:, 0] != FORMAT_VERSION, 0][0])
        raise StateMismatchError(
            f"a stored accumulator has format version {found}, this program reads {FORMAT_VERSION}; "
            "use the program that wrote it or start from an empty store"
        )
    split = 1 + presence_bytes(cell_count)
    cells = np.ascontiguousarray(rows[:, split:]).view("<i8")
    return cells, np.ascontiguousarray(rows[:, 1:split])


def padded(value: bytes, cell_count: int) -> bytes:
    """A value with fewer cells, with more that are without a value; any other as it is."""
    size = value_bytes(cell_count)
    if len(value) >= size:
        return value
    # As many as have room: 8 cells and their byte of presence take 65 bytes.
    found = (len(value) - 1) * 8 // 65
    if value_bytes(found) != len(value) or not found:
        return value
    split, more = presence_bytes(found), presence_bytes(cell_count) - presence_bytes(found)
    return value[: 1 + split] + bytes(more) + value[1 + split :] + bytes(8 * (cell_count - found))


def pack_padded(values: Sequence[bytes | None], cell_count: int) -> tuple[np.ndarray, np.ndarray]:
    """As ``packed.pack_values``, of values some of which have fewer cells; see :func:`decode_values`.

    Raises:
        StateMismatchError: a value has another length.
    """
    size = value_bytes(cell_count)
    found = [value for value in values if value is not None]
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    if (lengths == size).all():
        return pack_values(values, size)
    rows = np.zeros((len(found), size), dtype=np.uint8)
    split = 1 + presence_bytes(cell_count)
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        if len(padded(found[at[0]], cell_count)) != size:
            # Refuses them.
            return pack_values(values, size)
        own = np.frombuffer(b"".join(found[row] for row in at.tolist()), np.uint8).reshape(len(at), length)
        own_split = 1 + presence_bytes((length - 1) * 8 // 65)
        rows[at, :own_split] = own[:, :own_split]
        rows[at, split : split + length - own_split] = own[:, own_split:]
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return present, rows


def pack_mixed(
    values: Sequence[bytes | None], cell_count: int, other_count: int
) -> tuple[np.ndarray, np.ndarray]:
    """As ``packed.pack_values``, of values some of which have another number of cells (both at most 8).

    Missing cells are without a value; those too many are left out.

    Raises:
        StateMismatchError: a value has neither length, or another format version.
    """
    present = np.array([value is not None for value in values], dtype=np.bool_)
    found = [value for value in values if value is not None]
    sizes = np.fromiter(map(len, found), np.int64, len(found))
    is_other = sizes == value_bytes(other_count)
    rows = np.zeros((len(found), value_bytes(cell_count)), dtype=np.uint8)
    _, own = pack_values(
        [v for v, other in zip(found, is_other.tolist(), strict=True) if not other], rows.shape[1]
    )
    rows[~is_other] = own
    others = [value for value, other in zip(found, is_other.tolist(), strict=True) if other]
    if others:
        cells, presence = decode_values(others, other_count)
        shared = min(cell_count, other_count)
        kept = np.zeros((len(others), cell_count), dtype=np.int64)
        kept[:, :shared] = cells[:, :shared]
        rows[is_other] = encode_rows(kept, presence & ((1 << shared) - 1))
    return present, rows
