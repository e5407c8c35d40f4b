"""Reads the lines of one split in big blocks, with bounded memory whatever the length of a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from weir.errors import InputError
from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.files.input_files import InputFiles, unreadable
from weir.operators.sources.files.local_input import LOCAL_INPUT
from weir.operators.sources.files.positions import FileMark, mark_of
from weir.operators.sources.files.splits import Split, open_split

#: Bytes that a reader holds, unless a line is longer.
BUFFER_BYTES = 4 << 20
#: Beginning of an overlong line that is kept for its dead letter.
OVERLONG_HEAD_BYTES = 4096

_SEARCH_BYTES = 64 << 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """A line beyond the bound, passed over without being held: offset in the file, length, first bytes."""

    position: int
    length_bytes: int
    head: bytes


class LineReader:
    """A window of whole lines over a split; the owner takes ``data[start:stop]``, moves ``start``, refills.

    Args:
        split: what to read; opened at once.
        line_bytes_max: longer lines may be passed over (those that do not fit into the buffer are).
        buffer_bytes: size of the buffer.
        files: where the file is.
        buffer: one of a reader that is done, to be used again: a new one costs as much as reading a part of a file.

    Raises:
        InputError: the file cannot be read; also from :meth:`check`.
    """

    def __init__(
        self,
        split: Split,
        line_bytes_max: int,
        buffer_bytes: int = BUFFER_BYTES,
        files: InputFiles = LOCAL_INPUT,
        buffer: bytearray | None = None,
    ) -> None:
        self._split = split
        #: Why nothing more can be read.
        self._failure: InputError | None = None
        self._line_bytes_max = line_bytes_max
        size_bytes = buffer_bytes + PADDING_BYTES
        if buffer is None or len(buffer) != size_bytes:
            buffer = bytearray(size_bytes)
        self._bytes = buffer
        #: uint8, the buffer and its padding.
        self.data: np.ndarray = np.frombuffer(self._bytes, dtype=np.uint8)
        #: Whole lines are in ``data[start:stop]``; the last one ends with a newline, if need be an added one.
        self.start = 0
        self.stop = 0
        #: Offset of ``data[0]`` in the (decompressed) file.
        self.base_offset = 0
        #: Nothing is left to read from the file.
        self.exhausted = False
        #: Bytes of the lines that the owner took last.
        self.batch_bytes = buffer_bytes // 2
        self._filled = 0
        self._has_mark = False
        try:
            self._source = _SplitSource(split, files)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error, split.start_bytes) from error
        self.base_offset = self._source.offset
        if split.resumed and self.base_offset != split.start_bytes:
            self._source.close()
            raise InputError(
                f"input {split.path} has changed since the checkpoint: no line starts at byte {split.start_bytes}; "
                "put the file back as it was, or start without the checkpoint"
            )

    @property
    def path(self) -> str:
        """The file being read."""
        return self._split.path

    @property
    def split(self) -> Split:
        """What is being read."""
        return self._split

    @property
    def buffer(self) -> bytearray:
        """What the window lies in, for the next reader."""
        return self._bytes

    def line_offset(self, position: int) -> int:
        """Offset in the (decompressed) file of the line at a position of ``data``."""
        offset = self.base_offset + position
        # Whoever starts there must see the byte order mark, which belongs to no line.
        return 0 if self._has_mark and offset == len(_BYTE_ORDER_MARK) else offset

    def refill(self, grows: bool = False) -> list[OverlongLine]:
        """Drop what was consumed and read until the buffer is full or the split ends.

        Args:
            grows: the lines at hand are too few for the owner: make a full buffer larger, up to three times the bound
                of a line.

        Returns:
            Lines that were passed over. Afterwards ``start == stop`` means that the split is finished.
        """
        overlong: list[OverlongLine] = []
        try:
            self._compact()
            too_little = self.stop if grows else -1
            while not self.exhausted:
                if self._filled == self._capacity:
                    if self.stop == too_little and self._filled <= 3 * self._line_bytes_max:
                        self._grow()
                        continue
                    # Behind a byte order mark the window does not begin at 0.
                    if self.stop > self.start:
                        break
                    if self._filled <= self._line_bytes_max:
                        self._grow()
                    else:
                        overlong.append(self._pass_over())
                        continue
                self._read()
        except (OSError, pa.ArrowException) as error:
            # What is at hand comes first.
            self._failure = self._unreadable(error, self._source.offset)
            self._failure.__cause__ = error
            self.exhausted = True
            self._filled = self.stop
        return overlong

    def check(self) -> None:
        """Called when all lines at hand were taken.

        Raises:
            InputError: there are no more because the file cannot be read.
        """
        if self._failure is not None:
            raise self._failure

    @property
    def at_last_line(self) -> bool:
        """The file ends with the window."""
        return self.exhausted and self._failure is None

    @property
    def at_end(self) -> bool:
        """Everything was read and taken."""
        return self.at_last_line and self.start == self.stop

    def mark(self, size_bytes: int) -> FileMark:
        """The mark of the first so many bytes of the file that is read; nothing is read on after that.

        Raises:
            InputError: it cannot be read.
        """
        try:
            return self._source.mark(size_bytes)
        except OSError as error:
            raise self._unreadable(error, self._source.offset) from error

    def close(self) -> None:
        """Release the file; safe to call twice."""
        self._source.close()

    @property
    def _capacity(self) -> int:
        return len(self._bytes) - PADDING_BYTES

    def _compact(self) -> None:
        kept = self._filled - self.start
        self.data[:kept] = self.data[self.start : self._filled]
        self.base_offset += self.start
        self.stop -= self.start
        self.start = 0
        self._filled = kept

    def _grow(self) -> None:
        bytes_ = bytearray(2 * self._capacity + PADDING_BYTES)
        bytes_[: self._filled] = self.data[: self._filled].data
        self._bytes = bytes_
        self.data = np.frombuffer(bytes_, dtype=np.uint8)

    def _read(self) -> None:
        at_file_start = self.base_offset == 0 and self._filled == 0
        count = self._source.readinto(memoryview(self._bytes)[self._filled : self._capacity])
        if count == 0:
            self.exhausted = True
            if self._filled > self.stop:
                self._bytes[self._filled] = 0x0A
                self.stop = self._filled = self._filled + 1
            return
        newline = self._bytes.rfind(b"\n", self._filled, self._filled + count)
        self._filled += count
        if newline >= 0:
            self.stop = newline + 1
        if at_file_start and self._bytes.startswith(_BYTE_ORDER_MARK) and self._filled >= 3:
            self._has_mark = True
            self.start = 3
            self.stop = max(self.stop, 3)

    def _pass_over(self) -> OverlongLine:
        """Skip the rest of the line that fills the buffer; only its beginning is kept."""
        position = self.base_offset + self.start
        head = bytes(self._bytes[self.start : min(self._filled, self.start + OVERLONG_HEAD_BYTES)])
        length = self._filled - self.start
        while True:
            count = self._source.readinto(memoryview(self._bytes)[: self._capacity])
            newline = self._bytes.find(b"\n", 0, count)
            if count == 0 or newline >= 0:
                break
            length += count
        self.base_offset = position + length
        self.start = self.stop = 0
        self._filled = count
        if count == 0:
            self.exhausted = True
        else:
            length += newline
            self.start = newline + 1
            self.stop = self._bytes.rfind(b"\n", 0, count) + 1
            self._compact()
        return OverlongLine(position, length, head)

    def _unreadable(self, error: Exception, offset: int) -> InputError:
        codec = self._split.codec
        if codec is None:
            return unreadable(self._split.path, error)
        kind = f"check the file: it is broken after byte {offset} of its content, cut short, or not {codec}"
        return unreadable(self._split.path, error, kind)


class _SplitSource:
    """Gives exactly the bytes of the lines that start in a split."""

    def __init__(self, split: Split, files: InputFiles) -> None:
        self._file: BinaryIO = open_split(split, files)
        self._is_compressed = split.compressed
        self._stop = 1 << 62 if split.compressed else split.stop_bytes
        self._ended = False
        self._last = 0x0A
        #: Offset of the next byte.
        self.offset = split.start_bytes
        if split.start_bytes:
            try:
                self._skip_first_line()
            except OSError:
                self._file.close()
                raise

    def readinto(self, view: memoryview) -> int:
        """Fill from the front; 0 at the end of the last line."""
        if self._ended or (self.offset >= self._stop and self._last == 0x0A):
            return 0
        inside = self.offset < self._stop
        # Behind the stop only the rest of one line is wanted.
        size = min(len(view), self._stop - self.offset if inside else _SEARCH_BYTES)
        count = self._file.readinto(view[:size])  # type: ignore[attr-defined]
        if count and not inside:
            newline = bytes(view[:count]).find(b"\n")
            if newline >= 0:
                count = newline + 1
                self._ended = True
        if not count:
            self._ended = True
            if inside:
                self._check_end()
            return 0
        self.offset += count
        self._last = view[count - 1]
        return int(count)

    def _skip_first_line(self) -> None:
        """Go to the first line that starts in the split: after the first newline from ``start - 1`` on."""
        at = self.offset - 1
        self._file.seek(at)
        while at < self._stop:
            block = self._file.read(_SEARCH_BYTES)
            newline = block.find(b"\n")
            if newline >= 0:
                self.offset = at + newline + 1
                self._ended = self.offset >= self._stop
                self._file.seek(self.offset)
                return
            if not block:
                self.offset = at
                self._check_end()
                break
            at += len(block)
        self._ended = True

    def _check_end(self) -> None:
        """The file ends here.

        Raises:
            OSError: there was more of it when the split was made, and nobody read that.
        """
        if not self._is_compressed and self.offset < self._stop:
            raise OSError(
                f"it has become shorter while it was read: it had {self._stop} bytes or more, and ends after "
                f"{self.offset}"
            )

    def mark(self, size_bytes: int) -> FileMark:
        """Return the mark that :meth:`LineReader.mark` describes."""
        return mark_of(self._file, size_bytes)

    def close(self) -> None:
        self._file.close()
