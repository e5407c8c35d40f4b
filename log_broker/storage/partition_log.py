"""The log of one replica: segments, what is told at the start of each, and the newest entries in memory."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.storage.places import Place, segment_name
from log_broker.storage.segment import Segment
from weir.protocol.log.entries import Entry
from weir.protocol.log.lineage import Lineage
from weir.protocol.log.producers import ProducerTable

#: Newest entries that are kept in memory, so that followers and readers who are level cost no reading.
RECENT_BYTES_MAX = 16 << 20


def _first_of(write: tuple[int, int, list[bytes]]) -> int:
    return write[0]


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """How a partition is kept."""

    segment_bytes: int = 64 << 20
    #: Begin another segment after so many entries, since a start reads all of the last segment, however small they are.
    segment_entries: int = 32_768
    #: 0: for ever.
    retention_ms: int = 0
    #: 0: no bound.
    retention_bytes: int = 0

    @property
    def segment_ms(self) -> int:
        """Begin another segment after so long, so that retention by whole segments is not much late; 0: never."""
        return self.retention_ms // 4


class PartitionLog:
    """Stores entries in order. Not safe for several threads; all of it blocks for as long as the disk does."""

    def __init__(self, place: Place, settings: LogSettings, *, syncs: bool = False) -> None:
        """Begin empty; :meth:`recover` comes next, if something may be there.

        Args:
            place: of the files.
            settings: of the topic.
            syncs: the caller takes :meth:`to_sync` again and again, so that segments which were left may wait for it.
        """
        self._place = place
        self.settings = settings
        self.lineage = Lineage()
        self.producers = ProducerTable()
        self.end_offset = 0
        self._segments: list[Segment] = []
        self._recent: deque[tuple[int, int, list[bytes]]] = deque()
        self._recent_bytes = 0
        #: Of the newest entries, so many bytes are kept in memory.
        self.recent_bytes_max = RECENT_BYTES_MAX
        self._syncs = syncs
        #: Descriptors of segments that were left since the last :meth:`to_sync`; what is removed waits there, too.
        self._unsynced: list[int] = []

    def recover(self, *, whole_may_be_torn: bool = False) -> None:
        """Find what is stored: the last segment is read, those before it have an index.

        Raises:
            LogDamagedError: not all of it can be trusted; what is stored is not changed then.
        """
        self._drop_unbegun()
        bases = self._place.bases()
        if absent := [
            each for each in self._place.starts() if each not in bases and each > min(bases, default=-1)
        ]:
            raise LogDamagedError(f"{self._place.name}: the segment from offset {absent[0]} on is absent")
        segments = [Segment(self._place, base) for base in bases]
        for segment in segments[:-1]:
            if not segment.load_index():
                for _ in segment.scan(whole_may_be_torn=False):
                    pass
                segment.save_index()
        for segment, following in pairwise(segments):
            if segment.end_offset != following.base_offset:
                raise LogDamagedError(
                    f"{self._place.name}: entries from {segment.end_offset} to {following.base_offset} are absent"
                )
        for last in segments[-1:]:
            self._scan_last(last, whole_may_be_torn=whole_may_be_torn)
        # Not before: whoever closes this log would cut a file that was not read yet, or not wholly, at its end so far.
        self._segments += segments

    def _drop_unbegun(self) -> None:
        """Remove a last segment whose start was not noted before the process died: nothing is in it."""
        for base in self._place.bases()[-1:]:
            if base not in self._place.starts() and not Segment(self._place, base).file_bytes():
                self._place.remove(base)

    def _scan_last(self, last: Segment, *, whole_may_be_torn: bool) -> None:
        self._take_start(self._start_of(last), last.base_offset)
        for entry in last.scan(whole_may_be_torn=whole_may_be_torn):
            self._note(entry)
        # What an earlier process had reserved.
        last.release()

    def _start_of(self, segment: Segment) -> dict[str, Any]:
        name = f"{segment_name(segment.base_offset)}.start"
        start = self._place.load(name)
        if start is None:
            raise LogDamagedError(f"{self._place.name}/{name} is absent")
        return start

    def first_start(self) -> dict[str, Any]:
        """Return what has to be known of all before the first entry that is kept."""
        return self._start_of(self._segments[0]) if self._segments else self.start_document()

    def _take_start(self, start: dict[str, Any], offset: int) -> None:
        self.lineage = Lineage([(epoch, begin) for epoch, begin in start["lineage"]])
        self.producers.restore(start["producers"])
        self.end_offset = offset

    def _note(self, entry: Entry) -> None:
        self.lineage.add(entry.envelope.epoch, entry.envelope.offset)
        self.producers.note(entry.header, entry.envelope.offset)
        self.end_offset = entry.end_offset

    def start_document(self) -> dict[str, Any]:
        """Return what has to be known of all before the end: epochs and producers."""
        return {
            "lineage": [list(pair) for pair in self.lineage.starts],
            "producers": self.producers.snapshot(),
        }

    # -- writing

    def append(self, parts: list[bytes], entries: Iterable[Entry]) -> None:
        """Write whole entries at the end; all of them or none.

        Args:
            parts: their bytes.
            entries: what they are, with positions in these bytes.

        Raises:
            LogWriteError: the disk is full or broken, or the memory that the topic may have is; nothing is changed.
        """
        noted = list(entries)
        self._check_room(sum(map(len, parts)))
        segment = self._segment_for(noted[0].envelope.append_ms)
        position = segment.bytes_written
        segment.write(parts)
        first = self.end_offset
        for entry in noted:
            segment.note(entry, position + entry.position)
            self._note(entry)
        self._recent.append((first, self.end_offset, parts))
        self._recent_bytes += sum(map(len, parts))
        while self._recent_bytes > self.recent_bytes_max:
            self._recent_bytes -= sum(map(len, self._recent.popleft()[2]))

    def _check_room(self, size: int) -> None:
        place = self._place
        if place.bytes_max and self.bytes_kept + size > place.bytes_max:
            raise LogWriteError(
                f"{place.name}: {self.bytes_kept} bytes are kept, and {place.bytes_max} may be; what is not on a "
                "majority of the replicas cannot be removed: start the brokers that are away"
            )

    def _segment_for(self, now_ms: int) -> Segment:
        last = self._segments[-1] if self._segments else None
        if last is not None:
            is_old = self.settings.segment_ms and now_ms - last.first_append_ms >= self.settings.segment_ms
            is_full = (
                last.bytes_written >= self.settings.segment_bytes
                or last.entry_count >= self.settings.segment_entries
            )
            if not is_full and not (is_old and last.bytes_written):
                return last
            last.release()
            last.save_index()
        with contextlib.ExitStack() as undo:
            left: list[int] = []
            if last is not None and self._syncs:
                left.append(_descriptor_of(last))
                undo.callback(os.close, *left)
            segment = Segment(self._place, self.end_offset, is_new=True)
            undo.callback(self._unmake, segment)
            # Behind the file: where a start finds this and no file, the file is lost. It syncs the file's name, too: a
            # file that is synced and has no name after the machine went down is lost all the same.
            self._place.save(
                f"{segment_name(self.end_offset)}.start", self.start_document(), is_synced=self._syncs
            )
            undo.pop_all()
        # Not before: where the disk is full all of this comes again.
        self._unsynced += left
        if last is not None:
            last.close()
        self._segments.append(segment)
        return segment

    def _unmake(self, segment: Segment) -> None:
        segment.close()
        # What is left is empty, and the next attempt finds it.
        with contextlib.suppress(OSError):
            self._place.remove(segment.base_offset)

    def to_sync(self) -> list[int]:
        """Return descriptors to sync, which the caller closes, of all that was written until now."""
        descriptors, self._unsynced = self._unsynced, []
        if self._segments:
            descriptors.append(self._segments[-1].descriptor())
        return descriptors

    def sync_all(self) -> None:
        """Let all that is kept be on the disk; what is there already costs next to nothing.

        Raises:
            OSError: the disk cannot.
            LogDamagedError: a file is gone.
        """
        for segment in self._segments:
            sync([segment.descriptor()])
        sync(self.to_sync())

    def truncate(self, offset: int) -> None:
        """Forget all at or behind an offset, at which an entry begins or the log ends.

        Raises:
            LogDamagedError: what lies before it is not what was written.
            LogWriteError: the disk is broken, or cannot be written to.
            OSError: the same.
        """
        if offset >= self.end_offset:
            return
        self._recent.clear()
        self._recent_bytes = 0
        while self._segments and self._segments[-1].base_offset > offset:
            self._remove(self._segments.pop())
        if not self._segments:
            self.end_offset = offset
            self.lineage, self.producers = Lineage(), ProducerTable()
            return
        last = self._segments[-1]
        position = 0
        for entry in last.scan(whole_may_be_torn=False):
            if entry.envelope.offset >= offset:
                break
            position += entry.envelope.entry_bytes
            if entry.end_offset >= offset:
                # What is cut off may be anything.
                break
        last.cut(position)
        self._scan_last(last, whole_may_be_torn=False)
        if self.end_offset != offset:
            # Else what comes next would leave a gap that every reader passes over.
            raise LogDamagedError(
                f"{self._place.name}: entries from {self.end_offset} to {offset} are absent"
            )

    def begin_at(self, offset: int, start: dict[str, Any]) -> None:
        """Forget everything and begin at an offset; ``start`` says what has to be known of all before it."""
        self.clear()
        self._take_start(start, offset)

    def clear(self) -> None:
        """Forget everything."""
        self._recent.clear()
        self._recent_bytes = 0
        for segment in self._segments:
            self._remove(segment)
        self._segments.clear()
        self._take_start({"lineage": [], "producers": []}, 0)

    def retain(self, now_ms: int, commit_offset: int) -> None:
        """Remove whole segments that are too old or too many, of what is committed; never the last one."""
        settings = self.settings
        total = sum(segment.bytes_written for segment in self._segments)
        while len(self._segments) > 1 and self._segments[1].base_offset <= commit_offset:
            first = self._segments[0]
            is_old = settings.retention_ms and now_ms - first.last_append_ms > settings.retention_ms
            is_much = settings.retention_bytes and total > settings.retention_bytes
            if not (is_old or is_much):
                return
            total -= first.bytes_written
            self._remove(self._segments.pop(0))

    def _remove(self, segment: Segment) -> None:
        segment.close()
        self._place.remove(segment.base_offset)

    # -- reading

    @property
    def first_offset(self) -> int:
        """Offset of the first entry that is kept."""
        return self._segments[0].base_offset if self._segments else self.end_offset

    def read(self, offset: int, bytes_max: int, stop_offset: int) -> tuple[bytes, int]:
        """Read as :meth:`read_parts`; the bytes in one piece."""
        parts, end = self.read_parts(offset, bytes_max, stop_offset)
        return b"".join(parts), end

    def read_parts(self, offset: int, bytes_max: int, stop_offset: int) -> tuple[list[bytes], int]:
        """Read whole entries from the one on that holds an offset, and no further than ``stop_offset``.

        Returns:
            Their bytes in pieces, and the offset behind the last one; no pieces and ``offset``: there are none.

        Raises:
            LogDamagedError: what is stored is not what was written.
        """
        if offset >= min(stop_offset, self.end_offset) or offset < self.first_offset:
            return [], offset
        found = self._read_recent(offset, bytes_max, stop_offset)
        if found is not None:
            return found
        where = bisect_right([segment.base_offset for segment in self._segments], offset) - 1
        chunk, end = self._segments[where].read(offset, bytes_max, stop_offset)
        return ([chunk] if chunk else []), end

    def _read_recent(self, offset: int, bytes_max: int, stop_offset: int) -> tuple[list[bytes], int] | None:
        """Read from memory, where a write began at the offset; None: none did."""
        where = bisect_left(self._recent, offset, key=_first_of)
        if where == len(self._recent) or self._recent[where][0] != offset:
            return None
        parts: list[bytes] = []
        size, found_end = 0, offset
        for _, end, each in islice(self._recent, where, None):
            size += sum(map(len, each))
            if end > stop_offset or (parts and size > bytes_max):
                break
            parts.extend(each)
            found_end = end
        return parts, found_end

    def offset_at(self, append_ms: int) -> int:
        """Return an offset before which every entry is older than a time, as near as the index tells."""
        for segment in self._segments:
            if segment.last_append_ms >= append_ms:
                return segment.offset_at(append_ms)
        return self.end_offset

    def offset_of_id(self, record_id: int) -> int:
        """Return an offset before which every id is smaller than one, as near as the index tells."""
        for segment in self._segments:
            if segment.last_id is not None and segment.last_id >= record_id:
                return segment.offset_of_id(record_id)
        return self.end_offset

    @property
    def last_append_ms(self) -> int:
        """Time of the newest entry, ms since the epoch; 0: there is none."""
        return max((segment.last_append_ms for segment in self._segments[-2:]), default=0)

    @property
    def bytes_kept(self) -> int:
        """Size of all segments."""
        return sum(segment.bytes_written for segment in self._segments)

    def close(self) -> None:
        """Close all files, also those that are gone or broken."""
        for segment in self._segments[-1:]:
            # What was set aside is given back at the next start.
            with contextlib.suppress(LogWriteError, LogDamagedError):
                segment.release()
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        for descriptor in self._unsynced:
            os.close(descriptor)
        self._unsynced.clear()


def sync(descriptors: list[int]) -> None:
    """Let files be on the disk, and close them, whatever happens.

    Raises:
        OSError: the disk has not taken one of them.
    """
    with contextlib.ExitStack() as opened:
        for descriptor in descriptors:
            opened.callback(os.close, descriptor)
        for descriptor in descriptors:
            os.fdatasync(descriptor)


def _descriptor_of(segment: Segment) -> int:
    try:
        return segment.descriptor()
    except OSError as error:
        raise LogWriteError(f"a segment cannot be opened once more: {error.strerror}") from error
