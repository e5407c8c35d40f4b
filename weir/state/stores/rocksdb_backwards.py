"""Scans from the last key of a range to the first, of RocksDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rocksdict import RdictIter

from weir.state.stores.rocksdb_errors import state_error


class BackwardScan(Iterator[tuple[bytes, bytes]]):
    """A pass over a range, backwards; of one moment, since there is one iterator of RocksDB.

    What comes before the range must not be looked at: where entries were deleted RocksDB goes on to the one before them
    all, with the GIL, for as long as there are deletions (0.2 s for 200,000). rocksdict 0.3.29 does not heed a lower
    bound. So the first key is looked for from the range's start, and the scan ends when it comes to that.
    """

    def __init__(
        self, items: RdictIter, start: bytes | None, path: Path, check_open: Callable[[], None]
    ) -> None:
        """Find the ends of the range.

        Args:
            items: with the end of the range as its upper bound.
            start: the first key; None: there is none before.
            path: of the store, for messages.
            check_open: raises when the store is closed.

        Raises:
            Exception: rocksdict's: a table file is damaged.
        """
        self._items: RdictIter | None = items
        self._path, self._check_open = path, check_open
        self._has_begun = False
        if start is None:
            items.seek_to_first()
        else:
            items.seek(start)
        self._first = items.key() if items.valid() else None
        if self._first is None:
            items.status()
            self._items = None
        else:
            items.seek_to_last()

    def __next__(self) -> tuple[bytes, bytes]:
        self._check_open()
        items = self._items
        if items is None:
            raise StopIteration
        try:
            if self._has_begun:
                items.prev()
            self._has_begun = True
            if not items.valid():
                items.status()
                self.release()
                raise StopIteration
            key, value = items.key(), items.value()
        except StopIteration:
            raise
        except Exception as error:
            raise state_error(error, self._path) from error
        if key == self._first:
            self.release()
        return key, value

    def release(self) -> None:
        """Drop RocksDB's iterator."""
        self._items = None
