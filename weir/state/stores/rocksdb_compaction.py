"""Gives the disk space of deleted entries back, in a thread of its own: a merge of files drops what they hide.

RocksDB would keep a deletion, and the entry below it, until its files are merged for another reason. The thread merges
the ranges of key groups in which things were deleted once these are a fifth of what the store's files hold: so at most
a quarter of what is alive is kept besides it, and a byte that is given back costs five that are written again.
rocksdict holds the GIL for a few milliseconds at most meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from weir.errors import WeirError
from weir.state.layout import KEY_GROUP_MAX, state_prefix

log = logging.getLogger(__name__)

#: Of the bytes of the store's files.
_SHARE = 0.2
#: Less is not worth a merge.
_BYTES_MIN = 1 << 20
#: Groups whose ranges are merged in one go: a store that closes waits for one of them at most.
_GROUPS_MAX = 16

#: Merges a range of keys; returns when it is done.
Compact = Callable[[bytes, bytes], None]


class Compaction:
    """The compaction of a store. ``give_back`` and ``close`` may be called by any thread."""

    def __init__(self, compact: Compact, disk_bytes: Callable[[], int]) -> None:
        """``disk_bytes``: of the store's files."""
        self._compact = compact
        self._disk_bytes = disk_bytes
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        #: Bytes that were deleted and are not given back, by key group and state.
        self._pending: dict[tuple[int, int], int] = {}
        self._is_busy = False
        self._closed = False

    def give_back(self, group: int, state_id: int, size_bytes: int) -> None:
        """So many bytes were deleted; returns at once."""
        with self._changed:
            self._pending[group, state_id] = self._pending.get((group, state_id), 0) + size_bytes
            if self._closed or self._is_busy or not self._is_enough():
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
                self._thread.start()
            self._is_busy = True
            self._changed.notify_all()

    def _is_enough(self) -> bool:
        pending = sum(self._pending.values())
        return pending >= _BYTES_MIN and pending >= _SHARE * self._disk_bytes()

    def wait(self, timeout_s: float) -> bool:
        """Return when no files are being merged any more; False: they still are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy, timeout_s)

    def close(self) -> None:
        """Begin with no further range, and wait for the one that is under way; safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_busy or self._closed)
                if self._closed:
                    return
                ranges = compacted_ranges(self._pending)
                self._pending = {}
            for start, stop in ranges:
                if self._closed:
                    return
                try:
                    self._compact(start, stop)
                except WeirError as error:
                    # It is only space; the next sweep asks again.
                    log.warning("the space of deleted entries was not given back: %s", error)
                    break
            with self._changed:
                # What was deleted meanwhile.
                self._is_busy = self._is_enough()
                self._changed.notify_all()


def compacted_ranges(pending: dict[tuple[int, int], int]) -> list[tuple[bytes, bytes]]:
    """The ranges to merge for these groups and states: one for neighbouring groups, which share files anyway."""
    ranges: list[tuple[bytes, bytes]] = []
    found: list[tuple[int, int]] = sorted(pending)
    index = 0
    while index < len(found):
        first = last = index
        while (
            last + 1 < len(found)
            and found[last + 1][0] - found[last][0] <= 1
            and found[last + 1][0] - found[first][0] < _GROUPS_MAX
        ):
            last += 1
        ranges.append((state_prefix(*found[first]), _after(*found[last])))
        index = last + 1
    return ranges


def _after(group: int, state_id: int) -> bytes:
    number = int.from_bytes(state_prefix(min(group, KEY_GROUP_MAX), state_id), "big") + 1
    return number.to_bytes(4, "big") if number < 2**32 else b"\xff" * 5
