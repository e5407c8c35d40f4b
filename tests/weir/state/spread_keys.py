"""Lets the conformance suite, whose keys are any bytes, run over a backend of one stage's state keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weir.state.api import StateBackend, StateReader
from weir.types import StoreStats

GROUPS = 4
_STATE_ID = b"\0\2"


def outer(key: bytes) -> bytes:
    """A state key: the group grows with the key, so that order is kept; small keys fall into all groups."""
    first = key[0] if key else 0
    group = 0 if first < 2 else 1 if first < 4 else 2 if first < 0x70 else 3
    return group.to_bytes(2, "big") + _STATE_ID + key


class _Reader(StateReader):
    below: StateReader

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.below.get_many([outer(key) for key in keys])

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        entries = self.below.scan(
            None if start is None else outer(start), None if stop is None else outer(stop), reverse=reverse
        )
        return ((key[4:], value) for key, value in entries)


class SpreadKeys(_Reader, StateBackend):
    """Passes every call on with state keys."""

    def __init__(self, below: StateBackend) -> None:
        self.below: StateBackend = below

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        self.below.write([(outer(key), value) for key, value in puts], [outer(key) for key in deletes])

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        self.below.delete_range(
            None if start is None else outer(start), None if stop is None else outer(stop)
        )

    def flush(self) -> None:
        self.below.flush()

    def stats(self) -> StoreStats:
        return self.below.stats()

    def close(self) -> None:
        self.below.close()
