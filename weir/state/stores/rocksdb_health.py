"""What RocksDB is busy with, and a word where writes wait for it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from rocksdict import Rdict

from weir.clock import SystemClock
from weir.types import TableStats

_CLOCK = SystemClock()
#: A store that stalls again and again says so only so often.
_TOLD_EVERY_S = 60.0
log = logging.getLogger(__name__)


def number(store: Rdict, name: str) -> int:
    """Return a property of RocksDB that is a number; 0 if there is none of that name."""
    return int(store.property_int_value(f"rocksdb.{name}") or 0)


def stall_cause(store: Rdict) -> str:
    """Return why RocksDB lets writes wait, as far as its properties show, and the mend."""
    if waiting := number(store, "num-immutable-mem-table"):
        return (
            f"{waiting} memory tables wait to be written to the disk, which is slower than the writes: raise "
            "write_buffer_count, write_buffer_total_bytes or background_threads of taskManager.rocksdb, or take a "
            "faster disk"
        )
    pending = number(store, "estimate-pending-compaction-bytes")
    return (
        f"{_level_0_files(store)} files are in level 0 and {pending:,} bytes wait to be merged: raise "
        "taskManager.rocksdb.background_threads, or take a faster disk"
    )


def _level_0_files(store: Rdict) -> int:
    return int(store.property_value("rocksdb.num-files-at-level0") or 0)


class StoreHealth:
    """Counts how long reads and writes of one store take, and stalls. Methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """``path``: of the store, for what is said."""
        self._path = path
        self._lock = threading.Lock()
        self._stalls = 0
        self._stall_s = self._get_s = self._write_s = 0.0
        self._told_s = float("-inf")

    def read(self, seconds: float) -> None:
        """Keys were read in so many seconds."""
        with self._lock:
            self._get_s += seconds

    def wrote(self, seconds: float, stall_s: float) -> None:
        """A batch was written in so many seconds, after it had waited for ``stall_s`` (0: it had not)."""
        with self._lock:
            self._write_s += seconds
            self._stall_s += stall_s
            self._stalls += stall_s > 0

    def stalls(self, store: Rdict) -> None:
        """A write has to wait: say why, unless that has just been said."""
        now_s = _CLOCK.monotonic_s()
        with self._lock:
            if now_s - self._told_s < _TOLD_EVERY_S:
                return
            self._told_s = now_s
        log.warning("the store in %s lets writes wait: %s", self._path, stall_cause(store))

    @property
    def stalled(self) -> tuple[int, float]:
        """Writes that had to wait, and for how many seconds together."""
        with self._lock:
            return self._stalls, self._stall_s

    def stats(self, store: Rdict) -> TableStats:
        """Return the counters, and what the store tells of itself now."""
        with self._lock:
            counted = (self._stalls, self._stall_s, self._get_s, self._write_s)
        return TableStats(
            number(store, "total-sst-files-size"),
            number(store, "estimate-num-keys"),
            number(store, "cur-size-all-mem-tables"),
            _level_0_files(store),
            number(store, "estimate-pending-compaction-bytes"),
            number(store, "num-running-compactions"),
            number(store, "num-running-flushes"),
            number(store, "background-errors"),
            *counted,
        )
