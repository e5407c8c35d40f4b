"""Bytes that windows keep for their panes and keys: rows in chunks, or an accumulator.

Keys in the store are ``end of the pane (8 bytes) | length of the user key (4, big endian) | user key | number (8)``
after the prefix of the key group. A chunk of rows (``row_chunks``) has the number of the pane's rows before it;
an accumulator has the number 0. This is a persisted format.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.state.tables.opened import OperatorTables
from weir.state.tables.time_first import time_bytes
from weir.state.tables.values import ValueTable

_NUMBER_BYTES = 8


class KeptValues:
    """The values of one step."""

    def __init__(self, tables: OperatorTables, name: str) -> None:
        self._table: ValueTable = tables.values(name, _owner_of)

    def owner(self, group: int, end_ms: int, key: bytes) -> bytes:
        """What the keys of a pane's values begin with."""
        return owner_of_pane(self._table.key_prefix(group), end_ms, key)

    def put(self, values: Sequence[tuple[bytes, int, bytes]]) -> None:
        """Write values, each with its owner and number."""
        self._table.write_stored(
            [(owner + number.to_bytes(_NUMBER_BYTES, "big"), value) for owner, number, value in values], ()
        )

    def first(self, owners: Sequence[bytes]) -> list[bytes | None]:
        """The values with number 0."""
        return self._table.get_stored([owner + bytes(_NUMBER_BYTES) for owner in owners])

    def of(self, owner: bytes) -> list[bytes]:
        """All values of an owner, by number."""
        return [
            value
            for key, value in self._table.scan_stored(owner + bytes(_NUMBER_BYTES), stop_of_pane(owner))
            if _owner_of(key) == owner
        ]

    def of_many(self, owners: Sequence[bytes]) -> list[list[bytes]]:
        """:meth:`of` of each."""
        return [self.of(owner) for owner in owners]

    def clear(self, owner: bytes) -> None:
        """Forget the values of an owner."""
        self._table.clear_owner(owner)


def owner_of_pane(prefix: bytes, end_ms: int, key: bytes) -> bytes:
    """What the keys of a pane's values begin with; ``prefix``: that of the key group and state."""
    return prefix + time_bytes(end_ms) + len(key).to_bytes(4, "big") + key


def stop_of_pane(owner: bytes) -> bytes:
    """The first key after the values of an owner, whose numbers do not reach it."""
    return owner + b"\xff"


def _owner_of(key: bytes) -> bytes:
    return key[:-_NUMBER_BYTES]
