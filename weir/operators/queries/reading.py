"""What questions read: store keys and values, of a subtask as it is now or of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol


class RangeReading(Protocol):
    """One state of one step, in the order of keys. Keys are whole state keys; a range lies within one key group."""

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` in key order, or the reverse."""
        ...

    def is_expired(self, stamp: int) -> bool:
        """Whether an entry with this time (``UNDATED``: without one) has expired; for states with a TTL."""
        ...


class StateReading(RangeReading, Protocol):
    """The same, read by key too."""

    #: The highest watermark that the step knew; ``weir.state.tables.expiry.UNDATED``: none.
    watermark_ms: int

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where there is none."""
        ...
