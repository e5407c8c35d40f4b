"""Pages of one column of a Parquet row group: read, decompressed, and looked through for where values lie.

What is read: flat columns of numbers and texts, plain or with a dictionary, in data pages of both forms. Everything
else is :class:`UnsupportedPageError`, and the caller takes pyarrow instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.parquet.parquet_header_kernels import (
    DEPTH_MAX,
    HEADER_BYTES,
    HEADER_FIELDS,
    HEADERS,
    find_headers,
)
from weir.operators.sources.parquet.parquet_headers import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    KEPT_AT,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE,
    RLE_DICTIONARY,
    DamagedPageError,
    PageHeader,
    header_of,
    read_header,
)
from weir.operators.sources.parquet.parquet_int96 import Int96Unit, int96_numbers
from weir.operators.sources.parquet.parquet_kernels import (
    all_present,
    decode_hybrid,
    find_texts,
    look_up_texts,
    look_up_words,
)
from weir.operators.sources.parquet.parquet_lz4 import decompress_lz4
from weir.operators.sources.parquet.parquet_packed import PackedPage
from weir.operators.sources.parquet.parquet_snappy import decompress_snappy
from weir.operators.sources.parquet.parquet_window import HAS_LEVELS, IS_SNAPPY, Windows

#: As pyarrow calls those of a file, and its codecs. "LZ4" is what a file calls LZ4_RAW; what a file calls LZ4, which
#: may have Hadoop's frames, is "UNKNOWN" there.
CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd", "GZIP": "gzip", "LZ4": "lz4_raw"}
#: By kernels of our own. pyarrow's codec of LZ4 does not notice where there are fewer bytes than there should be.
_DECOMPRESS = {"snappy": decompress_snappy, "lz4_raw": decompress_lz4}
#: Codecs of pages that can be divided while they are read.
_WINDOWED = (None, "snappy")
#: So many bytes are read to find a header at most; statistics in it may be long.
_HEADER_BYTES_MAX = 16 << 20
#: An index of more bits is none.
_WIDTH_MAX = 31
_LEVEL_SIZE_BYTES = 4
_WORD_BYTES = 8
#: At the end of what gzip compressed: how many bytes it was.
_GZIP_SIZE_BYTES = 4
_no_bytes, _no_places = partial(np.empty, 0, np.uint8), partial(np.empty, 0, np.int32)


class UnsupportedPageError(Exception):
    """A page has a form that is not read here."""


@dataclass(slots=True)
class Page:
    """Rows of one data page; those before ``next_row`` were taken."""

    rows: int
    #: Which rows have a value: bool, shape (rows,); None: all.
    valid: np.ndarray | None
    #: Numbers, shape (rows,), anything where there is none; None: of texts.
    numbers: np.ndarray | None
    #: Of texts: uint8, in which they lie.
    data: np.ndarray = field(default_factory=_no_bytes)
    #: Plain texts: where that of the next row is, or the next one that there is.
    at: int = -1
    #: Others: int32, shape (rows,), where each lies.
    starts: np.ndarray = field(default_factory=_no_places)
    lengths: np.ndarray = field(default_factory=_no_places)
    next_row: int = 0

    @property
    def data_bytes(self) -> int:
        """No text of the page has more."""
        return len(self.data)

    @property
    def text_bytes(self) -> int:
        """Return how many bytes the page's texts have at most."""
        return self.data_bytes if self.at >= 0 else int(self.lengths.sum(dtype=np.int64))

    @property
    def rows_left(self) -> int:
        """Rows that were not taken."""
        return self.rows - self.next_row


@dataclass(frozen=True, slots=True)
class LaterPage:
    """A page that can be read when its rows are wanted."""

    #: In the file.
    begin: int
    rows: int
    #: Its texts have so many at most.
    size_bytes: int
    #: Returns the page; it may be called again.
    read: Callable[[], Page]
    #: Set where it can be divided while it is read.
    packed: PackedPage | None = None


class PageReader:
    """The data pages of one column chunk, one after the other."""

    def __init__(
        self,
        descriptor: int,
        chunk: pq.ColumnChunkMetaData,
        dtype: np.dtype | None,
        *,
        may_be_null: bool,
        int96_unit: Int96Unit | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            descriptor: of the open file; it belongs to the caller.
            chunk: where the column lies.
            dtype: of its values; None: texts.
            may_be_null: whether there are definition levels.
            int96_unit: of values of type ``INT96_VALUE``, which become int64.
        """
        self._descriptor = descriptor
        self._dtype = dtype
        self._may_be_null = may_be_null
        self._int96_unit = int96_unit
        self._codec_name = name = CODECS[chunk.compression]
        self._codec = None if name is None else pa.Codec(name)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            start = min(start, chunk.dictionary_page_offset)
        self._at: int = start
        self._stop = start + chunk.total_compressed_size
        self._rows_max = chunk.num_values
        #: No page is larger.
        self._page_bytes_max = chunk.total_uncompressed_size
        statistics = chunk.statistics
        #: As the metadata says.
        self._has_no_nulls = (
            statistics is not None and statistics.has_null_count and not statistics.null_count
        )
        self._scratch = np.empty(0, dtype=np.uint8)
        self._dictionary: Page | None = None
        self._windows: Windows | None = None
        #: Headers that were read, and their bytes, by where they begin.
        self._headers: dict[int, tuple[PageHeader | None, int]] = {}

    def next_page(self) -> Page:
        """The next page with rows.

        Raises:
            UnsupportedPageError: it is to be read in another way.
            DamagedPageError: there is none, or it is not what it says.
            OSError: the file cannot be read.
        """
        while True:
            header = self._header()
            if header.kind == DICTIONARY_PAGE:
                self._read_dictionary(header)
            elif header.kind not in (DATA_PAGE, DATA_PAGE_V2):
                self._at += header.compressed_bytes
            else:
                page = self._data_page(header)
                if page.rows:
                    return page

    def later_page(self) -> LaterPage | None:
        """Pass over the next page, which can be read later; None: it is to be read now.

        A page with indices is read at once, because it is small, and says nothing of the bytes of its texts otherwise.

        Raises:
            UnsupportedPageError, DamagedPageError: there is none that can be read here.
            OSError: the file cannot be read.
        """
        while True:
            begin = self._at
            header = self._header()
            if header.kind != DICTIONARY_PAGE:
                break
            self._read_dictionary(header)
        if header.kind not in (DATA_PAGE, DATA_PAGE_V2) or not header.values:
            self._at = begin
            return None
        if self._may_be_null and header.definition_bytes < 0 and header.level_encoding != RLE:
            raise UnsupportedPageError(f"levels with encoding {header.level_encoding}")
        if header.encoding == PLAIN:
            body_at = self._at
            self._at += header.compressed_bytes
            size_bytes, read = header.uncompressed_bytes, partial(self._page_at, body_at, header)
            return LaterPage(begin, header.values, size_bytes, read, self._packed(body_at, header))
        page = self._data_page(header)
        return LaterPage(begin, page.rows, page.text_bytes, lambda: page)

    def _packed(self, body_at: int, header: PageHeader) -> PackedPage | None:
        """A page of plain texts, if it can be divided while it is read."""
        if (
            header.definition_bytes >= 0
            or self._codec_name not in _WINDOWED
            or header.values > self._rows_max
        ):
            return None
        form = IS_SNAPPY if self._codec_name == "snappy" else 0
        form |= HAS_LEVELS if self._may_be_null else 0
        sizes = header.compressed_bytes, header.uncompressed_bytes
        self._windows = self._windows or Windows(self._descriptor)
        return PackedPage(self._windows, (body_at, *sizes, header.values, form))

    def _read_dictionary(self, header: PageHeader) -> None:
        if header.encoding not in (PLAIN, PLAIN_DICTIONARY):
            raise UnsupportedPageError(f"a dictionary with encoding {header.encoding}")
        self._dictionary = self._found(self._body(header, 0), header.values)

    def _page_at(self, body_at: int, header: PageHeader) -> Page:
        after, self._at = self._at, body_at
        try:
            return self._data_page(header)
        finally:
            self._at = after

    def back_to(self, at: int) -> None:
        """Read on at a page that was passed over."""
        self._at = at

    def _header(self) -> PageHeader:
        if self._at not in self._headers:
            self._headers = self._read_headers()
        header, size = self._headers.get(self._at, (None, 0))
        if header is not None:
            return self._checked(header, size)
        wanted = HEADER_BYTES
        while self._at < self._stop:
            data = os.pread(self._descriptor, min(wanted, self._stop - self._at), self._at)
            found = read_header(data, 0)
            if found is not None and found[1] <= len(data):
                return self._checked(*found)
            if len(data) < wanted or wanted > _HEADER_BYTES_MAX:
                break
            wanted *= 16
        raise DamagedPageError("the column has fewer rows than its row group")

    def _read_headers(self) -> dict[int, tuple[PageHeader | None, int]]:
        """The next headers, as far as they are usual ones."""
        fields, places = np.empty((HEADERS, HEADER_FIELDS), np.int64), np.empty((HEADERS, 2), np.int64)
        data, depths = np.empty(HEADER_BYTES, dtype=np.uint8), np.empty(DEPTH_MAX, dtype=np.int64)
        count = find_headers(self._descriptor, self._at, self._stop, data, fields, places, depths)
        kept, found = fields[:count, KEPT_AT].tolist(), places[:count].tolist()
        return {at: (header_of(known), size) for known, (at, size) in zip(kept, found, strict=True)}

    def _checked(self, header: PageHeader, size_bytes: int) -> PageHeader:
        """Go on after a header of so many bytes."""
        self._at += size_bytes
        if header.compressed_bytes > self._stop - self._at:
            raise DamagedPageError("a page goes on after the end of its column")
        if header.uncompressed_bytes > self._page_bytes_max:
            raise DamagedPageError("a page is larger than its column")
        return header

    def _body(self, header: PageHeader, apart_bytes: int) -> np.ndarray:
        """The page after the header, decompressed but for its first bytes; uint8."""
        size = header.uncompressed_bytes
        if self._codec is None or not header.is_compressed:
            if header.compressed_bytes != size:
                raise DamagedPageError("a page that is not compressed has two sizes")
            return self._read(np.empty(size, dtype=np.uint8))
        packed_bytes = header.compressed_bytes
        if len(self._scratch) < packed_bytes + PADDING_BYTES:
            self._scratch = np.empty(packed_bytes + PADDING_BYTES, dtype=np.uint8)
        packed = self._read(self._scratch[:packed_bytes])
        if packed_bytes == apart_bytes:
            return packed.copy()
        decompress = _DECOMPRESS.get(self._codec_name or "")
        if decompress is not None:
            out = np.empty(size + PADDING_BYTES, dtype=np.uint8)
            out[:apart_bytes] = packed[:apart_bytes]
            sizes = apart_bytes, packed_bytes, out[apart_bytes:], size - apart_bytes
            if not decompress(self._scratch, *sizes):
                raise DamagedPageError("a page cannot be decompressed")
            return out[:size]
        if self._codec_name == "gzip" and packed[-_GZIP_SIZE_BYTES:].tobytes() != _gzip_size(
            size - apart_bytes
        ):
            # pyarrow fills up what is not there with anything.
            raise DamagedPageError("a page cannot be decompressed to what its header says")
        rest = self._codec.decompress(pa.py_buffer(packed[apart_bytes:]), size - apart_bytes)
        body = np.frombuffer(rest, dtype=np.uint8)
        return np.concatenate([packed[:apart_bytes], body]) if apart_bytes else body

    def _read(self, into: np.ndarray) -> np.ndarray:
        view = into.data
        while view:
            read = os.preadv(self._descriptor, [view], self._at)
            if not read:
                raise DamagedPageError("the file ends within a page")
            self._at += read
            view = view[read:]
        return into

    def _data_page(self, header: PageHeader) -> Page:
        rows = header.values
        if rows > self._rows_max:
            raise DamagedPageError("a page has more rows than its column")
        apart = max(0, header.definition_bytes) + header.repetition_bytes
        body = self._body(header, apart)
        at, valid = 0, None
        if header.definition_bytes >= 0:
            if self._may_be_null:
                start = header.repetition_bytes
                valid = self._levels(body, start, start + header.definition_bytes, rows)
                if header.nulls != (0 if valid is None else rows - int(np.count_nonzero(valid))):
                    raise DamagedPageError("a page has more nulls than it says, or fewer")
            at = apart
        elif self._may_be_null:
            if header.level_encoding != RLE:
                raise UnsupportedPageError(f"levels with encoding {header.level_encoding}")
            if len(body) < _LEVEL_SIZE_BYTES:
                raise DamagedPageError("a page is too short for its levels")
            at = _LEVEL_SIZE_BYTES + int.from_bytes(body[:_LEVEL_SIZE_BYTES].tobytes(), "little")
            valid = self._levels(body, _LEVEL_SIZE_BYTES, at, rows)
        if header.encoding == PLAIN:
            return self._plain(body, at, rows, valid)
        if header.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
            return self._looked_up(body, at, rows, valid)
        raise UnsupportedPageError(f"values with encoding {header.encoding}")

    def _levels(self, body: np.ndarray, start: int, stop: int, rows: int) -> np.ndarray | None:
        if stop > len(body):
            raise DamagedPageError("the levels of a page are damaged")
        if all_present(body, start, stop, rows):
            return None
        levels = np.empty(rows, dtype=np.int32)
        if decode_hybrid(body, start, stop, 1, levels, rows) != stop:
            raise DamagedPageError("the levels of a page are damaged")
        valid = levels.astype(np.bool_)
        if valid.all():
            return None
        if self._has_no_nulls:
            raise DamagedPageError("a column has nulls although its metadata says that it has none")
        return valid

    def _plain(self, body: np.ndarray, at: int, rows: int, valid: np.ndarray | None) -> Page:
        count = rows if valid is None else int(np.count_nonzero(valid))
        if self._dtype is not None:
            size_bytes = count * self._dtype.itemsize
            if size_bytes > len(body) - at:
                raise DamagedPageError("a page has fewer values than it says")
            values = np.frombuffer(body[at : at + size_bytes], dtype=self._dtype)
            if self._int96_unit is not None:
                values = int96_numbers(values, self._int96_unit)
            return Page(rows, valid, _spread(values, valid, rows))
        return Page(rows, valid, None, body, at)

    def _found(self, body: np.ndarray, count: int) -> Page:
        """A dictionary."""
        if self._dtype is not None:
            return self._plain(body, 0, count, None)
        if count > len(body):
            raise DamagedPageError("a dictionary has fewer values than it says")
        starts, lengths = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
        if find_texts(body, 0, len(body), starts, lengths, count) < 0:
            raise DamagedPageError("a dictionary has fewer values than it says")
        return Page(count, None, None, body, -1, starts, lengths)

    def _looked_up(self, body: np.ndarray, at: int, rows: int, valid: np.ndarray | None) -> Page:
        count = rows if valid is None else int(np.count_nonzero(valid))
        dictionary = self._dictionary
        indices = np.zeros(count, dtype=np.int32)
        width = int(body[at]) if at < len(body) else 0
        if width > _WIDTH_MAX:
            raise DamagedPageError("the indices of a page are damaged")
        if count:
            if dictionary is None or at >= len(body):
                raise DamagedPageError("a page has indices without a dictionary")
            if decode_hybrid(body, at + 1, len(body), width, indices, count) < 0:
                raise DamagedPageError("the indices of a page are damaged")
        if dictionary is None:
            dictionary = self._found(np.empty(0, dtype=np.uint8), 0)
        if dictionary.numbers is not None:
            return Page(rows, valid, _spread(_numbers_at(dictionary.numbers, indices), valid, rows))
        starts, lengths = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
        if not look_up_texts(dictionary.starts, dictionary.lengths, indices, count, starts, lengths):
            raise DamagedPageError("an index is beyond the dictionary")
        if valid is not None:
            starts, lengths = _spread(starts, valid, rows), _spread(lengths, valid, rows)
        return Page(rows, valid, None, dictionary.data, -1, starts, lengths)


def _gzip_size(size_bytes: int) -> bytes:
    """The last bytes of so many bytes in gzip's form."""
    return size_bytes.to_bytes(_GZIP_SIZE_BYTES, "little")


def _numbers_at(dictionary: np.ndarray, indices: np.ndarray) -> np.ndarray:
    if dictionary.itemsize != _WORD_BYTES:
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(dictionary):
            raise DamagedPageError("an index is beyond the dictionary")
        found: np.ndarray = dictionary[indices]
        return found
    values = np.empty(len(indices), dtype=np.int64)
    # Of its own: what is in a page may begin at any address.
    words = np.require(dictionary.view(np.int64), requirements=["A", "W"])
    if not look_up_words(words, indices, len(indices), values):
        raise DamagedPageError("an index is beyond the dictionary")
    decoded: np.ndarray = values.view(dictionary.dtype)
    return decoded


def _spread(values: np.ndarray, valid: np.ndarray | None, rows: int) -> np.ndarray:
    """Values to the rows that have one."""
    if valid is None:
        return values
    spread = np.zeros(rows, dtype=values.dtype)
    spread[valid] = values
    return spread
