"""Keys: row -> canonical bytes -> stable 64-bit hash -> key group -> subtask. Vectorised, without the GIL.

Called by exchanges (to split a batch by subtask) and keyed operators (to find state). Hash and group decide
where state lives, so both are promises: golden values in ``tests/weir/test_keys.py``. Importing this module
loads compiled loops from the disk cache (0.4 s), or compiles them once per machine (3 s).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weir.keys import key_kernels as kernels
from weir.keys.decoding import decode_keys
from weir.keys.encoding import NULL_KEY, KeyColumn, check_key_type, key_bytes, plain_key_bytes
from weir.types import MAX_PARALLELISM_MAX

__all__ = [
    "NULL_KEY",
    "KeyColumn",
    "check_key_type",
    "decode_keys",
    "distinct_keys",
    "hash_key",
    "hash_keys",
    "key_bytes",
    "key_groups",
    "partition_hashes",
    "plain_key_bytes",
    "select_keys",
]

_SUBTASKS_MAX = 1 << 16


def hash_keys(keys: KeyColumn) -> np.ndarray:
    """XXH64 with seed 0 of every key's bytes; uint64, shape (rows,)."""
    hashes = np.empty(len(keys), dtype=np.uint64)
    if keys.integers is not None:
        kernels.hash_integers(keys.integers, hashes)
    else:
        kernels.hash_bytes(keys.data, keys.offsets, hashes)
    return hashes


def hash_key(key: bytes) -> np.uint64:
    """As :func:`hash_keys` of one key, without letting go of the GIL."""
    return np.uint64(kernels.hash_one(np.frombuffer(key, dtype=np.uint8)))


def distinct_keys(hashes: np.ndarray, keys: KeyColumn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows have the same key; 20 ns a row.

    Args:
        hashes: of :func:`hash_keys`, uint64, shape (rows,).
        keys: of the same rows.

    Returns:
        First and last row of each distinct key, in the order in which they come first, and for each row the position of
        its key among them; all int64.
    """
    rows = len(hashes)
    table = np.zeros(1 << (2 * rows).bit_length(), dtype=np.uint32)
    inverse, firsts, lasts = (np.empty(rows, dtype=np.int64) for _ in range(3))
    count = kernels.distinct_keys(hashes, keys.data, keys.offsets, table, inverse, firsts, lasts)
    return firsts[:count], lasts[:count], inverse


def select_keys(keys: KeyColumn, rows: np.ndarray) -> KeyColumn:
    """The keys of these rows (int64)."""
    starts = np.asarray(keys.offsets[:-1][rows], dtype=np.int64)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(keys.offsets[1:][rows] - starts, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.gather_bytes(keys.data, starts, offsets, data)
    return KeyColumn(data, offsets)


def joined_keys(columns: Sequence[KeyColumn]) -> KeyColumn:
    """All keys of these, one after the other."""
    data, lengths = [np.empty(0, dtype=np.uint8)], [np.empty(0, dtype=np.int64)]
    for keys in columns:
        if len(keys):
            data.append(keys.data[int(keys.offsets[0]) : int(keys.offsets[-1])])
            lengths.append(np.diff(keys.offsets).astype(np.int64))
    offsets = np.zeros(sum(map(len, lengths)) + 1, dtype=np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return KeyColumn(np.concatenate(data), offsets)


def key_groups(hashes: np.ndarray, max_parallelism: int) -> np.ndarray:
    """The key group of each hash; uint16, shape (rows,), ``0 <= group < max_parallelism``.

    The upper 32 bits, scaled: ``(hash >> 32) * max_parallelism >> 32``. So the lower bits stay independent of
    the group, for hash tables within a group.

    Raises:
        ValueError: ``max_parallelism`` is not in 1..4096.
    """
    if not 1 <= max_parallelism <= MAX_PARALLELISM_MAX:
        raise ValueError(f"max_parallelism is {max_parallelism}; it must be in 1..{MAX_PARALLELISM_MAX}")
    groups = np.empty(len(hashes), dtype=np.uint16)
    kernels.groups_of_hashes(hashes, max_parallelism, groups)
    return groups


def partition_hashes(
    hashes: np.ndarray, group_to_subtask: np.ndarray, subtask_count: int, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sort row numbers by destination, stable, so that rows of one key keep their order.

    Args:
        hashes: uint64, shape (all rows,).
        group_to_subtask: int32, shape (max_parallelism,), values below ``subtask_count``.
        subtask_count: number of destinations; one may get no row.
        rows: numbers of the rows that count; int64, shape (rows,). None: all.

    Returns:
        ``order``, uint32, shape (rows,), and ``offsets``, int64, shape (subtask_count + 1,): the rows of
        subtask s are ``order[offsets[s]:offsets[s + 1]]``.

    Raises:
        ValueError: a destination is out of range.
    """
    if not 1 <= subtask_count <= _SUBTASKS_MAX:
        raise ValueError(f"subtask_count is {subtask_count}; it must be in 1..{_SUBTASKS_MAX}")
    positions = np.zeros(subtask_count + 2, dtype=np.int64)
    order = np.empty(len(hashes if rows is None else rows), dtype=np.uint32)
    if rows is None:
        is_done = kernels.order_by_destination(hashes, group_to_subtask, positions, order)
    else:
        is_done = kernels.order_picked_by_destination(hashes, rows, group_to_subtask, positions, order)
    if not is_done:
        raise ValueError(
            f"routing table of {len(group_to_subtask)} groups names subtasks up to {group_to_subtask.max()}, "
            f"but there are {subtask_count} subtasks"
        )
    return order, positions[:-1]
