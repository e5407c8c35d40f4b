"""Rows of a job's states in the database: read by key, scanned, written with the timestamp of a checkpoint."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from weir.errors import StateError
from weir.protocol.database_run import DatabaseRun
from weir.state.api import Head
from weir.state.cassandra.asked_pages import AskedPages, AskedRows, Read
from weir.state.cassandra.claim import RunClaim, bound
from weir.state.cassandra.creation import create_tables
from weir.state.cassandra.entries import PREFIX_BYTES, RowsRead, cut, joined_head, partitions_of, reads_of
from weir.state.cassandra.errors import Untyped, is_missing_table
from weir.state.cassandra.schema import StateTable, TableStatements, statements_of
from weir.state.cassandra.session import CheckCancelled, Session, never_cancelled

Entry = tuple[bytes, bytes]
#: A key and its value; None: it is deleted.
Change = tuple[bytes, bytes | None]

#: Rows of the first page of a scan, of which often only one is wanted, and of the last ones.
_PAGE_ROWS, _PAGE_ROWS_MAX = 16, 1_000
#: Requests of questions that are made at a time: rows of jobs have other reads.
_ASKED_REQUESTS_MAX = 12
#: A node takes in a table that another client has just created, and how often it is asked again.
_NEW_TABLE_S_MAX, _NEW_TABLE_POLL_S = 10.0, 0.1


@dataclass(frozen=True)
class _Scan:
    """What is left of a scan of one database partition."""

    prefix: bytes
    bucket: int
    start: bytes
    #: None: to the end of the state.
    stop: bytes | None
    reverse: bool
    #: Of the next page.
    rows: int
    check_cancelled: CheckCancelled

    def after(self, page: Sequence[Entry]) -> _Scan:
        """What is left after a page."""
        last = page[-1][0][PREFIX_BYTES:]
        rows = min(self.rows * 8, _PAGE_ROWS_MAX)
        if self.reverse:
            return replace(self, stop=last, rows=rows)
        return replace(self, start=last + b"\0", rows=rows)


class DatabaseTables(RunClaim):
    """The rows of one run. Methods may be called from any thread, and block.

    Args:
        session: with the database.
        run: whose rows.
        tables: of each state, by its number.
    """

    def __init__(self, session: Session, run: DatabaseRun, tables: Mapping[int, StateTable]) -> None:
        super().__init__(session, run, tables.values())
        self.tables = tables
        self._by_id = {number.to_bytes(2, "big"): table for number, table in tables.items()}
        self._buckets = {number: table.buckets for number, table in self._by_id.items()}
        self._statements: dict[bytes, TableStatements] = {
            number: statements_of(table) for number, table in self._by_id.items()
        }
        self._asked_requests = asyncio.Semaphore(_ASKED_REQUESTS_MAX)
        self._asked_pages = AskedPages(session, self._read_asked)
        #: Rows read and written, and requests, since the start.
        self.gets = self.puts = self.requests = 0

    def create(self, check_cancelled: CheckCancelled = never_cancelled) -> None:
        """Create what is missing, or say what has to be created; harmless where several do so at once.

        Raises:
            StateError: the database refuses.
        """
        create_tables(self.session, list(self.tables.values()), check_cancelled)
        self.session.run(self._prepare(), check_cancelled)

    async def _prepare(self) -> None:
        for statements in self._statements.values():
            for text in (statements.read, statements.put, statements.delete):
                await self._prepare_one(text)

    async def _prepare_one(self, text: str) -> None:
        """Another task manager may create the table now: the system's rows have it before the node knows it."""
        patience_s = _NEW_TABLE_S_MAX if self.session.settings.creates_tables else 0.0
        retrying = AsyncRetrying(
            retry=retry_if_exception(is_missing_table),
            stop=stop_after_delay(patience_s),
            wait=wait_fixed(_NEW_TABLE_POLL_S),
            reraise=True,
        )
        await retrying(self.session.prepare, text)

    def get_many(
        self, keys: Sequence[bytes], check_cancelled: CheckCancelled = never_cancelled
    ) -> list[bytes | None]:
        """Values of state keys in their order; None where absent. Those of one partition go in one request."""
        if not keys:
            return []
        self.gets += len(keys)
        found: dict[bytes, bytes] = {}
        reads = reads_of(keys, self._buckets, self.session.settings.read_keys_max)
        work: list[Callable[[], Awaitable[None]]] = [partial(self._read, read, found) for read in reads]
        self.requests += len(work)
        self.session.run(self.session.gather(work), check_cancelled)
        return list(map(found.get, keys))

    async def _read(self, read: RowsRead, found: dict[bytes, bytes]) -> None:
        number, statements = read.number, self._statements[read.number]
        doing, wanted = f"read {self._by_id[number].name}", list(read.row_keys)
        groups = [int.from_bytes(group, "big") for group in read.groups]
        if len(groups) == 1:
            prepared = await self.session.prepare(statements.read)
            prefix = read.groups[0] + number
            for row in await self._do(prepared, [self.run.name, groups[0], read.bucket, wanted], doing):
                found[prefix + row.key] = row.value
            return
        prepared = await self.session.prepare(statements.read_together)
        for row in await self._do(prepared, [self.run.name, groups, read.bucket, wanted], doing):
            found[row.key_group.to_bytes(2, "big") + number + row.key] = row.value

    def write(
        self,
        changes: Sequence[Change],
        checkpoint_id: int,
        check_cancelled: CheckCancelled = never_cancelled,
    ) -> None:
        """Write changes that a complete checkpoint covers, with its timestamp; in any order, and again at will.

        Raises:
            StateError: the database refuses; some changes may be written.
        """
        settings = self.session.settings
        stamp = self.run.timestamp(checkpoint_id)
        work: list[Callable[[], Awaitable[None]]] = []
        for part in partitions_of([key for key, _ in changes], self._buckets):
            table = self._by_id[part.prefix[2:]]
            rows_max = 1 if table.layout == "global" else settings.batch_rows_max
            mine = [changes[position] for position in part.positions]
            sizes = [len(key) + len(value or b"") for key, value in mine]
            for rows in cut(sizes, rows_max, settings.batch_bytes_max):
                work.append(partial(self._write, part.prefix, part.bucket, mine[rows], stamp))
        self.puts += len(changes)
        self.requests += len(work)
        self.session.run(self.session.gather(work), check_cancelled)

    async def _write(self, prefix: bytes, bucket: int, changes: Sequence[Change], stamp: int) -> None:
        import acsylla

        number = prefix[2:]
        table, statements = self._by_id[number], self._statements[number]
        put = await self.session.prepare(statements.put)
        delete = await self.session.prepare(statements.delete)
        partition = self._partition(prefix, bucket)
        ending = [stamp, table.time_to_live_s] if table.time_to_live_s else [stamp]

        def statement(change: Change) -> Untyped:
            key, value = change[0][PREFIX_BYTES:], change[1]
            if value is None:
                return bound(delete, [stamp, *partition, key])
            return bound(put, [*partition, key, value, *ending])

        def batch() -> Untyped:
            made = acsylla.create_batch_unlogged()
            for change in changes:
                made.add_statement(statement(change))
            return made

        doing = f"write {table.name}"
        if len(changes) == 1:
            await self.session.execute(lambda: statement(changes[0]), doing)
        else:
            await self.session.execute_batch(batch, doing)

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        reverse: bool = False,
        may_read_all: bool = False,
        look: Callable[[int], None] | None = None,
        check_cancelled: CheckCancelled = never_cancelled,
    ) -> Iterator[Entry]:
        """Entries of a range of one state in one key group, in key order or the reverse; read page by page.

        The first page is on its way when this returns: several scans take little longer than one. For a question it is
        read when the first entry of one of the thread's scans is wanted, along with those of the others.

        Args:
            start: the first key.
            stop: ends before it.
            reverse: from the last key to the first.
            may_read_all: for questions only: a range of rows that have no order is cut from all of them.
            look: called before entries are returned with the highest timestamp of which changes may have been written
                when these had been read; what it raises ends the scan.
            check_cancelled: raises when the caller is to stop.

        Raises:
            StateError: the state's table has no ranges.
        """
        prefix = start[:PREFIX_BYTES]
        table = self._by_id[prefix[2:]]
        if table.layout == "global":
            if not may_read_all and (start != prefix or stop[:PREFIX_BYTES] == prefix or reverse):
                raise StateError(table.no_order)
            rows = self.session.run(self._whole_group(prefix), check_cancelled)
            if look is not None:
                look(self.begun())
            asked = [entry for entry in rows if start <= entry[0] < stop]
            return reversed(asked) if reverse else iter(asked)
        first = start[PREFIX_BYTES:]
        last = stop[PREFIX_BYTES:] if stop[:PREFIX_BYTES] == prefix else None
        streams: list[Iterator[Entry]] = []
        for bucket in range(table.buckets):
            if may_read_all:
                ends = first, last
                pages = self._asked_pages.scan(
                    prefix, bucket, ends, reverse=reverse, look=look, check_cancelled=check_cancelled
                )
                streams.append(pages)
                continue
            scan = _Scan(prefix, bucket, first, last, reverse, _PAGE_ROWS, check_cancelled)
            streams.append(self._scan_pages(scan, self.session.begin(self._page_of(scan))))
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda entry: entry[0], reverse=reverse)

    def heads(
        self,
        ranges: Sequence[tuple[bytes, bytes]],
        rows_max: Sequence[int],
        *,
        reverse: bool = False,
        check_cancelled: CheckCancelled = never_cancelled,
    ) -> list[Head]:
        """Read the beginnings of scans of ranges, each of one state in one key group, all in one go.

        ``rows_max``: of each range, how many entries at most.

        Raises:
            StateError: a state's table has no ranges.
        """
        pages: list[list[list[Entry]]] = []
        work: list[Callable[[], Awaitable[None]]] = []
        for (start, stop), rows in zip(ranges, rows_max, strict=True):
            prefix = start[:PREFIX_BYTES]
            table = self._by_id[prefix[2:]]
            if table.layout == "global":
                raise StateError(table.no_order)
            ends = start[PREFIX_BYTES:], stop[PREFIX_BYTES:]
            own: list[list[Entry]] = []
            pages.append(own)
            for bucket in range(table.buckets):
                work.append(partial(self._note_page, own, prefix, bucket, *ends, reverse, rows))
        self.session.run(self.session.gather(work), check_cancelled)
        return [joined_head(own, rows, reverse=reverse) for own, rows in zip(pages, rows_max, strict=True)]

    async def _note_page(
        self,
        pages: list[list[Entry]],
        prefix: bytes,
        bucket: int,
        start: bytes,
        stop: bytes,
        reverse: bool,
        rows: int,
    ) -> None:
        pages.append(await self._page(prefix, bucket, start, stop, reverse, rows))

    async def _whole_group(self, prefix: bytes) -> list[Entry]:
        """Return all rows of a state in a key group, where they have no order, in order."""
        number = prefix[2:]
        prepared = await self.session.prepare(self._statements[number].scans[False, False])
        rows: list[Entry] = []
        page_state = b""
        while True:
            make = partial(bound, prepared, self._partition(prefix, 0), page_state)
            found = await self.session.execute(make, f"read {self._by_id[number].name}")
            rows += [(prefix + row.key, row.value) for row in found]
            if not found.has_more_pages():
                return sorted(rows)
            page_state = found.page_state()

    def count(self, prefixes: Sequence[bytes], check_cancelled: CheckCancelled = never_cancelled) -> int:
        """Rows of one state in some key groups (prefixes of 4 bytes); the database reads all of them.

        Raises:
            StateError: the state is not set to be counted.
        """
        total = [0]
        work: list[Callable[[], Awaitable[None]]] = []
        for prefix in prefixes:
            table = self._by_id[prefix[2:]]
            if not table.counts:
                raise StateError(table.not_counted)
            work += [partial(self._count, prefix, bucket, total) for bucket in range(table.buckets)]
        self.session.run(self.session.gather(work), check_cancelled)
        return total[0]

    async def _count(self, prefix: bytes, bucket: int, total: list[int]) -> None:
        number = prefix[2:]
        prepared = await self.session.prepare(self._statements[number].count)
        found = await self._do(prepared, self._partition(prefix, bucket), f"count {self._by_id[number].name}")
        total[0] += found.first().rows

    def _scan_pages(self, scan: _Scan, running: Future[list[Entry]]) -> Iterator[Entry]:
        while True:
            page = self.session.wait(running, scan.check_cancelled)
            yield from page
            if len(page) < scan.rows:
                return
            scan = scan.after(page)
            running = self.session.begin(self._page_of(scan))

    async def _page_of(self, scan: _Scan) -> list[Entry]:
        """The next page of a scan."""
        return await self._page(scan.prefix, scan.bucket, scan.start, scan.stop, scan.reverse, scan.rows)

    async def _read_asked(self, asked: AskedRows, groups: Sequence[bytes], looks: bool) -> Read:
        """A page of a scan in each of some key groups, for a question."""
        async with self._asked_requests:
            found = await self._pages(asked, groups)
        return found, await self.begun_by_now() if looks else 0

    async def _pages(self, asked: AskedRows, groups: Sequence[bytes]) -> dict[bytes, list[Entry]]:
        number, found = asked.number, dict[bytes, list[Entry]]()
        prepared = await self.session.prepare(
            self._statements[number].together[asked.reverse, asked.stop is not None]
        )
        ends = [asked.start] if asked.stop is None else [asked.start, asked.stop]
        listed = [int.from_bytes(group, "big") for group in groups]
        values = [self.run.name, listed, asked.bucket, *ends, asked.rows]
        for row in await self._do(prepared, values, f"read {self._by_id[number].name}"):
            group = row.key_group.to_bytes(2, "big")
            found.setdefault(group, []).append((group + number + row.key, row.value))
        self.requests += 1
        self.gets += sum(map(len, found.values()))
        return found

    async def _page(
        self, prefix: bytes, bucket: int, start: bytes, stop: bytes | None, reverse: bool, rows: int
    ) -> list[Entry]:
        number = prefix[2:]
        prepared = await self.session.prepare(self._statements[number].scans[reverse, stop is not None])
        ends = [start] if stop is None else [start, stop]
        values = [*self._partition(prefix, bucket), *ends, rows]
        found = await self._do(prepared, values, f"read {self._by_id[number].name}")
        self.requests += 1
        page = [(prefix + row.key, row.value) for row in found]
        self.gets += len(page)
        return page

    def _partition(self, prefix: bytes, bucket: int) -> list[object]:
        return [self.run.name, int.from_bytes(prefix[:2], "big"), bucket]
