"""A column of long texts whose pages are read when it is known where each text goes.

Page by page a text is read, decompressed and copied to the rows of its consumer while it is in the processor's cache.
Otherwise it would come from memory once more, and go back there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from weir.kernel_bytes import PADDING_BYTES, load4
from weir.kernels import byte_kernel
from weir.operators.kernel_types import BYTES, INT, INTS, OFFSETS, TYPES
from weir.operators.sources.parquet_headers import DamagedPageError
from weir.operators.sources.parquet_kernels import append_plain, copy_text
from weir.operators.sources.parquet_pages import Page, UnsupportedPageError

#: Room for the texts of each consumer: so many times their share, and so much more. If they are longer, all are read
#: first.
_ROOM_RATIO, _ROOM_BYTES = 1.25, 32 << 10
_ALIGNMENT_BYTES = 64
_NONE = np.empty(0, dtype=np.uint8)


class UnexpectedNullsError(Exception):
    """A column has nulls although the file says that it has none."""


@dataclass
class LateTexts:
    """Texts of some rows that follow each other in a row group: whole pages. Used until the next rows are read."""

    #: Of the column, and its place among the others.
    field: pa.Field
    place: int
    rows: int
    #: At most so many bytes.
    size_bytes: int
    #: Each reads one page; it may be called again.
    pages: Sequence[Callable[[], Page]]
    #: Reads all texts in another way, where a page has another form than its header says.
    read_otherwise: Callable[[], pa.Array]
    #: What is raised in place of an error of reading.
    unreadable: Callable[[Exception], Exception] = lambda error: error
    #: Rows without a value were to be put aside, and the file says that there are none.
    is_required: bool = False
    _whole: pa.Array | None = field(default=None, init=False)

    def array(self) -> pa.Array:
        """All of them, in order.

        Raises:
            InputError: they cannot be read.
        """
        if self._whole is None:
            try:
                try:
                    self._whole = self._read()
                except (DamagedPageError, UnsupportedPageError):
                    self._whole = self.read_otherwise()
                if self.is_required and self._whole.null_count:
                    raise UnexpectedNullsError(
                        f"its statistics say that column {self.field.name} has no nulls, but there are"
                    )
            except (OSError, pa.ArrowException, UnexpectedNullsError) as error:
                raise self.unreadable(error) from error
        return self._whole

    def joined(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with this column, which it lacks.

        Raises:
            InputError: it cannot be read.
        """
        return self.put_into(batch, self.array())

    def put_into(self, batch: pa.RecordBatch, texts: pa.Array) -> pa.RecordBatch:
        """The batch with these texts as the column that it lacks."""
        return batch.add_column(self.place, self.field, texts)

    def divided(self, order: np.ndarray, ends: Sequence[int]) -> list[pa.Array] | None:
        """The texts of each consumer, in order; None: :meth:`array` is to be ordered instead.

        Args:
            order: row numbers by consumer; uint32, shape (rows,).
            ends: where the rows of each consumer end in ``order``, after a 0.
        """
        if self._whole is not None:
            return None
        consumers = len(ends) - 1
        owners = np.empty(self.rows, dtype=np.int32)
        stops_of_rows = np.asarray(ends, dtype=np.int64)
        counts: np.ndarray = stops_of_rows[1:] - stops_of_rows[:-1]
        name_owners(order, stops_of_rows, owners)
        room = (counts * (self.size_bytes * _ROOM_RATIO / self.rows)).astype(np.int64) + _ROOM_BYTES
        room += -room % _ALIGNMENT_BYTES
        starts = np.cumsum(room) - room
        out = np.empty(int(room.sum()), dtype=np.uint8)
        #: Offsets of one consumer after those of another; each begins with 0.
        offsets = np.empty(self.rows + consumers, dtype=np.int32)
        firsts = stops_of_rows[:-1] + np.arange(consumers)
        offsets[firsts] = 0
        to, stops, nexts = starts.copy(), starts + room - PADDING_BYTES, firsts + 1
        row = 0
        try:
            for read in self.pages:
                page = read()
                if page.at < 0 or page.valid is not None or row + page.rows > self.rows:
                    return None
                at = divide_plain(
                    *(page.data, page.at, page.rows, owners, row, out),
                    *(starts, to, stops, offsets, nexts),
                )
                if at < 0:
                    return None
                row += page.rows
                # The next one takes its memory, which is in the processor's cache.
                del page
        except (DamagedPageError, UnsupportedPageError, OSError):
            # What is wrong is told by who reads them in order.
            return None
        if row != self.rows:
            return None
        return [
            pa.Array.from_buffers(
                self.field.type,
                int(count),
                [None, pa.py_buffer(offsets[first : first + count + 1]), pa.py_buffer(out[start:stop])],
                0,
            )
            for first, count, start, stop in zip(
                firsts.tolist(), counts.tolist(), starts.tolist(), to.tolist(), strict=True
            )
        ]

    def _read(self) -> pa.Array:
        offsets = np.zeros(self.rows + 1, dtype=np.int32)
        valid: np.ndarray | None = None
        out = np.empty(self.size_bytes + PADDING_BYTES, dtype=np.uint8)
        row = 0
        for read in self.pages:
            page = read()
            if page.at < 0 or row + page.rows > self.rows:
                raise UnsupportedPageError("a page is not as its header says")
            is_there = _NONE if page.valid is None else page.valid.view(np.uint8)
            count, at = append_plain(
                *(page.data, page.at, page.rows, is_there, 0, offsets, row, out, self.size_bytes)
            )
            if at < 0 or count < page.rows:
                raise DamagedPageError("a page has fewer values than it says")
            if page.valid is not None:
                valid = np.ones(self.rows, dtype=np.bool_) if valid is None else valid
                valid[row : row + page.rows] = page.valid
            row += page.rows
        if row != self.rows:
            raise UnsupportedPageError("pages are not as their headers say")
        bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        nulls = 0 if valid is None else self.rows - int(np.count_nonzero(valid))
        texts = pa.py_buffer(out[: int(offsets[-1])])
        return pa.Array.from_buffers(
            self.field.type, self.rows, [bitmap, pa.py_buffer(offsets), texts], nulls
        )


@dataclass(frozen=True, slots=True)
class LateRows:
    """Rows without one column, and that column."""

    batch: pa.RecordBatch
    late: LateTexts


@byte_kernel(TYPES.void(TYPES.Array(TYPES.uint32, 1, "C"), INTS, OFFSETS))
def name_owners(order: np.ndarray, ends: np.ndarray, owners: np.ndarray) -> None:
    """The consumer of each row.

    Args:
        order: uint32, row numbers by consumer, each row once.
        ends: int64, where the rows of each consumer end in ``order``, after a 0.
        owners: int32, shape (rows,); filled.
    """
    for owner in range(len(ends) - 1):
        for place in range(ends[owner], ends[owner + 1]):
            owners[order[place]] = owner


@byte_kernel(INT(BYTES, INT, INT, OFFSETS, INT, BYTES, INTS, INTS, INTS, OFFSETS, INTS))
def divide_plain(
    data: np.ndarray,
    at: int,
    count: int,
    owners: np.ndarray,
    row: int,
    out: np.ndarray,
    starts: np.ndarray,
    to: np.ndarray,
    stops: np.ndarray,
    offsets: np.ndarray,
    nexts: np.ndarray,
) -> int:
    """Copy plain texts, each after four bytes with its length, to the texts of their consumers.

    Args:
        data: uint8, shape (bytes,): the page; every row has a value.
        at: where the first one begins.
        count: rows of the page.
        owners: int32, the consumer of each row.
        row: number of the first row in ``owners``.
        out: uint8; what lies ``PADDING_BYTES`` or less after each of ``stops`` is nobody's, and is overwritten.
        starts: int64, where the texts of each consumer begin in ``out``.
        to: int64, where the next one goes; changed.
        stops: int64, where they must end.
        offsets: int32, filled: the end of each text, counted from the first one of its consumer.
        nexts: int64, where the next of these goes; changed.

    Returns:
        Position after them; -1: the page is damaged, or there is no room.
    """
    stop = len(data)
    safe = stop - PADDING_BYTES
    for number in range(count):
        if at + 4 > stop:
            return -1
        length = int(load4(data, at))
        at += 4
        owner = owners[row + number]
        place = to[owner]
        if length > stop - at or place + length > stops[owner]:
            return -1
        copy_text(data, at, length, out, place, safe)
        at += length
        place += length
        to[owner] = place
        offsets[nexts[owner]] = place - starts[owner]
        nexts[owner] += 1
    return at
