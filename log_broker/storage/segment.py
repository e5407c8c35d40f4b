"""File of entries, and where in it which offset, time and id is."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.storage.places import Place, segment_name
from weir.protocol.log.entries import (
    BATCH_BYTES_MAX,
    ENVELOPE_BYTES,
    HEADER_BYTES,
    DamagedEntryError,
    Entry,
    checksum,
    entries_in,
    read_envelope,
    read_header,
)

#: One place is noted for so many bytes of entries.
INDEX_EVERY_BYTES = 64 << 10
_SCAN_BYTES = 4 << 20
#: Room on the disk is set aside in such pieces.
_RESERVE_BYTES = 4 << 20


class Segment:
    """Entries from ``base_offset`` on. Only the last segment of a log is written to, and only it stays open.

    So a log of any length needs one descriptor, and whatever is removed gives its room back at once.
    """

    def __init__(self, place: Place, base_offset: int, *, is_new: bool = False) -> None:
        """Make the file, if it is new; else :meth:`load_index` or :meth:`scan` comes next.

        Raises:
            LogWriteError: it cannot be made.
        """
        self._place = place
        self.base_offset = self.end_offset = base_offset
        #: Of the file while it is written to; None: whoever needs it opens it.
        self._descriptor: int | None = place.open(base_offset, is_new=True) if is_new else None
        self.bytes_written = 0
        #: Of those that were written or scanned by this object; not told by an index.
        self.entry_count = 0
        #: The disk has room for the file up to here.
        self._reserved_bytes = 0
        #: A part of an entry that was refused may lie behind what is written.
        self._has_rest = False
        #: Of the newest entry, ms since the epoch; 0: there is none.
        self.last_append_ms = 0
        #: Of the first entry.
        self.first_append_ms = 0
        #: The greatest id so far.
        self.last_id: int | None = None
        #: Parallel lists: offset, position, time and greatest id before, of an entry every 64 KiB.
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._times: list[int] = []
        self._ids: list[int | None] = []
        self._indexed_until = 0

    @contextlib.contextmanager
    def _file(self) -> Iterator[int]:
        """Have the file open for a moment."""
        if self._descriptor is not None:
            yield self._descriptor
            return
        descriptor = self._place.open(self.base_offset)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def descriptor(self) -> int:
        """Return a descriptor of the file, which the caller closes."""
        return self._place.open(self.base_offset) if self._descriptor is None else os.dup(self._descriptor)

    def file_bytes(self) -> int:
        """Size of the file, with what may lie behind the entries; 0: nothing was ever written to it."""
        with self._file() as descriptor:
            return os.fstat(descriptor).st_size

    # -- writing

    def write(self, parts: list[bytes]) -> None:
        """Write at the end; :meth:`note` each entry then.

        Raises:
            LogWriteError: the disk is full or broken; nothing of it is left.
        """
        size = sum(map(len, parts))
        if self._descriptor is None:
            # The last one of an earlier process.
            self._descriptor = self._place.open(self.base_offset)
        descriptor = self._descriptor
        if self.bytes_written + size > self._reserved_bytes:
            self._reserved_bytes = self.bytes_written + size + _RESERVE_BYTES
            self._place.reserve(descriptor, self.bytes_written, size + _RESERVE_BYTES)
        try:
            if self._has_rest:
                # A shorter entry would leave its end there, and a start would take that for damage.
                os.ftruncate(descriptor, self.bytes_written)
                self._has_rest = False
            written = os.pwritev(descriptor, parts, self.bytes_written)
            if written < size:
                rest = memoryview(b"".join(parts))
                while written < size:
                    written += os.pwrite(descriptor, rest[written:], self.bytes_written + written)
        except OSError as error:
            self._has_rest = True
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self.bytes_written)
                self._has_rest = False
            raise LogWriteError(
                f"{self._place.name}: cannot write {size} bytes: {error.strerror}; make room there"
            ) from error
        self.bytes_written += size

    def note(self, entry: Entry, position: int) -> None:
        """Note an entry that lies at a position of the file."""
        envelope, header = entry.envelope, entry.header
        if position >= self._indexed_until:
            self._offsets.append(envelope.offset)
            self._positions.append(position)
            self._times.append(envelope.append_ms)
            self._ids.append(self.last_id)
            self._indexed_until = position + INDEX_EVERY_BYTES
        self.entry_count += 1
        self.end_offset = entry.end_offset
        if not self.first_append_ms:
            self.first_append_ms = envelope.append_ms
        self.last_append_ms = max(self.last_append_ms, envelope.append_ms)
        if not header.is_control:
            self.last_id = header.last_id if self.last_id is None else max(self.last_id, header.last_id)

    def release(self) -> None:
        """Give room back that was reserved and is not needed: nothing more is written.

        Raises:
            LogWriteError: the disk is broken, or cannot be written to.
        """
        self._reserved_bytes = 0
        with self._file() as descriptor:
            self._cut_file(descriptor, self.bytes_written)

    def _cut_file(self, descriptor: int, size: int) -> None:
        try:
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise LogWriteError(f"{self._path}: cannot be cut: {error.strerror}; mend the disk") from error

    @property
    def _path(self) -> str:
        return f"{self._place.name}/{segment_name(self.base_offset)}.log"

    def cut(self, position: int) -> None:
        """Forget what lies behind a position, in the file too; the index is made anew by :meth:`scan`.

        Raises:
            LogWriteError: the disk is broken, or cannot be written to.
            OSError: the same.
        """
        with self._file() as descriptor:
            self._cut_file(descriptor, position)
        # An index that was written when the segment was longer. Without it the segment is read; a full disk lets go.
        self._place.discard(f"{segment_name(self.base_offset)}.index")
        self._forget()

    def _forget(self) -> None:
        self.bytes_written = self._indexed_until = self.last_append_ms = self.first_append_ms = 0
        self.entry_count = self._reserved_bytes = 0
        self._has_rest = False
        self.last_id = None
        self.end_offset = self.base_offset
        for column in (self._offsets, self._positions, self._times, self._ids):
            column.clear()

    # -- beginning

    def scan(self, *, whole_may_be_torn: bool, cuts: bool = True) -> Iterator[Entry]:
        """Yield every entry of the file, checked, and note it; a torn last one is cut off.

        Args:
            whole_may_be_torn: a last entry that has all its bytes, but not the right ones, may be one that was being
                written when the machine died. Else only an entry that is cut short is torn.
            cuts: cut a torn entry off in the file, too; else the file stays as it is.

        Raises:
            LogDamagedError: an entry is damaged that cannot be what was being written at the end, or cannot be read.
            LogWriteError: a torn entry cannot be cut off.
        """
        self._forget()
        with self._file() as descriptor:
            size = os.fstat(descriptor).st_size
            while self.bytes_written < size:
                start = self.bytes_written
                try:
                    for entry in entries_in(_whole_entries(descriptor, start, size)):
                        self._check_follows(entry)
                        self.note(entry, start + entry.position)
                        self.bytes_written = start + entry.end_position
                        yield entry
                except DamagedEntryError as error:
                    if self.bytes_written > start:
                        # Looked at once more, from there on.
                        continue
                    self._check_torn(descriptor, size, error, whole_may_be_torn=whole_may_be_torn)
                    if cuts:
                        self._cut_file(descriptor, self.bytes_written)
                    return
                except OSError as error:
                    raise self._unreadable(error) from error

    def _check_follows(self, entry: Entry) -> None:
        if entry.envelope.offset != self.end_offset:
            raise LogDamagedError(
                f"{self._path}, byte {self.bytes_written}: offset {entry.envelope.offset} lies where "
                f"{self.end_offset} was written"
            )

    def _unreadable(self, error: OSError) -> LogDamagedError:
        return LogDamagedError(f"{self._path}: cannot be read: {error.strerror}")

    def _check_torn(
        self, descriptor: int, size: int, error: DamagedEntryError, *, whole_may_be_torn: bool
    ) -> None:
        position = self.bytes_written
        try:
            rest = os.pread(descriptor, size - position, position)
        except OSError as unreadable:
            raise self._unreadable(unreadable) from unreadable
        where = f"{self._path}, byte {position}"
        is_short, claimed = _is_cut_short(rest)
        # Behind what the disk had no time for lies nothing, or room that was never written. What has entries behind it
        # may have been acknowledged, also if the machine went down since.
        is_last = len(rest.rstrip(b"\0")) <= (claimed or ENVELOPE_BYTES)
        if not (is_short or (whole_may_be_torn and is_last)):
            raise LogDamagedError(f"{where}: {error}; other bytes than were written lie before the log's end")

    def load_index(self) -> bool:
        """Take over the index that :meth:`save_index` wrote; False: there is none that fits the file."""
        try:
            document = self._place.load(f"{segment_name(self.base_offset)}.index")
        except LogDamagedError:
            # It was not synced, and the segment has all that it says.
            return False
        if document is None or document["bytes"] != self.file_bytes():
            return False
        self.bytes_written, self.end_offset = document["bytes"], document["end_offset"]
        self.first_append_ms, self.last_append_ms = document["times"]
        self.last_id = document["last_id"]
        self._offsets, self._positions, self._times, self._ids = document["index"]
        return True

    def save_index(self) -> None:
        """Write the index of a segment that will not change."""
        document: dict[str, Any] = {
            "bytes": self.bytes_written,
            "end_offset": self.end_offset,
            "times": [self.first_append_ms, self.last_append_ms],
            "last_id": self.last_id,
            "index": [self._offsets, self._positions, self._times, self._ids],
        }
        self._place.save(f"{segment_name(self.base_offset)}.index", document)

    # -- reading

    def read(self, offset: int, bytes_max: int, stop_offset: int) -> tuple[bytes, int]:
        """Read whole entries, from the one on that holds an offset: one at least, ``bytes_max`` if more fit.

        Returns:
            Their bytes, and the offset behind the last one.

        Raises:
            LogDamagedError: what lies there are no entries.
        """
        where = max(bisect_right(self._offsets, offset) - 1, 0)
        position = self._positions[where] if self._positions else 0
        try:
            with self._file() as descriptor:
                while position < self.bytes_written:
                    chunk = os.pread(descriptor, bytes_max + INDEX_EVERY_BYTES, position)
                    if len(chunk) >= ENVELOPE_BYTES:
                        first = read_envelope(chunk)
                        if first.entry_bytes > len(chunk):
                            chunk = os.pread(descriptor, first.entry_bytes, position)
                    found, end_offset, passed = _range_in(chunk, offset, bytes_max, stop_offset)
                    if found or not passed:
                        return found, end_offset
                    position += passed
        except DamagedEntryError as error:
            raise LogDamagedError(f"{self._path}: {error}") from error
        except OSError as error:
            raise self._unreadable(error) from error
        return b"", offset

    def offset_at(self, append_ms: int) -> int:
        """Offset of a noted entry before which all are older than a time."""
        where = max(bisect_right(self._times, append_ms - 1) - 1, 0)
        return self._offsets[where] if self._offsets else self.base_offset

    def offset_of_id(self, record_id: int) -> int:
        """Offset of a noted entry before which all ids are smaller than one."""
        found = self.base_offset
        for offset, before in zip(self._offsets, self._ids, strict=True):
            if before is not None and before >= record_id:
                break
            found = offset
        return found

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            # It is closed all the same, and whether the disk has its bytes is what a sync says.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _whole_entries(descriptor: int, position: int, size: int) -> bytes:
    """Read some MiB from an entry's beginning on, without the part of an entry at their end."""
    chunk = os.pread(descriptor, _SCAN_BYTES, position)
    stop = 0
    while stop + ENVELOPE_BYTES + HEADER_BYTES <= len(chunk):
        try:
            entry_bytes = read_envelope(chunk, stop).entry_bytes
        except DamagedEntryError:
            if not stop:
                raise
            # Those before it first.
            break
        if entry_bytes > ENVELOPE_BYTES + BATCH_BYTES_MAX:
            raise DamagedEntryError(f"an entry of {entry_bytes} bytes is not possible")
        if stop + entry_bytes > len(chunk):
            break
        stop += entry_bytes
    if stop:
        return chunk[:stop]
    if position + len(chunk) >= size:
        raise DamagedEntryError("the last entry is cut short")
    return os.pread(descriptor, ENVELOPE_BYTES + read_envelope(chunk).batch_bytes, position)


def _is_cut_short(rest: bytes) -> tuple[bool, int]:
    """Whether an entry begins there of which the file has only a part; and how many bytes it should have."""
    if len(rest) < ENVELOPE_BYTES:
        return True, 0
    try:
        claimed = read_envelope(rest).entry_bytes
    except DamagedEntryError:
        # Space that was set aside and never written.
        return not any(rest), 0
    return claimed > len(rest), claimed


def _range_in(chunk: bytes, offset: int, bytes_max: int, stop_offset: int) -> tuple[bytes, int, int]:
    """Cut wanted entries out of bytes; returns them, the offset behind them, and how many bytes were passed over."""
    position, start, end = 0, -1, offset
    size = len(chunk)
    while position + ENVELOPE_BYTES + HEADER_BYTES <= size:
        envelope = read_envelope(chunk, position)
        end_offset = envelope.offset + read_header(chunk, position + ENVELOPE_BYTES).record_count
        stop = position + envelope.entry_bytes
        if stop > size or end_offset > stop_offset:
            break
        if end_offset > offset:
            if start >= 0 and stop - start > bytes_max:
                break
            if checksum(chunk[position + ENVELOPE_BYTES : stop]) != envelope.batch_crc:
                raise DamagedEntryError(
                    f"the batch at offset {envelope.offset} has another checksum than was written"
                )
            start = position if start < 0 else start
            end = end_offset
        position = stop
    return (chunk[start:position], end, start) if start >= 0 else (b"", offset, position)
