"""The RocksDB backend: one store per task manager, through rocksdict in raw mode.

Durability: what is written is in memory until RocksDB writes a table, and there is no log: nobody opens the store of a
process that died, because a job goes on from its latest checkpoint. An image and :meth:`RocksDbBackend.close` bring
everything into tables.

Memory: one block cache holds data, index and filter blocks, and memory tables are charged to it.

The GIL: rocksdict releases it in ``get_many``, while RocksDB writes a memory table out and while it merges; it keeps it
in ``write``, while it makes an image, in everything about table files from outside, and in scans. The latter must
not wait for the disk, then: hence no log, images of links that are made here, writes that RocksDB refuses rather than
lets them wait. A write takes 0.4 ms for 256 KiB, so callers write in chunks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import cast

from rocksdict import (
    AccessType,
    Checkpoint,
    CompactOptions,
    Rdict,
    WriteBatch,
)

from weir.clock import SystemClock
from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.api import StateBackend
from weir.state.stores.directory_lock import StoreDirectory, claim_directory
from weir.state.stores.rocksdb_backwards import BackwardScan
from weir.state.stores.rocksdb_compaction import Compaction
from weir.state.stores.rocksdb_errors import is_stall, stalled_error, state_error
from weir.state.stores.rocksdb_health import StoreHealth, number
from weir.state.stores.rocksdb_images import ImageTaker
from weir.state.stores.rocksdb_settings import (
    StoreMemory,
    read_options,
    store_options,
    write_options,
)
from weir.types import StoreStats

_CLOCK = SystemClock()
#: Keys of one call of rocksdict. RocksDB sorts them, with some 300 bytes of bookkeeping each: those of a few hundred
#: stay in the processor's caches, so that a read costs a sixth less than in a call with 60,000.
READ_KEYS_MAX = 512
#: Entries that a scan reads at a time, with the GIL held: 0.1 ms.
SCAN_ENTRIES_MAX = 256
SCAN_BYTES_MAX = 64 << 10
#: While RocksDB refuses writes because it cannot keep up.
_STALLED_PAUSE_S = 0.002
_STALLED_PAUSES_MAX = 150_000


def open_store(path: Path, settings: RocksDbConfig, *, fresh: bool) -> RocksDbBackend:
    """Open the store in ``path``, creating it if absent; with ``fresh``, drop what an earlier run left there.

    Called once per task manager. Blocks while RocksDB replays its log.

    Raises:
        StateError: the directory is not ours (it stays untouched), is in use, damaged or cannot be written.
    """
    directory = claim_directory(path, fresh=fresh)
    try:
        return RocksDbBackend(directory, settings)
    except BaseException:
        directory.release()
        raise


class RocksDbBackend(StateBackend):
    """A store in a claimed directory; made by :func:`open_store`. Methods may be called from any thread."""

    def __init__(
        self,
        directory: StoreDirectory,
        settings: RocksDbConfig,
        *,
        memory: StoreMemory | None = None,
        read_only: bool = False,
    ) -> None:
        """``memory`` is shared with another store if given; a store opened ``read_only`` changes no table."""
        self.path = directory.path
        self._settings = settings
        self._directory = directory
        self.memory = memory or StoreMemory(settings)
        self._memory_tables_max = settings.write_buffer_count
        options = store_options(settings, self.memory)
        options.create_if_missing(not read_only)
        self._options = options
        access = AccessType.read_only() if read_only else AccessType.read_write()
        try:
            # Named, or rocksdict takes the table options, and a block cache of 8 MB, from the files of an earlier run.
            self._store = Rdict(
                str(directory.data_path), options, column_families={"default": options}, access_type=access
            )
        except Exception as error:
            raise state_error(error, self.path) from error
        self._store.set_read_options(read_options(settings))
        self._write_options = write_options()
        self._closed = False
        self._lock = threading.Lock()
        self._readers: weakref.WeakSet[_Scan | BackwardScan] = weakref.WeakSet()
        self._gets = self._puts = self._deletes = 0
        self._health = StoreHealth(self.path)
        self._images = ImageTaker(directory.data_path)
        self._compaction = Compaction(self._compact_range, self._disk_bytes)

    def check_open(self) -> None:
        """Raise StateError if the store is closed."""
        if self._closed:
            raise StateError(f"the store in {self.path} is closed")

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where absent. Sorted keys are read faster."""
        self.check_open()
        self._gets += len(keys)
        wanted = keys if isinstance(keys, list) else list(keys)
        values: list[bytes | None] = []
        began_s = _CLOCK.monotonic_s()
        try:
            for start in range(0, len(wanted), READ_KEYS_MAX):
                values += cast("list[bytes | None]", self._store.get(wanted[start : start + READ_KEYS_MAX]))
        except Exception as error:
            raise state_error(error, self.path) from error
        self._health.read(_CLOCK.monotonic_s() - began_s)
        return values

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range, as they are now. Exhaust or drop the iterator: it keeps old files alive."""
        self.check_open()
        options = read_options(self._settings)
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        scan: _Scan | BackwardScan
        try:
            if reverse:
                scan = BackwardScan(self._store.iter(options), start, self.path, self.check_open)
            else:
                items = self._store.items(from_key=start, read_opt=options)
                scan = _Scan(self, cast("Iterator[tuple[bytes, bytes]]", items), start, stop)
        except Exception as error:
            raise state_error(error, self.path) from error
        with self._lock:
            self._readers.add(scan)
        return scan if isinstance(scan, BackwardScan) else chain.from_iterable(scan.chunks())

    def scanned(self, seconds: float, *, begins: bool) -> None:
        """A scan has read a part of its range."""
        self._health.scanned(seconds, begins=begins)

    def check_readable(self, last: bytes | None, *, stop: bytes | None = None, reverse: bool = False) -> None:
        """Check that what follows a key is the end of a range, or can be read: rocksdict's iterators end at either.

        Args:
            last: the key that was read last; None: none was.
            stop: where the range ends; None: at the end of all.
            reverse: what comes before ``last`` is meant.

        Raises:
            StateError: a table file is damaged.
        """
        options = read_options(self._settings)
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        try:
            found = self._store.iter(options)
            if last is None:
                (found.seek_to_last if reverse else found.seek_to_first)()
            else:
                (found.seek_for_prev if reverse else found.seek)(last)
            if found.valid():
                (found.prev if reverse else found.next)()
            found.status()
        except Exception as error:
            raise state_error(error, self.path) from error

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes, atomically."""

        def fill(batch: WriteBatch) -> None:
            put = batch.put
            for key, value in puts:
                put(key, value)
            for key in deletes:
                batch.delete(key)

        self._apply(fill)
        with self._lock:
            self._puts += len(puts)
            self._deletes += len(deletes)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write these pairs, as :meth:`write`, without making the pairs."""

        def fill(batch: WriteBatch) -> None:
            put = batch.put
            for key, value in zip(keys, values, strict=True):
                put(key, value)

        self._apply(fill)
        with self._lock:
            self._puts += len(keys)

    def _apply(self, fill: Callable[[WriteBatch], None]) -> None:
        """Write a batch. While RocksDB would let it wait, with the GIL, wait here without."""
        first_s = _CLOCK.monotonic_s()
        for pauses in range(_STALLED_PAUSES_MAX):
            self.check_open()
            began_s = _CLOCK.monotonic_s() if pauses else first_s
            batch = WriteBatch(raw_mode=True)
            fill(batch)
            try:
                self._store.write(batch, self._write_options)
                self._health.wrote(_CLOCK.monotonic_s() - began_s, began_s - first_s)
                return
            except Exception as error:
                if not is_stall(error):
                    raise state_error(error, self.path) from error
            self._health.stalls(self._store)
            # Everything else may go on, reading too.
            time.sleep(_STALLED_PAUSE_S)
        raise stalled_error(self.path, _STALLED_PAUSES_MAX * _STALLED_PAUSE_S)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> None:
        """Delete every entry of a range, in one write."""
        self.check_open()
        begin = b"" if start is None else start
        last: bytes | None = None
        if stop is None:
            # RocksDB has no open end: up to the last key, and that key.
            last = stop = cast("bytes | None", next(self._store.keys(backwards=True), None))
            if stop is None:
                self.check_readable(None, reverse=True)
        if stop is None or begin > stop or (begin == stop and last is None):
            return

        def fill(batch: WriteBatch) -> None:
            if last is not None:
                batch.delete(last)
            if begin < stop:
                batch.delete_range(begin, stop)

        self._apply(fill)

    def flush(self) -> None:
        """Nothing is left to do, see the module."""
        self.check_open()

    def checkpoint(self, directory: Path) -> None:
        """RocksDB's table files as hard links, copies of the few small files beside them."""
        self.check_open()
        try:
            self._store.flush(True)
            if not self._images.take(directory):
                Checkpoint(self._store).create_checkpoint(str(directory))
        except Exception as error:
            raise state_error(error, self.path) from error

    def compact(self) -> None:
        """Merge everything into the last level; blocks for seconds per GB. For benchmarks and tests."""
        self.check_open()
        try:
            self._store.flush()
            self._store.compact_range(None, None)
        except Exception as error:
            raise state_error(error, self.path) from error

    def give_back(self, group: int, state_id: int, size_bytes: int) -> None:
        """Let room be given back, as ``StateBackend`` says; another thread merges the files."""
        self._compaction.give_back(group, state_id, size_bytes)

    def wait_given_back(self, timeout_s: float) -> bool:
        """Wait, in benchmarks and tests, until the space of deleted entries is given back; False: not by then."""
        return self._compaction.wait(timeout_s)

    def _compact_range(self, start: bytes, stop: bytes) -> None:
        options = CompactOptions()
        # Merges that RocksDB wants to do go on.
        options.set_exclusive_manual_compaction(False)
        try:
            self._store.compact_range(start, stop, options)
        except Exception as error:
            raise state_error(error, self.path) from error

    def _disk_bytes(self) -> int:
        return number(self._store, "live-sst-files-size")

    def is_stalled(self) -> bool:
        """Whether all memory tables but one wait to be flushed, or RocksDB slows writes down; they keep the GIL."""
        self.check_open()
        if number(self._store, "num-immutable-mem-table") >= self._memory_tables_max - 1:
            return True
        return bool(
            number(self._store, "actual-delayed-write-rate") or number(self._store, "is-write-stopped")
        )

    def stalls(self) -> tuple[int, float]:
        """Return how often and how long writes stalled, as ``StateBackend`` says."""
        return self._health.stalled

    def stats(self) -> StoreStats:
        """Counters, memory (block cache with memory tables, table readers) and bytes of live tables."""
        self.check_open()
        store = self._store
        return StoreStats(
            gets=self._gets,
            puts=self._puts,
            deletes=self._deletes,
            memory_bytes=self.memory.cache.get_usage() + number(store, "estimate-table-readers-mem"),
            disk_bytes=self._disk_bytes(),
            tables=self._health.stats(store, self._options.get_statistics()),
        )

    def close(self) -> None:
        """Release open scans, close RocksDB, unlock the directory; safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            readers = list(self._readers)
        for reader in readers:
            reader.release()
        self._compaction.close()
        try:
            self._store.close()
        except Exception as error:
            raise state_error(error, self.path) from error
        finally:
            self._directory.release()


class _Scan:
    """A pass over a range. RocksDB's iterator is made when the scan begins, so later writes do not show."""

    def __init__(
        self,
        backend: RocksDbBackend,
        items: Iterator[tuple[bytes, bytes]],
        start: bytes | None,
        stop: bytes | None,
    ) -> None:
        self._backend = backend
        self._items: Iterator[tuple[bytes, bytes]] | None = items
        self._start = start
        self._stop = stop

    def chunks(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield one entry, often all that is wanted, then more at a time: 0.3 µs an entry, a fifth of one by one.

        After :meth:`release` what was read already still comes, and then an error.
        """
        count, last = 1, self._start
        while True:
            self._backend.check_open()
            began_s = _CLOCK.monotonic_s()
            chunk = list(islice(self._items or (), count))
            self._backend.scanned(_CLOCK.monotonic_s() - began_s, begins=count == 1)
            if len(chunk) < count:
                last = chunk[-1][0] if chunk else last
                self._check_end(last)
            yield chunk
            if len(chunk) < count:
                self.release()
                return
            last = chunk[-1][0]
            like_the_last = SCAN_BYTES_MAX // (len(chunk[-1][1]) + 1)
            count = max(1, min(4 * count, SCAN_ENTRIES_MAX, like_the_last))

    def _check_end(self, last: bytes | None) -> None:
        """Check that the scan has come to its end, and not to a block that cannot be read."""
        if self._items is not None:
            self._backend.check_readable(last, stop=self._stop)

    def release(self) -> None:
        """Drop RocksDB's iterator."""
        self._items = None
