"""Unapplied changes as the local store has them, and how they are cut into requests. Pure.

A value in the local store begins with what tells a deletion apart, and the number of the checkpoint that covers the
change, at the earliest:

========  ===================  ==========================================================
bytes     field                notes
========  ===================  ==========================================================
1         kind                 0: the key was deleted; 1: it has the value that follows
8         checkpoint           big endian; the change is durable with the first complete
                               checkpoint of this number or a higher one
rest      value                only with kind 1
========  ===================  ==========================================================

This is a persisted format: images of checkpoints consist of such entries.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from weir.errors import StateError
from weir.state.api import Head
from weir.state.overlay import overlaid

HEADER_BYTES = 9
_DELETED, _PRESENT = b"\0", b"\1"
#: Key group and state id of a state key; the rest is the key of the row.
PREFIX_BYTES = 4
#: What a row adds to a request beside its key and value.
_ROW_BYTES = 32


def value_header(checkpoint_id: int) -> bytes:
    """The first bytes of a change that puts a value, which follows them."""
    return _PRESENT + checkpoint_id.to_bytes(8, "big")


def deletion(checkpoint_id: int) -> bytes:
    """A change that deletes a key."""
    return _DELETED + checkpoint_id.to_bytes(8, "big")


def decode(stored: bytes) -> bytes | None:
    """The value after a change; None: the key was deleted.

    Raises:
        StateError: it is no change.
    """
    if len(stored) < HEADER_BYTES or stored[:1] > _PRESENT:
        raise StateError(
            f"{stored[:16].hex()} is no change of state in a database; start from another checkpoint"
        )
    return stored[HEADER_BYTES:] if stored[:1] == _PRESENT else None


def decoded(changes: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes | None]]:
    """Returns keys with the values after their changes; None: the key was deleted.

    Raises:
        StateError: one is no change; raised when it is reached.
    """
    return ((key, decode(stored)) for key, stored in changes)


def checkpoint_of(stored: bytes) -> int:
    """The number of the checkpoint that covers a change, at the earliest."""
    return int.from_bytes(stored[1:HEADER_BYTES], "big")


@dataclass(frozen=True, slots=True)
class RowsOfPartition:
    """Positions of keys (or changes) that lie in one database partition."""

    prefix: bytes
    bucket: int
    positions: list[int]


def bucket_of(row_key: bytes, buckets: int) -> int:
    """Which database partition of its key group a row lies in; stays for ever, whatever runs where."""
    return zlib.crc32(row_key) % buckets if buckets > 1 else 0


def partitions_of(keys: Sequence[bytes], buckets_of: dict[bytes, int]) -> list[RowsOfPartition]:
    """State keys by database partition, in the order in which each first occurs.

    ``buckets_of``: number of buckets by state id (2 bytes).
    """
    found: dict[tuple[bytes, int], list[int]] = {}
    for position, key in enumerate(keys):
        buckets = buckets_of[key[2:PREFIX_BYTES]]
        bucket = bucket_of(key[PREFIX_BYTES:], buckets) if buckets > 1 else 0
        found.setdefault((key[:PREFIX_BYTES], bucket), []).append(position)
    return [RowsOfPartition(prefix, bucket, positions) for (prefix, bucket), positions in found.items()]


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows that one request reads: with the same keys in several key groups."""

    #: State id of two bytes.
    number: bytes
    bucket: int
    groups: list[bytes]
    row_keys: tuple[bytes, ...]


def reads_of(keys: Sequence[bytes], buckets_of: dict[bytes, int], rows_max: int) -> list[RowsRead]:
    """The requests that read state keys, of so many rows each.

    Of many key groups the same key is often wanted: what a group has once, such as its clock.
    """
    found: dict[tuple[bytes, int, tuple[bytes, ...]], list[bytes]] = {}
    for part in partitions_of(keys, buckets_of):
        wanted = list(dict.fromkeys(keys[position][PREFIX_BYTES:] for position in part.positions))
        for start in range(0, len(wanted), rows_max):
            some = tuple(wanted[start : start + rows_max])
            found.setdefault((part.prefix[2:], part.bucket, some), []).append(part.prefix[:2])
    reads = []
    for (number, bucket, row_keys), groups in found.items():
        together = max(rows_max // len(row_keys), 1)
        for start in range(0, len(groups), together):
            reads.append(RowsRead(number, bucket, groups[start : start + together], row_keys))
    return reads


def cut(sizes: Sequence[int], rows_max: int, bytes_max: int) -> Iterator[slice]:
    """Ranges of neighbours of at most so many rows and bytes; a larger row makes one of its own."""
    start = 0
    size_bytes = 0
    for index, size in enumerate(sizes):
        if index > start and (index - start >= rows_max or size_bytes + size + _ROW_BYTES > bytes_max):
            yield slice(start, index)
            start, size_bytes = index, 0
        size_bytes += size + _ROW_BYTES
    if start < len(sizes):
        yield slice(start, len(sizes))


def covered(
    entries: Iterable[tuple[bytes, bytes]], checkpoint_id: int | None
) -> Iterator[tuple[bytes, bytes]]:
    """Return the local store's entries that a complete checkpoint covers; None: all."""
    if checkpoint_id is None:
        return iter(entries)
    return (entry for entry in entries if checkpoint_of(entry[1]) <= checkpoint_id)


def joined_head(pages: Sequence[list[tuple[bytes, bytes]]], rows_max: int, *, reverse: bool) -> Head:
    """The beginning of a range that lies in several partitions, of each of which so many rows were read at most."""
    untils = [page[-1][0] for page in pages if len(page) >= rows_max]
    until = None if not untils else max(untils) if reverse else min(untils)
    entries = list(heapq.merge(*pages, key=itemgetter(0), reverse=reverse))
    return Head(_cut_off(entries, until, reverse=reverse), until)


def changed_head(
    rows: Head, changes: Sequence[tuple[bytes, bytes | None]], changes_max: int, *, reverse: bool
) -> Head:
    """The beginning of a range with later changes in front of its rows.

    Args:
        rows: the beginning of the rows.
        changes: the first of the range, in its order; None: deleted.
        changes_max: how many were asked for; fewer: there are no more.
        reverse: from the last key to the first.
    """
    untils = [] if rows.until is None else [rows.until]
    if len(changes) >= changes_max:
        untils.append(changes[-1][0])
    until = None if not untils else max(untils) if reverse else min(untils)
    entries = list(overlaid(rows.entries, changes, reverse))
    return Head(_cut_off(entries, until, reverse=reverse), until)


def _cut_off(
    entries: list[tuple[bytes, bytes]], until: bytes | None, *, reverse: bool
) -> list[tuple[bytes, bytes]]:
    if until is None:
        return entries
    return [entry for entry in entries if (entry[0] >= until if reverse else entry[0] <= until)]
