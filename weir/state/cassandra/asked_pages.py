"""Pages of scans for questions: those that a thread will need are read together, when it needs the first of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weir.state import wanted
from weir.state.cassandra.entries import PREFIX_BYTES
from weir.state.cassandra.session import CheckCancelled, Session

Entry = tuple[bytes, bytes]

#: Rows of the first page of a scan: of many groups few are needed. Packed entries, which have a namespace, are large.
ASKED_ROWS, _PACKED_ROWS, _ROWS_MAX = 16, 2, 1_000
#: What one request may have: rows, bytes of rows as they are as a rule, partitions; of these fewer while nobody knows
#: how large rows are. A request takes as long as 40 rows or 20 partitions. ScyllaDB refuses more than 100 partitions.
_REQUEST_ROWS, _REQUEST_BYTES = 2_048, 1 << 20
_REQUEST_PARTITIONS, _UNKNOWN_PARTITIONS = 64, 8


class AskedRows(NamedTuple):
    """What is left of a scan, the same in several key groups; without those it is what they have in common.

    A tuple, since thousands of a question are made and compared.
    """

    #: State id of two bytes.
    number: bytes
    bucket: int
    start: bytes
    #: None: to the end of the state.
    stop: bytes | None
    reverse: bool
    #: Of the next page.
    rows: int

    @property
    def kind(self) -> tuple[bytes, bool]:
        """The state, and whether entries are packed: those alike are about as large as each other."""
        return self.number, _are_packed(self.start)

    def after(self, last: bytes) -> AskedRows:
        """What is left after a page that ends with this key of a row."""
        # Who wanted few at first and reads on has large keys, or few of them at once.
        rows = min(max(self.rows * 4, 0 if self.kind[1] else ASKED_ROWS), _ROWS_MAX)
        if self.reverse:
            return self._replace(stop=last, rows=rows)
        return self._replace(start=last + b"\0", rows=rows)


def _are_packed(start: bytes) -> bool:
    return start[:1] != b"\0"


#: Of each key group its entries, and up to where changes may have been written by then (0: nobody looks).
Read = tuple[dict[bytes, list[Entry]], int]


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Page:
    group: bytes
    asked: AskedRows
    looks: bool
    #: See ``weir.state.wanted``.
    reader: object | None
    running: Future[Read] | None = field(default=None)


class _Waiting(threading.local):
    def __init__(self) -> None:
        self.waiting: list[weakref.ref[_Page]] = []


class AskedPages:
    """Pages of one job's questions. Methods may be called from any thread."""

    def __init__(
        self,
        session: Session,
        read: Callable[[AskedRows, Sequence[bytes], bool], Coroutine[Any, Any, Read]],
    ) -> None:
        """``read``: a page in each of some key groups; whether to look what had begun when it had been read."""
        self._session = session
        self._read = read
        self._of_thread = _Waiting()
        #: Of entries that were read last, by state and whether they are packed: bytes of one.
        self._entry_bytes: dict[tuple[bytes, bool], int] = {}

    def scan(
        self,
        prefix: bytes,
        bucket: int,
        ends: tuple[bytes, bytes | None],
        *,
        reverse: bool,
        look: Callable[[int], None] | None,
        check_cancelled: CheckCancelled,
    ) -> Iterator[Entry]:
        """The entries of one database partition, page by page."""
        rows = _PACKED_ROWS if _are_packed(ends[0]) else ASKED_ROWS
        rows = min(wanted.of_thread.first_entries or rows, rows)
        asked = AskedRows(prefix[2:], bucket, *ends, reverse, rows)
        page = self._waiting(prefix[:2], asked, look is not None)
        return self._entries(page, look, check_cancelled)

    def _waiting(self, group: bytes, asked: AskedRows, looks: bool) -> _Page:
        """A page that is read when the first one is needed; not at all if nobody wants it by then."""
        page = _Page(group, asked, looks, wanted.of_thread.reader)
        self._of_thread.waiting.append(weakref.ref(page))
        return page

    def _entries(
        self, page: _Page, look: Callable[[int], None] | None, check_cancelled: CheckCancelled
    ) -> Iterator[Entry]:
        while True:
            if page.running is None:
                self._begin(page)
            assert page.running is not None, "it has waited"
            found, begun = self._session.wait(page.running, check_cancelled)
            if look is not None:
                look(begun)
            entries = found.get(page.group, [])
            if len(entries) < page.asked.rows:
                yield from entries
                return
            # Other scans get to their ends, too: what comes next of all of them is read together.
            page = self._waiting(
                page.group, page.asked.after(entries[-1][0][PREFIX_BYTES:]), look is not None
            )
            yield from entries

    def _begin(self, needed: _Page) -> None:
        """Read a page, and what waits and will be wanted; pages with the same ends share requests."""
        found: dict[tuple[AskedRows, bool], list[_Page]] = {}
        readers, later = wanted.of_thread.readers, []
        for reference in self._of_thread.waiting:
            page = reference()
            if page is None:
                continue
            if page is needed or page.reader is None or page.reader in readers:
                found.setdefault((page.asked, page.looks), []).append(page)
            else:
                later.append(reference)
        self._of_thread.waiting = later
        for (asked, looks), pages in found.items():
            # A thread may scan the same twice.
            groups, together = list(dict.fromkeys(page.group for page in pages)), self._together(asked)
            running: dict[bytes, Future[Read]] = {}
            for start in range(0, len(groups), together):
                some = groups[start : start + together]
                running |= dict.fromkeys(some, self._session.begin(self._learned(asked, some, looks)))
            for page in pages:
                page.running = running[page.group]

    def _together(self, asked: AskedRows) -> int:
        """The number of key groups whose pages one request reads."""
        entry_bytes = self._entry_bytes.get(asked.kind)
        if entry_bytes is None:
            return _UNKNOWN_PARTITIONS
        rows = min(_REQUEST_ROWS, _REQUEST_BYTES // max(entry_bytes, 1))
        return max(min(rows // asked.rows, _REQUEST_PARTITIONS), 1)

    async def _learned(self, asked: AskedRows, groups: Sequence[bytes], looks: bool) -> Read:
        """Read, and note how large entries are; that there are none is known, too."""
        found, begun = await self._read(asked, groups, looks)
        sizes = [len(key) + len(value) for entries in found.values() for key, value in entries]
        if sizes or asked.kind not in self._entry_bytes:
            self._entry_bytes[asked.kind] = sum(sizes) // max(len(sizes), 1)
        return found, begun
