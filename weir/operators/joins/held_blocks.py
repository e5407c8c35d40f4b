"""Blocks of rows that a join holds: many rows of one key group and side as bytes; ``recent_rows`` says what for.

A block is ``01``, the version, and rows (``recent_kernels``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weir.errors import StateMismatchError
from weir.keys import hashing as weir_keys
from weir.keys import key_kernels
from weir.operators.joins import recent_kernels as kernels
from weir.operators.joins.held_rows import HeldRows

VERSION = b"\x01"


def rows_by_group(rows: HeldRows, chosen: np.ndarray, groups: int) -> Iterator[tuple[int, bytes, int]]:
    """Some of these rows by key group: the group, their bytes, and the last time at which one can match."""
    if not len(chosen):
        return
    own = weir_keys.key_groups(rows.hashes[chosen], groups)
    order = np.argsort(own, kind="stable")
    chosen, own = chosen[order], own[order]
    _, keys, key_offsets = rows.key_columns()
    times, lower, until = rows.times, rows.lower, rows.until
    lengths = np.diff(key_offsets)[chosen] + np.diff(rows.offsets)[chosen] + kernels.HEAD_BYTES
    offsets = np.zeros(len(chosen) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.encode_rows(chosen, keys, key_offsets, times, lower, until, rows.data, rows.offsets, offsets, out)
    starts = np.flatnonzero(np.diff(own.astype(np.int64), prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(chosen)], strict=True):
        value = out[offsets[start] : offsets[stop]].tobytes()
        yield int(own[start]), value, int(until[chosen[start:stop]].max())


def side_of_block(key: bytes) -> int:
    """Return the side that a block's rows are of, from its state key."""
    return key[-9]


def decoded_blocks(values: Sequence[bytes]) -> tuple[HeldRows, np.ndarray]:
    """The rows of some blocks, one after the other, and with which row each begins, int64, shape (blocks + 1,).

    Together, since the calls for each of hundreds of blocks take longer than their rows.

    Raises:
        StateMismatchError: one is of another version, or cut off.
    """
    for value in values:
        if value[:1] != VERSION:
            raise StateMismatchError(
                f"a block of rows of a join has format version {value[:1].hex()}, this program reads {VERSION.hex()}"
            )
    ends = np.cumsum([0, *(len(value) - 1 for value in values)])
    data = np.frombuffer(b"".join(memoryview(value)[1:] for value in values), dtype=np.uint8)
    most = len(data) // kernels.HEAD_BYTES
    starts, key_lengths = np.empty(most + 1, dtype=np.int64), np.empty(most, dtype=np.int64)
    times, lower, until = (np.empty(most, dtype=np.int64) for _ in range(3))
    count = kernels.decode_rows(data, starts, key_lengths, times, lower, until)
    firsts = np.searchsorted(starts[: max(count, 0) + 1], ends)
    if count < 0 or (starts[firsts] != ends).any():
        raise StateMismatchError("a block of rows of a join is cut off or is something else")
    key_starts = starts[:count] + kernels.HEAD_BYTES
    column_starts = key_starts + key_lengths[:count]
    keys = weir_keys.KeyColumn(*_gathered(data, key_starts, key_lengths[:count]))
    columns = _gathered(data, column_starts, starts[1 : count + 1] - column_starts)
    hashes = weir_keys.hash_keys(keys)
    return HeldRows(hashes, keys, times[:count], lower[:count], until[:count], *columns), firsts


def _gathered(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that begin at these places, one after the other, and where each is then."""
    offsets = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    key_kernels.gather_bytes(data, starts, offsets, out)
    return out, offsets
