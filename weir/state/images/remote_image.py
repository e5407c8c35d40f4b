"""An image of a RocksDB store whose tables stay in the checkpoint store: what is read is fetched, block by block.

Tables of an image never change, and nothing in them is newer than the image. So the newest entry of a key counts,
unless it says that the key was deleted or a range with the key was deleted after it. See docs/design/0019.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from typing_extensions import override

from weir.errors import StateError
from weir.protocol.checkpoints.manifest import FileRef
from weir.state.api import StateReader
from weir.state.images.range_cache import CHUNK_BYTES, RangeCache
from weir.state.stores.rocksdb_blocks import PUT, TRAILER_BYTES, DataBlock, Handle, data_block
from weir.state.stores.rocksdb_manifest import Manifest, TablePlace
from weir.state.stores.rocksdb_tables import DeletedRanges, TableIndex, read_index

#: Fetched from the end of a table before its index is read: mostly all that this needs.
_TAIL_BYTES = 128 << 10
#: A scan fetches so much at a time.
_AHEAD_BYTES = 512 << 10
#: Tables of which the ends are fetched at the same time while rows may wait for blocks.
_AT_ONCE = 8
#: Of memory: indexes with filters, and data blocks; the last one is kept however large it is.
_INDEX_BYTES_MAX, _BLOCK_BYTES_MAX = 64 << 20, 32 << 20
#: The lowest byte of an entry's number is its kind.
_KIND = 0xFF


class RemoteImage(StateReader):
    """Reads an image block by block. Methods may be called from any thread; they raise StateError at a damaged table.

    Args:
        image_id: for messages.
        files: of the image, by name.
        manifest: of the image, read to its end.
        cache: of parts of its files.

    Raises:
        UnknownTableError: tables have a form that only RocksDB reads.
        StateError, CheckpointError: a table is damaged, or cannot be fetched.
    """

    def __init__(
        self, image_id: str, files: Mapping[str, FileRef], manifest: Manifest, cache: RangeCache
    ) -> None:
        self._image_id = image_id
        self._cache = cache
        places = sorted(manifest.places.values(), key=lambda place: (place.first, place.last))
        self._files = {place.number: files[f"{place.number:06d}.sst"] for place in places}
        levels: dict[int, list[TablePlace]] = {}
        for place in places:
            # Tables of level 0 may have the same keys.
            levels.setdefault(place.level or -place.number, []).append(place)
        self._runs = [_Run(run) for run in levels.values()]
        self._lock = threading.Lock()
        self._indexes: OrderedDict[int, TableIndex] = OrderedDict()
        self._index_bytes = 0
        self._blocks: OrderedDict[tuple[int, int], DataBlock] = OrderedDict()
        self._block_bytes = 0
        self._closed = False
        if places:
            # Rather now than when rows wait; the end of the table at once, not its parts one after the other.
            self._bring_indexes({places[0].number: places[0]})
            self._index(places[0])

    def bring_indexes(self) -> None:
        """Fetch the ends of all tables, so that rows wait for blocks only; it ends early when the image is closed.

        Raises:
            CheckpointError: one cannot be fetched.
        """
        files = list(self._files.values())
        for start in range(0, len(files), _AT_ONCE):
            if self._closed:
                return
            self._cache.bring(map(_tail, files[start : start + _AT_ONCE]))

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``; None where absent. What has to be fetched is, several blocks at a time."""
        wanted = sorted(set(keys))
        candidates = {key: [place for run in self._runs for place in run.tables_of(key)] for key in wanted}
        self._bring_indexes({place.number: place for places in candidates.values() for place in places})
        lookups = [_Lookup(key, candidates[key]) for key in wanted]
        for lookup in lookups:
            lookup.begin(self._index)
        waiting = [lookup for lookup in lookups if lookup.tables]
        while waiting:
            nexts = [(lookup, lookup.tables.pop()) for lookup in waiting]
            missing = [
                self._part(place, index, at)
                for _, (place, index, at) in nexts
                if (place.number, at) not in self._blocks
            ]
            self._cache.bring(sorted(missing, key=lambda item: (item[0].path, item[1])))
            for lookup, (place, index, at) in nexts:
                lookup.look(place, self._block(place, index, at))
            waiting = [lookup for lookup in waiting if lookup.tables and lookup.goes_on]
        values = {lookup.key: lookup.value for lookup in lookups}
        return [values[key] for key in keys]

    @override
    def will_scan(self, ranges: Iterable[tuple[bytes, bytes | None]], bytes_max: int) -> None:
        """Fetch what scans of these ranges begin with, of all tables at the same time: a block of each at least."""
        begins = [
            (key, stop, places[0])
            for key, stop in ranges
            for run in self._runs
            if (places := run.between(key, stop))
        ]
        self._bring_indexes({place.number: place for _, _, place in begins})
        share_bytes = bytes_max // max(1, len(self._runs))
        missing = []
        for key, stop, place in begins:
            index = self._index(place)
            if (at := index.block_of(key)) < len(index):
                file, offset, size_bytes = self._part(place, index, at)
                last = len(index) - 1 if stop is None else min(index.block_of(stop), len(index) - 1)
                _, last_offset, last_bytes = self._part(place, index, last)
                wanted_bytes = min(share_bytes, last_offset + last_bytes - offset)
                missing.append((file, offset, max(size_bytes, wanted_bytes)))
        self._cache.bring(sorted(missing, key=lambda item: (item[0].path, item[1])))

    @override
    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range in key order (or the reverse); tables that have none of it are not looked at."""
        deleted: list[tuple[TablePlace, DeletedRanges]] = []
        streams = [self._entries(run, start or b"", stop, deleted, reverse) for run in self._runs]
        # Each stream has read the table with its next entry, and with it what was deleted around that.
        merged = heapq.merge(*streams, key=itemgetter(0), reverse=reverse)
        for key, entries in groupby(merged, itemgetter(0)):
            _, number, value = max(entries, key=itemgetter(1))
            if number & _KIND != PUT:
                continue
            if not any(place.has(key) and ranges.number_at(key) > number for place, ranges in deleted):
                yield key, value

    def _entries(
        self,
        run: _Run,
        start: bytes,
        stop: bytes | None,
        deleted: list[tuple[TablePlace, DeletedRanges]],
        reverse: bool,
    ) -> Iterator[tuple[bytes, int, bytes]]:
        """Entries of a run with their numbers; ``deleted`` gets the ranges of a table before its first entry comes."""
        places = run.between(start, stop)
        for place in reversed(places) if reverse else places:
            index = self._index(place)
            if index.deleted:
                deleted.append((place, index.deleted))
            first = index.block_of(start)
            last = len(index) if stop is None else min(index.block_of(stop) + 1, len(index))
            numbers = range(first, last)
            # Most scans are short: only those that go on fetch more at a time.
            ahead_bytes = 0
            for at in reversed(numbers) if reverse else numbers:
                block = self._block(place, index, at, 0 if reverse else ahead_bytes)
                ahead_bytes = min(2 * ahead_bytes or CHUNK_BYTES, _AHEAD_BYTES)
                low = bisect_left(block.keys, start)
                high = len(block.keys) if stop is None else bisect_left(block.keys, stop)
                rows = range(low, high)
                for row in reversed(rows) if reverse else rows:
                    yield block.keys[row], block.numbers[row], block.values[row]

    # --- what is read of tables ----------------------------------------------------------------------------------

    def _bring_indexes(self, places: Mapping[int, TablePlace]) -> None:
        with self._lock:
            unknown = [number for number in places if number not in self._indexes]
        self._cache.bring(_tail(self._files[number]) for number in unknown)

    def _index(self, place: TablePlace) -> TableIndex:
        with self._lock:
            index = self._indexes.get(place.number)
            if index is not None:
                self._indexes.move_to_end(place.number)
                return index
        file = self._files[place.number]
        with _Naming(self._image_id, file):
            index = read_index(
                file.size_bytes, lambda offset, size_bytes: self._cache.read(file, offset, size_bytes)
            )
        with self._lock:
            if place.number not in self._indexes:
                self._index_bytes += index.size_bytes
            self._indexes[place.number] = index
            while self._index_bytes > _INDEX_BYTES_MAX and len(self._indexes) > 1:
                self._index_bytes -= self._indexes.popitem(last=False)[1].size_bytes
        return index

    def _block(self, place: TablePlace, index: TableIndex, at: int, ahead_bytes: int = 0) -> DataBlock:
        name = place.number, at
        with self._lock:
            block = self._blocks.get(name)
            if block is not None:
                self._blocks.move_to_end(name)
                return block
        file, handle = self._files[place.number], index.handle(at)
        with _Naming(self._image_id, file):
            block = data_block(self._raw(file, handle, ahead_bytes), handle, index.context)
        with self._lock:
            if name not in self._blocks:
                self._block_bytes += block.size_bytes
            self._blocks[name] = block
            while self._block_bytes > _BLOCK_BYTES_MAX and len(self._blocks) > 1:
                self._block_bytes -= self._blocks.popitem(last=False)[1].size_bytes
        return block

    def _part(self, place: TablePlace, index: TableIndex, at: int) -> tuple[FileRef, int, int]:
        """Where a block is, with what is behind it."""
        handle = index.handle(at)
        return self._files[place.number], handle.offset, handle.size_bytes + TRAILER_BYTES

    def _raw(self, file: FileRef, handle: Handle, ahead_bytes: int) -> bytes:
        return self._cache.read(file, handle.offset, handle.size_bytes + TRAILER_BYTES, ahead_bytes)

    def close(self) -> None:
        """Forget what is in memory; the cache is shared."""
        self._closed = True
        with self._lock:
            self._indexes.clear()
            self._blocks.clear()
            self._index_bytes = self._block_bytes = 0


class _Lookup:
    """A key that is read: the newest of its entries, table by table.

    A state that changes with each row is in every table that was written lately. So the newest ones come first, and
    where one has an entry the others need not be fetched: of two levels the lower number has the newer entries, and of
    the tables of level 0 the one with higher sequence numbers.
    """

    def __init__(self, key: bytes, places: Sequence[TablePlace]) -> None:
        self.key = key
        self._places = sorted(places, key=lambda place: (-place.level, place.newest))
        #: Those that may have an entry, with the block; the one to look at next is the last.
        self.tables: list[tuple[TablePlace, TableIndex, int]] = []
        self._number, self._value, self._level, self._deleted = -1, b"", 0, -1

    def begin(self, index_of: Callable[[TablePlace], TableIndex]) -> None:
        """Find out which tables may have an entry, and what is deleted as a range."""
        for place in self._places:
            index = index_of(place)
            self._deleted = max(self._deleted, index.deleted.number_at(self.key))
            at = index.block_of(self.key) if index.may_have(self.key) else len(index)
            if at < len(index):
                self.tables.append((place, index, at))

    def look(self, place: TablePlace, block: DataBlock) -> None:
        """Take note of what a table has."""
        found = block.find(self.key)
        if found is not None and found[0] > self._number:
            self._number, self._value = found
            self._level = place.level

    @property
    def goes_on(self) -> bool:
        """Whether the next table may have a newer entry."""
        place = self.tables[-1][0]
        return self._number < 0 or (place.level == self._level and place.newest >= self._number >> 8)

    @property
    def value(self) -> bytes | None:
        """The newest value; None: there is none."""
        return self._value if self._number > self._deleted and self._number & _KIND == PUT else None


class _Run:
    """Tables in key order, of which no two have entries of one key."""

    def __init__(self, places: Sequence[TablePlace]) -> None:
        self._places = places
        self._lasts = [place.last for place in places]

    def tables_of(self, key: bytes) -> list[TablePlace]:
        """Return those that say something of a key: mostly one, or none."""
        return [place for place in self._from(key, lambda place: place.first <= key) if place.has(key)]

    def between(self, start: bytes, stop: bytes | None) -> list[TablePlace]:
        """Return those that may have keys of a range."""
        return self._from(start, lambda place: stop is None or place.first < stop)

    def _from(self, start: bytes, is_before_end: Callable[[TablePlace], bool]) -> list[TablePlace]:
        found = []
        for at in range(bisect_left(self._lasts, start), len(self._places)):
            if not is_before_end(self._places[at]):
                break
            found.append(self._places[at])
        return found


class _Naming:
    """Names the file in errors of those who read it."""

    def __init__(self, image_id: str, file: FileRef) -> None:
        self._image_id, self._file = image_id, file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, IndexError):
            raise StateError(f"image {self._image_id}, file {self._file.path}: it is damaged") from error
        if type(error) is StateError:
            raise StateError(f"image {self._image_id}, file {self._file.path}: {error}") from error


def _tail(file: FileRef) -> tuple[FileRef, int, int]:
    """Return the part of a table that mostly has all that its index needs."""
    size_bytes = min(_TAIL_BYTES, file.size_bytes)
    return file, file.size_bytes - size_bytes, size_bytes
