"""Columns of a Parquet row group straight from their pages: each text is copied once, to where its batch is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.parquet.parquet_headers import DamagedPageError
from weir.operators.sources.parquet.parquet_kernels import append_found, append_plain
from weir.operators.sources.parquet.parquet_pages import LaterPage, Page, PageReader

_NONE = np.empty(0, dtype=np.uint8)


@dataclass(slots=True)
class LatePlan:
    """Rows whose texts are read later, see :class:`LateTexts`."""

    rows: int = 0
    size_bytes: int = 0
    passed: int = 0
    pages: list[LaterPage] = field(default_factory=list)


class Column:
    """A column of a row group, from its first row on."""

    def __init__(self, field: pa.Field, pages: PageReader, size_bytes: int, *, is_text: bool) -> None:
        self.field = field
        self.is_text = is_text
        #: In the file.
        self.size_bytes = size_bytes
        #: Of a row in memory, but for texts.
        self.row_bytes = 4 if is_text else field.type.bit_width // 8
        self._reader = pages
        self._page: Page | None = None
        #: Decoded, but not taken: another column had no more rows for a batch.
        self._left: pa.Array | None = None
        #: The page of which the first rows were planned, and their number.
        self._begun: tuple[LaterPage, int] | None = None

    def skip(self, rows: int) -> None:
        """Pass over rows."""
        while rows > 0:
            page = self._current()
            passed = min(rows, page.rows_left)
            if page.at >= 0:
                self._append(page, passed, _Texts(passed, page.data_bytes))
            page.next_row += passed
            rows -= passed

    def take(self, rows: int, bytes_max: int) -> pa.Array:
        """So many of the next rows as texts do not have more bytes, at least 1; :meth:`keep` follows."""
        if self._left is not None:
            taken, self._left = self._left, None
            return taken
        return self._texts(rows, bytes_max) if self.is_text else self._numbers(rows)

    def plan(self, rows_max: int, bytes_max: int) -> LatePlan:
        """Pass over rows that need not be read now.

        0 rows: the next ones are to be taken, as many as :meth:`rows_to_boundary` says.
        """
        plan = LatePlan()
        if self._left is not None or (self._page is not None and self._page.rows_left):
            return plan
        while plan.rows < rows_max:
            begun, self._begun = self._begun, None
            found, passed = begun or (self._reader.later_page(), 0)
            if found is None:
                break
            left = found.rows - passed
            fitting = (bytes_max - plan.size_bytes) * found.rows // max(1, found.size_bytes)
            rows = min(left, rows_max - plan.rows, fitting)
            is_cut = rows < left
            # Only of a page that is divided while it is read some rows can be left for the next batch; and not of one
            # that is larger than a batch, which would be read as a whole for each of them.
            if is_cut and (rows <= 0 or found.packed is None or found.size_bytes > bytes_max):
                if passed:
                    self._begun = found, passed
                else:
                    self._reader.back_to(found.begin)
                break
            if is_cut and not passed:
                # Where it is not divided, both batches read the same page.
                found = replace(found, read=cache(found.read))
            if not plan.pages:
                plan.passed = passed
            plan.pages.append(found)
            plan.rows += rows
            plan.size_bytes += -(-rows * found.size_bytes // found.rows)
            if is_cut:
                self._begun = found, passed + rows
                break
        return plan

    def rows_to_boundary(self) -> int:
        """Rows up to the end of a page, at least one: after them :meth:`plan` may find some."""
        if self._left is not None:
            return len(self._left)
        return self._current().rows_left

    def give_back(self, texts: pa.Array) -> None:
        """Take these rows, which were planned, next."""
        self._left = texts

    def keep(self, taken: pa.Array, rows: int) -> pa.Array:
        """Return the first rows of what was taken; the others are taken next."""
        if len(taken) <= rows:
            return taken
        self._left = taken.slice(rows)
        return taken.slice(0, rows)

    def _texts(self, rows: int, bytes_max: int) -> pa.Array:
        texts = _Texts(rows, bytes_max)
        valid = _Valid(rows)
        while texts.filled < rows:
            page = self._current()
            first, wanted = page.next_row, min(rows - texts.filled, page.rows_left)
            count = self._append(page, wanted, texts)
            if not count and not texts.filled:
                # One that is longer than all of them may be.
                texts = _Texts(rows, page.data_bytes)
                count = self._append(page, 1, texts)
                rows = 1
            valid.note(page, texts.filled - count, first, count)
            page.next_row += count
            if count < wanted:
                break
        return texts.array(self.field.type, *valid.bitmap(texts.filled))

    @staticmethod
    def _append(page: Page, rows: int, texts: _Texts) -> int:
        """Append as many rows of a page as fit; returns how many."""
        if page.at < 0:
            count = append_found(
                *(page.data, page.starts, page.lengths, page.next_row, rows),
                *(texts.offsets, texts.filled, texts.out, texts.bytes_max),
            )
        else:
            valid = _NONE if page.valid is None else page.valid.view(np.uint8)
            count, at = append_plain(
                *(page.data, page.at, rows, valid, page.next_row),
                *(texts.offsets, texts.filled, texts.out, texts.bytes_max),
            )
            if at < 0:
                raise DamagedPageError("a page has fewer values than it says")
            page.at = at
        texts.filled += count
        return count

    def _numbers(self, rows: int) -> pa.Array:
        valid = _Valid(rows)
        parts: list[np.ndarray] = []
        done = 0
        while done < rows:
            page = self._current()
            first, count = page.next_row, min(rows - done, page.rows_left)
            assert page.numbers is not None
            parts.append(page.numbers[first : first + count])
            valid.note(page, done, first, count)
            page.next_row += count
            done += count
        # What is small does not keep its page.
        values = parts[0].copy() if len(parts) == 1 else np.concatenate(parts)
        bitmap, nulls = valid.bitmap(rows)
        return pa.Array.from_buffers(self.field.type, rows, [bitmap, pa.py_buffer(values)], nulls)

    def _current(self) -> Page:
        while self._page is None or not self._page.rows_left:
            self._page = None
            if self._begun is None:
                self._page = self._reader.next_page()
                continue
            (later, passed), self._begun = self._begun, None
            self._page = later.read()
            self.skip(passed - self._page.next_row)
        return self._page


class _Texts:
    """Texts that are being put together."""

    def __init__(self, rows: int, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.filled = 0
        self.offsets = np.zeros(rows + 1, dtype=np.int32)
        self.out = np.empty(bytes_max + PADDING_BYTES, dtype=np.uint8)

    def array(self, data_type: pa.DataType, bitmap: pa.Buffer | None, nulls: int) -> pa.Array:
        """What there is."""
        size_bytes = int(self.offsets[self.filled])
        # Little in much memory is copied: it may be kept for long.
        is_little = size_bytes < self.bytes_max // 2
        out = self.out[:size_bytes].copy() if is_little else self.out[:size_bytes]
        buffers = [bitmap, pa.py_buffer(self.offsets[: self.filled + 1]), pa.py_buffer(out)]
        return pa.Array.from_buffers(data_type, self.filled, buffers, nulls)


class _Valid:
    """Which rows have a value, as their pages say."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._valid: np.ndarray | None = None

    def note(self, page: Page, row: int, first: int, count: int) -> None:
        """``count`` rows from ``row`` on are those of a page from its row ``first`` on."""
        if page.valid is not None:
            if self._valid is None:
                self._valid = np.ones(self._rows, dtype=np.bool_)
            self._valid[row : row + count] = page.valid[first : first + count]

    def bitmap(self, rows: int) -> tuple[pa.Buffer | None, int]:
        """Return the validity as Arrow has it, and how many values are null."""
        if self._valid is None:
            return None, 0
        valid = self._valid[:rows]
        return pa.py_buffer(np.packbits(valid, bitorder="little")), rows - int(np.count_nonzero(valid))
