"""A column of long texts whose pages are read when it is known where each text goes.

Page by page a text is read, decompressed and copied to the rows of its consumer while it is in the processor's cache.
Otherwise it would come from memory once more, and go back there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest

import numpy as np
import pyarrow as pa

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.parquet.parquet_division import Targets, divide_found, divide_plain, name_owners
from weir.operators.sources.parquet.parquet_headers import DamagedPageError
from weir.operators.sources.parquet.parquet_kernels import append_found, append_plain
from weir.operators.sources.parquet.parquet_packed import divide_packed
from weir.operators.sources.parquet.parquet_pages import LaterPage, Page, UnsupportedPageError
from weir.rows.late_column import MakesRoom
from weir.rows.utf8 import are_utf8, wrong_texts

#: Room for the texts of each consumer: so many times their share, and so much more. If they are longer, all are read
#: first.
_ROOM_RATIO, _ROOM_BYTES = 1.25, 32 << 10
_NONE = np.empty(0, dtype=np.uint8)


class _OwnRoom:
    """Memory of its own for texts; see ``weir.rows.late_column.TextRoom``."""

    def __init__(self, size_bytes: int) -> None:
        self._bytes = np.empty(size_bytes, dtype=np.uint8)
        self.address: int = self._bytes.ctypes.data

    def taken(self, size_bytes: int) -> pa.Buffer:
        return pa.py_buffer(self._bytes[:size_bytes])


class UnexpectedNullsError(Exception):
    """A column has nulls although the file says that it has none."""


@dataclass
class LateTexts:
    """Texts of some rows that follow each other in a row group. Used until the next rows are read."""

    #: Of the column, and its place among the others.
    field: pa.Field
    place: int
    rows: int
    #: About so many bytes: at most so many, if they are all texts of their pages.
    size_bytes: int
    #: A page that can be divided while it is read may begin with texts of rows before these, and end with later ones.
    pages: Sequence[LaterPage]
    #: Reads all texts in another way, where a page has another form than its header says.
    read_otherwise: Callable[[], pa.Array]
    #: What is raised in place of an error of reading.
    unreadable: Callable[[Exception], Exception] = lambda error: error
    #: Rows without a value were to be put aside, and the file says that there are none.
    is_required: bool = False
    #: What is told of each row with a text that is not UTF-8: its number, the reason, the whole row. None: who reads
    #: the texts looks at them.
    put_aside: Callable[[int, str, pa.RecordBatch], None] | None = None
    #: Texts of the first page that belong to rows before these.
    passed: int = 0
    #: See ``weir.rows.late_column.LateColumn``.
    constants: Collection[str] = ()
    kept: np.ndarray | None = field(default=None, init=False)
    _whole: pa.Array | None = field(default=None, init=False)

    def array(self) -> pa.Array:
        """Return all texts, in order.

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
        """The batch with this column, which it lacks; rows with texts that are not UTF-8 are put aside.

        Raises:
            InputError: it cannot be read, or rows must not be put aside.
        """
        whole = self.put_into(batch, self.array())
        if self.put_aside is None or are_utf8(self.array()):
            return whole
        good = np.ones(self.rows, dtype=np.bool_)
        for row, name in wrong_texts(whole).items():
            good[row] = False
            self.put_aside(row, f"field {name} is not UTF-8", whole.slice(row, 1))
        self.kept = good
        return whole.filter(pa.array(good))

    def put_into(self, batch: pa.RecordBatch, texts: pa.Array) -> pa.RecordBatch:
        """The batch with these texts as the column that it lacks."""
        return batch.add_column(self.place, self.field, texts)

    def divided(
        self, order: np.ndarray, ends: Sequence[int], rooms: Sequence[MakesRoom | None] = ()
    ) -> list[pa.Array] | None:
        """The texts of each consumer, in order; None: :meth:`array` is to be ordered instead.

        Args:
            order: numbers of the rows that count, by consumer; uint32, shape (rows that count,).
            ends: where the rows of each consumer end in ``order``, after a 0.
            rooms: for each consumer what makes room for its texts; None, or none at all: they get memory of their own.
        """
        if self._whole is not None:
            return None
        stops_of_rows = np.asarray(ends, dtype=np.int64)
        if len(order) < self.rows:
            # The texts of the others are put together, too, for nobody.
            is_other = np.ones(self.rows, dtype=np.bool_)
            is_other[order] = False
            order = np.concatenate([order, is_other.nonzero()[0].astype(np.uint32)])
            stops_of_rows = np.append(stops_of_rows, self.rows)
        counts: np.ndarray = stops_of_rows[1:] - stops_of_rows[:-1]
        owners = np.empty(self.rows, dtype=np.int32)
        name_owners(order, stops_of_rows, owners)
        room_bytes = (counts * (self.size_bytes * _ROOM_RATIO / self.rows)).astype(np.int64) + _ROOM_BYTES
        places = [
            (make(size_bytes) if make is not None else None) or _OwnRoom(size_bytes)
            for make, size_bytes in zip_longest(rooms, room_bytes.tolist())
        ]
        starts = np.array([place.address for place in places], dtype=np.int64)
        to, stops = starts.copy(), starts + room_bytes - PADDING_BYTES
        #: Offsets of one consumer after those of another; each begins with 0.
        offsets = np.empty(self.rows + len(places), dtype=np.int32)
        firsts = stops_of_rows[:-1] + np.arange(len(places))
        offsets[firsts] = 0
        if not self._divide(Targets(owners, starts, to, stops, offsets, firsts + 1)):
            return None
        used = (to - starts).tolist()

        def texts(first: int, count: int, data: pa.Buffer) -> pa.Array:
            ends = pa.py_buffer(offsets[first : first + count + 1])
            return pa.Array.from_buffers(self.field.type, count, [None, ends, data], 0)

        parts = list(zip(firsts.tolist(), counts.tolist(), places, used, strict=True))
        # A room is looked at before it is taken.
        seen = (texts(f, c, pa.foreign_buffer(place.address, size, place)) for f, c, place, size in parts)
        if not all(map(are_utf8, seen)):
            return None
        return [texts(f, count, place.taken(size)) for f, count, place, size in parts[: len(ends) - 1]]

    def _divide(self, targets: Targets) -> bool:
        """Copy all texts, page by page; False: it cannot be."""
        left = sum(page.rows for page in self.pages) - self.passed - self.rows
        if left < 0:
            return False
        row = 0
        try:
            for is_packed, group in groupby(self.pages, lambda page: page.packed is not None):
                if is_packed:
                    places = list(group)
                    packed = [page.packed for page in places if page.packed is not None]
                    passed = self.passed if places[0] is self.pages[0] else 0
                    left_here = left if places[-1] is self.pages[-1] else 0
                    row = divide_packed(packed, row, targets, passed, left_here)
                else:
                    for later in group:
                        row = self._divide_page(later.read(), row, targets)
                if row < 0:
                    return False
        except (DamagedPageError, UnsupportedPageError, OSError):
            # What is wrong is told by who reads them in order.
            return False
        return row == self.rows

    def _divide_page(self, page: Page, row: int, targets: Targets) -> int:
        """Copy the texts of a page that was read; returns the number of the next row, or -1."""
        if page.valid is not None or row < 0 or row + page.rows > self.rows:
            return -1
        if page.at < 0:
            at = divide_found(page.data, page.starts, page.lengths, page.rows, row, targets)
        else:
            at = divide_plain(page.data, page.at, page.rows, row, targets)
        return row + page.rows if at >= 0 else -1

    def _read(self) -> pa.Array:
        """Read all texts; of a page that is begun or cut here it is noted how far it was read."""
        bytes_max = sum(page.size_bytes for page in self.pages)
        offsets = np.zeros(self.rows + 1, dtype=np.int32)
        valid: np.ndarray | None = None
        out = np.empty(bytes_max + PADDING_BYTES, dtype=np.uint8)
        row, first = 0, self.passed
        for later in self.pages:
            page = later.read()
            wanted = min(page.rows - first, self.rows - row)
            if page.rows != later.rows or wanted <= 0:
                raise UnsupportedPageError("a page is not as its header says")
            at, target = 0, (offsets, row, out, bytes_max)
            if page.at < 0:
                count = append_found(page.data, page.starts, page.lengths, first, wanted, *target)
            else:
                _pass_over(page, first)
                count, at = append_plain(page.data, page.at, wanted, _presence(page), first, *target)
            if at < 0 or count < wanted:
                raise DamagedPageError("a page has fewer values than it says")
            if page.valid is not None:
                valid = np.ones(self.rows, dtype=np.bool_) if valid is None else valid
                valid[row : row + wanted] = page.valid[first : first + wanted]
            if first + wanted < page.rows:
                page.next_row, page.at = first + wanted, at
            row, first = row + wanted, 0
        if row != self.rows:
            raise UnsupportedPageError("pages are not as their headers say")
        bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        nulls = 0 if valid is None else self.rows - int(np.count_nonzero(valid))
        texts = pa.py_buffer(out[: int(offsets[-1])])
        return pa.Array.from_buffers(
            self.field.type, self.rows, [bitmap, pa.py_buffer(offsets), texts], nulls
        )


def _presence(page: Page) -> np.ndarray:
    """Which rows have a value, for ``append_plain``."""
    return _NONE if page.valid is None else page.valid.view(np.uint8)


def _pass_over(page: Page, row: int) -> None:
    """Find where this row of a page of plain texts is; the ones before it were divided, or read before."""
    left = row - page.next_row
    if left < 0:
        raise UnsupportedPageError("a page was read beyond these rows")
    if left:
        offsets, passed = np.zeros(left + 1, np.int32), np.empty(page.data_bytes + PADDING_BYTES, np.uint8)
        target = offsets, 0, passed, page.data_bytes
        count, at = append_plain(page.data, page.at, left, _presence(page), page.next_row, *target)
        if at < 0 or count < left:
            raise DamagedPageError("a page has fewer values than it says")
        page.next_row, page.at = row, at


@dataclass(frozen=True, slots=True)
class LateRows:
    """Rows without one column, and that column."""

    batch: pa.RecordBatch
    late: LateTexts
