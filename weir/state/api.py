"""The interface of state backends. One conformance suite runs over all of them.

Keys and values are opaque bytes; a key's layout is ``weir.state.layout``'s business. Ranges are half-open,
``start <= key < stop`` in unsigned byte order; None is an open end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from weir.errors import StateError
from weir.state.packed import PackedKeys, pack_values, split_rows
from weir.types import StoreStats


@dataclass(frozen=True, slots=True)
class Head:
    """What a scan of a range comes to first."""

    #: In its order.
    entries: list[tuple[bytes, bytes]]
    #: The key up to which these are all, that key included; None: the range has no others.
    until: bytes | None


class StateReader(ABC):
    """Reading."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where absent. Keys may repeat."""

    @abstractmethod
    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range in key order (or the reverse). A start at or after stop gives nothing.

        The scan sees the store as it was when it began, whatever is written meanwhile.
        """

    # Not abstract: for most readers there is nothing to prepare.
    def will_scan(  # noqa: B027
        self, ranges: Iterable[tuple[bytes, bytes | None]], bytes_max: int
    ) -> None:
        """Prepare for scans of these ranges: a reader whose reads take long may begin them together. Mostly nothing.

        ``bytes_max``: about so much of each is wanted; 0: nobody knows.
        """

    def scan_for_question(self, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """As :meth:`scan`, for a question from outside: also where that reads more than what is asked for."""
        return self.scan(start, stop, reverse=reverse)

    def scan_prefix(self, prefix: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with ``prefix``, in key order (or the reverse)."""
        return self.scan(prefix, prefix_end(prefix), reverse=reverse)


class StateBackend(StateReader):
    """An ordered store of bytes. All methods may be called from any thread."""

    #: Whether a read takes so long that what is needed soon is worth reading along with others.
    reads_ahead: ClassVar[bool] = False

    def scan_heads(
        self, ranges: Sequence[tuple[bytes, bytes]], rows_max: Sequence[int], *, reverse: bool = False
    ) -> list[Head]:
        """Read the beginnings of scans of some ranges, in one go where that is quicker.

        ``rows_max``: of each range, how many entries at most.
        """
        heads = []
        for (start, stop), rows in zip(ranges, rows_max, strict=True):
            entries = list(islice(self.scan(start, stop, reverse=reverse), rows))
            heads.append(Head(entries, entries[-1][0] if len(entries) == rows else None))
        return heads

    @abstractmethod
    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
    ) -> None:
        """Apply puts, then deletes, atomically. Deleting an absent key is not an error.

        Raises:
            StateError: the store cannot be written (a full disk, for example); nothing was applied.
        """

    def is_settled(self, group: int) -> bool:
        """Whether all state of a key group is in one store, where it may be swept; not while it is on its way."""
        return True

    def give_back(self, group: int, state_id: int, size_bytes: int) -> None:
        """So many bytes of a state were deleted in a key group: give them back to the system soon. Returns at once."""

    def writes_wait(self) -> bool:
        """Whether a write would wait now, until images of a checkpoint are taken."""
        return False

    def is_stalled(self) -> bool:
        """Whether the store cannot keep up: a write would take long now, and hold up all threads of the process."""
        return False

    def stalls(self) -> tuple[int, float]:
        """Writes that had to wait because the store could not keep up, and for how many seconds together; cheap."""
        return 0, 0.0

    def may_hold(self, prefix: bytes) -> bool:
        """Whether there may be keys that start with this; a store where looking is slow may say so without looking."""
        return next(iter(self.scan_prefix(prefix)), None) is not None

    @abstractmethod
    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range."""

    @abstractmethod
    def flush(self) -> None:
        """Return when every earlier write has reached the store, also one elsewhere: a later image has it."""

    def checkpoint(self, directory: Path) -> None:
        """Write an image of now into a directory that does not exist yet; its parent does.

        Raises:
            StateError: this kind of store has no images of its own, or the directory cannot be written.
        """
        raise StateError(f"a {type(self).__name__} has no images of its own")

    @abstractmethod
    def stats(self) -> StoreStats:
        """Counters and sizes; cheap enough for every metrics scrape."""

    @abstractmethod
    def close(self) -> None:
        """Flush and release; safe to call twice. Any other call afterwards raises StateError."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write pairs; of a repeated key the last one wins."""
        self.write(puts=list(zip(keys, values, strict=True)))

    def get_packed(self, keys: PackedKeys, value_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Values of one length, without an object for each; for caches of accumulators.

        Returns:
            ``present``, bool, shape (keys,), and the rows of those that are, uint8, shape (present, value_bytes).

        Raises:
            StateError: the store cannot be read, or a value has another length.
        """
        return pack_values(self.get_many(keys.to_list()), value_bytes)

    def put_packed(self, keys: PackedKeys, rows: np.ndarray) -> None:
        """Write values of one length; ``rows`` is uint8, shape (keys, value_bytes). Not atomic.

        Later calls see them. A store elsewhere may have them later only, at :meth:`flush` at the latest; if that fails,
        later calls raise what it failed with.
        """
        self.put_many(keys.to_list(), split_rows(rows))


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest key after every key that starts with ``prefix``; None if there is none (empty or all 0xFF)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
