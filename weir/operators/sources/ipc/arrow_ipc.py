"""The Arrow IPC source: files and streams of record batches, which are its splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.operators.sources.files.columnar_paths import FilePlaces
from weir.operators.sources.files.columnar_reader import ColumnarReader
from weir.operators.sources.files.input_files import unreadable
from weir.operators.sources.files.positions import Rest
from weir.operators.sources.files.splits import share_events
from weir.operators.sources.ipc.ipc_file import IpcFile
from weir.rows.schemas import small_type
from weir.specs import ArrowIpcSpec

#: A position is the number of a record batch, and that of a row in it in as many bits.
_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1


class ArrowIpcReader(ColumnarReader):
    """Reads one subtask's record batches of Arrow IPC files.

    Columns are found by name or path and must have the schema's types, or types that widen to them without loss; other
    columns are not read. A row with a null in a field that is not nullable (or in the event-time column), or with a
    text that is not UTF-8, goes to the dead letters; its position is the number of its record batch. Replayable: a
    snapshot holds the record batch, and the row in it, of the first row that was not given out.
    A stream has no table of contents, so it is one split.
    """

    _position_unit = "record batch"

    def __init__(self, spec: ArrowIpcSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        self._file: IpcFile | None = None
        #: In the open file.
        self._places = FilePlaces.nowhere()
        #: Pieces of the record batch that is being read.
        self._pieces: Iterator[pa.RecordBatch] = iter(())

    def close(self) -> None:
        """Release the file."""
        self._pieces = iter(())
        if self._file is not None:
            self._file.close()
            self._file = None

    def _share(self, rests: list[Rest]) -> list[list[Rest]]:
        return super()._share([piece for rest in rests for piece in _single_batches(rest)])

    def _read_shares(self, shares: list[list[Rest]]) -> None:
        super()._read_shares([_joined(share) for share in shares])

    def _parts(self, path: str) -> list[Rest]:
        """A file's record batches, each a part of its own; a stream is one part."""
        with IpcFile(path, self._files) as file:
            self._check_schema(path, file.schema)
            if file.batch_count is None:
                return [Rest(path, 0, file.batches_max << _ROW_BITS)]
            return [Rest(path, n << _ROW_BITS, (n + 1) << _ROW_BITS) for n in range(file.batch_count)]

    def _input_quota(self, events_max: int) -> int:
        if self._subtasks == 1:
            return events_max
        available = [self._count_rows(parts, events_max) for parts in self._assigned]
        return share_events(events_max, available)[self._rank]

    def _count_rows(self, parts: Sequence[Rest], enough: int) -> int:
        count = 0
        for part in parts:
            if count >= enough:
                break
            with IpcFile(part.path, self._files) as file:
                number = part.start >> _ROW_BITS
                while number < part.stop >> _ROW_BITS and (batch := file.read(number, [])) is not None:
                    count += batch.num_rows
                    number += 1
        return min(count, enough)

    def _read_batch(self) -> pa.RecordBatch | None:
        while True:
            piece = next(self._pieces, None)
            if piece is None:
                if not self._next_pieces():
                    return None
                continue
            first = self._next
            self._next += piece.num_rows
            good = self._good_rows(piece, first)
            if good.num_rows:
                return good

    def _next_pieces(self) -> bool:
        """Read the next record batch; False if there is none."""
        part = self._part
        if part is not None and self._next & _ROW_MASK:
            # The record batch was decoded to its end.
            self._next = ((self._next >> _ROW_BITS) + 1) << _ROW_BITS
        if part is None or self._next >= part.stop:
            if not self._pending:
                self._part = None
                self._goes_on_to(None)
                return False
            self._part = part = self._pending.pop()
            self._goes_on_to(part.path)
            self._next = part.start
        if self._file is None or self._file.path != part.path:
            self.close()
            self._file = IpcFile(part.path, self._files)
            self._places = self._check_schema(part.path, self._file.schema)
        batch = self._file.read(self._next >> _ROW_BITS, self._places.top_names)
        if batch is None:
            # The stream has ended.
            self._part = replace(part, stop=self._next)
            return True
        first = self._next & _ROW_MASK
        if first >= batch.num_rows:
            self._next = ((self._next >> _ROW_BITS) + 1) << _ROW_BITS
            return True
        self._pieces = self._cut(batch.slice(first), part.path)
        return True

    def _cut(self, batch: pa.RecordBatch, path: str) -> Iterator[pa.RecordBatch]:
        nullable = pa.schema([field.with_nullable(True) for field in self._spec.schema_read])
        for start in range(0, batch.num_rows, self.rows_decoded_max):
            try:
                rows = self._places.taken(batch.slice(start, self.rows_decoded_max))
                yield _plain(rows).cast(nullable)
            except pa.ArrowException as error:
                raise unreadable(path, error, "check the file") from error

    def _told(self, place: int) -> tuple[str, int, str]:
        assert self._part is not None
        return self._part.path, place >> _ROW_BITS, f"row {place & _ROW_MASK} of the record batch: "


def _single_batches(rest: Rest) -> list[Rest]:
    """What is left of a file, each record batch apart; a stream stays whole."""
    first, stop = rest.start >> _ROW_BITS, rest.stop >> _ROW_BITS
    if stop == IpcFile.batches_max:
        return [rest]
    edges = [rest.start, *(number << _ROW_BITS for number in range(first + 1, stop)), rest.stop]
    return [
        replace(rest, start=start, stop=end, begun=rest.begun and start == rest.start)
        for start, end in itertools.pairwise(edges)
    ]


def _joined(parts: Sequence[Rest]) -> list[Rest]:
    """The same with parts that follow one another as one, so that snapshots stay small."""
    joined: list[Rest] = []
    for part in parts:
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.path, last.stop) == (part.path, part.start)
            and part.rejected_to <= part.start
        ):
            joined[-1] = replace(last, stop=part.stop)
        else:
            joined.append(part)
    return joined


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same with dictionaries of strings that Arrow can look up in: of views, as Polars writes them, it cannot."""
    columns = []
    for column in batch.columns:
        value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_dictionary(column.type) and value_type in (pa.string_view(), pa.binary_view()):
            column = pa.DictionaryArray.from_arrays(
                column.indices, column.dictionary.cast(small_type(value_type))
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
