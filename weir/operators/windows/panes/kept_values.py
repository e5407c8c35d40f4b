"""Bytes that windows keep for their panes and keys: rows in chunks, or an accumulator.

Keys in the store are ``end of the pane (8 bytes) | length of the user key (4, big endian) | user key | number (8)``
after the prefix of the key group. A chunk of rows (``row_chunks``) has the number of the pane's rows before it;
an accumulator has the number 0. This is a persisted format.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.state.tables.opened import OperatorTables
from weir.state.tables.timers.time_first import time_bytes
from weir.state.tables.values.value_table import ValueTable

_NUMBER_BYTES = 8


class KeptValues:
    """The values of one step."""

    def __init__(self, tables: OperatorTables, name: str) -> None:
        self._table: ValueTable = tables.values(name, _owner_of)
        self._prefixes: dict[int, bytes] = {}

    def owners(self, groups: Sequence[int], ends_ms: Sequence[int], keys: Sequence[bytes]) -> list[bytes]:
        """What the keys of values begin with, for each of some panes of keys."""
        prefixes = self._prefixes
        for group in set(groups).difference(prefixes):
            prefixes[group] = self._table.key_prefix(group)
        times = {end_ms: time_bytes(end_ms) for end_ms in set(ends_ms)}
        return [
            b"".join((prefixes[group], times[end_ms], len(key).to_bytes(4, "big"), key))
            for group, end_ms, key in zip(groups, ends_ms, keys, strict=True)
        ]

    def put(self, values: Sequence[tuple[bytes, int, bytes]]) -> None:
        """Write values, each with its owner and number; an owner that gets number 0 has nothing else."""
        new, others = list[tuple[bytes, bytes]](), list[tuple[bytes, bytes]]()
        for owner, number, value in values:
            (others if number else new).append((owner + number.to_bytes(_NUMBER_BYTES, "big"), value))
        self._table.write_new(new)
        self._table.write_stored(others, ())

    def first(self, owners: Sequence[bytes]) -> list[bytes | None]:
        """The values with number 0."""
        return self._table.get_stored([owner + bytes(_NUMBER_BYTES) for owner in owners])

    def of(self, owners: Sequence[bytes]) -> list[list[bytes]]:
        """Return all values of each owner, by number."""
        return self._table.values_of_owners(owners, bytes(_NUMBER_BYTES))

    def clear(self, owners: Sequence[bytes]) -> None:
        """Forget the values of owners."""
        self._table.clear_owners(owners)


def owner_of_pane(prefix: bytes, end_ms: int, key: bytes) -> bytes:
    """What the keys of a pane's values begin with; ``prefix``: that of the key group and state."""
    return prefix + time_bytes(end_ms) + len(key).to_bytes(4, "big") + key


def stop_of_pane(owner: bytes) -> bytes:
    """The first key after the values of an owner, whose numbers do not reach it."""
    return owner + b"\xff"


def _owner_of(key: bytes) -> bytes:
    return key[:-_NUMBER_BYTES]
