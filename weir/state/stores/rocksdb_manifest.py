"""Reads from RocksDB's manifest which table files a store consists of.

RocksDB makes images itself (``create_checkpoint``), but rocksdict keeps the GIL meanwhile, and RocksDB waits for the
disk four times: 5 to 40 ms in which no thread of the process runs. Whoever knows the tables can link them without.

The manifest is a log: blocks of 32 KiB with records, each a part of an edit or a whole one, and an edit names tables
that came and went. What RocksDB adds it has written before the tables that went are deleted. So if all tables can be
linked that a part of the manifest names, up to the end of any edit, then the links and this part are a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from weir.errors import StateError

_BLOCK_BYTES = 32 << 10
#: Checksum (4), length (2), kind (1).
_HEADER_BYTES = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: Fields of an edit by what their content is; all others are refused.
_NUMBERS = {2, 3, 4, 9, 10, 200, 203, 300}
_TEXTS = {1, 201}
_NOTHING = {202}
_CURSOR, _TABLE_WENT, _TABLE_CAME = 5, 6, 103
#: Fields from here on may be skipped by readers that do not know them; they have a length.
_SKIPPED_MIN = 1 << 13
_LAST_ATTRIBUTE = 1
_ENTRY_NUMBER_BYTES = 8
#: Behind the last key of a table: the key is not in it, a range that was deleted ends there.
_RANGE_ENDS = b"\x0f" + 7 * b"\xff"


class UnknownManifestError(StateError):
    """The manifest has what this reader does not know."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table: its level, and the first and last of its keys, what is deleted as a range included."""

    number: int
    level: int
    first: bytes
    last: bytes
    #: The last key is the end of a deleted range, and the table says nothing of it.
    ends_before_last: bool = False
    #: The highest sequence number of its entries.
    newest: int = 0

    def has(self, key: bytes) -> bool:
        """Return whether the table says something of a key.

        Ranges that it deletes may go beyond it. That does not count: there, newer entries may have lost their numbers.
        """
        return self.first <= key and (key < self.last or (key == self.last and not self.ends_before_last))


class Manifest:
    """Reads one manifest as it grows; called by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: By number, the tables that make up the store.
        self.places: dict[int, TablePlace] = {}
        #: Where the last whole edit that was read ends.
        self.size_bytes = 0

    @property
    def tables(self) -> Set[int]:
        """Numbers of the tables that make up the store."""
        return self.places.keys()

    def read_on(self) -> None:
        """Take note of what was added since the last call.

        Raises:
            OSError: it cannot be read.
            UnknownManifestError: it has another form than that of the RocksDB that this was written for.
        """
        with self.path.open("rb") as stream:
            stream.seek(self.size_bytes)
            data = stream.read()
        for edit, end in _edits(data, self.size_bytes):
            self._apply(edit)
            self.size_bytes = end

    def _apply(self, edit: bytes) -> None:
        came, went = _tables(edit)
        # A table that is moved to another level goes and comes.
        for number in went:
            self.places.pop(number, None)
        self.places |= came


def _edits(data: bytes, offset: int) -> Iterator[tuple[bytes, int]]:
    """Whole edits of what begins at an offset of a manifest, each with the offset of its end."""
    position = 0
    parts = b""
    is_open = False
    while True:
        left = _BLOCK_BYTES - (offset + position) % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            position += left
            continue
        header = data[position : position + _HEADER_BYTES]
        if len(header) < _HEADER_BYTES:
            return
        length, kind = int.from_bytes(header[4:6], "little"), header[6]
        begin, end = position + _HEADER_BYTES, position + _HEADER_BYTES + length
        if end > len(data) or kind == 0:
            # RocksDB is about to write it.
            return
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or is_open != (kind in (_MIDDLE, _LAST)):
            raise UnknownManifestError(f"RocksDB's manifest has a record of kind {kind}")
        parts += data[begin:end]
        position = end
        is_open = kind in (_FIRST, _MIDDLE)
        if not is_open:
            yield parts, offset + position
            parts = b""


def _tables(edit: bytes) -> tuple[dict[int, TablePlace], set[int]]:
    """The tables that come, by number, and numbers of those that go with an edit."""
    came: dict[int, TablePlace] = {}
    went: set[int] = set()
    fields = _Fields(edit)
    while not fields.is_at_end:
        tag = fields.number()
        if tag in _NUMBERS:
            fields.number()
        elif tag in _TEXTS or tag & _SKIPPED_MIN:
            fields.skip_text()
        elif tag == _CURSOR:
            fields.number()
            fields.skip_text()
        elif tag == _TABLE_WENT:
            fields.number()
            went.add(fields.number())
        elif tag == _TABLE_CAME:
            place = fields.table()
            came[place.number] = place
        elif tag not in _NOTHING:
            raise UnknownManifestError(f"RocksDB's manifest has a field {tag}")
    return came, went


class _Fields:
    def __init__(self, edit: bytes) -> None:
        self._edit = edit
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._edit)

    def number(self) -> int:
        """Seven bits in each byte, the lowest first; the last byte is below 128."""
        value = shift = 0
        while True:
            if self.is_at_end:
                raise UnknownManifestError("an edit of RocksDB's manifest ends within a field")
            byte = self._edit[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_text(self) -> None:
        self.text()

    def text(self) -> bytes:
        """Some bytes, behind their number."""
        length = self.number()
        self._position += length
        return self._edit[self._position - length : self._position]

    def table(self) -> TablePlace:
        """Level, number, size, smallest and largest key, smallest and largest sequence number, attributes."""
        level, number = self.number(), self.number()
        self.number()
        # Behind each key is the number of its entry.
        first, last = self.text(), self.text()
        self.number()
        newest = self.number()
        while self.number() != _LAST_ATTRIBUTE:
            self.skip_text()
        return TablePlace(
            number,
            level,
            first[:-_ENTRY_NUMBER_BYTES],
            last[:-_ENTRY_NUMBER_BYTES],
            last.endswith(_RANGE_ENDS),
            newest,
        )
