"""The JSON-lines source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from weir.errors import InputError
from weir.operators.sources.file_reader import FileReader
from weir.operators.sources.json_decode import JsonDecoder
from weir.operators.sources.json_strict import Rejection, too_long
from weir.operators.sources.line_reader import BUFFER_BYTES, LineReader
from weir.operators.sources.line_shapes import SHAPE_BLANK, cut_lines, line_shapes
from weir.operators.sources.positions import Rest
from weir.operators.sources.splits import Split, assign, cut_splits, line_quotas, plan_splits
from weir.specs import JsonLinesSpec

#: Bytes that a paced source holds, unless a line is longer.
PACED_BUFFER_BYTES = 256 << 10


class JsonLinesReader(FileReader):
    """Reads one subtask's splits of JSON-lines files; ``json_strict`` defines which lines are good.

    Lines that are not good go to ``context.dead_letters`` with their byte offset; blank lines are
    passed over. Replayable: a snapshot holds the byte offset of the first line whose row was not given out.
    """

    def __init__(self, spec: JsonLinesSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        self._pending: list[Split] = []
        self._reader: LineReader | None = None
        #: Where the last decoded batch begins in the reader's window, and its bad lines.
        self._decoded_start = 0
        self._rejections: list[Rejection] = []

    def close(self) -> None:
        """Release the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open_files(self, paths: Sequence[str]) -> None:
        splits = plan_splits(paths, self._subtasks, whole_files=self._keeps_files)
        self._read_shares(assign([split.size_bytes for split in splits], splits, self._subtasks))

    def _add_file(self, path: str, size_bytes: int) -> None:
        self._pending.insert(0, Split(path, 0, size_bytes, compressed=path.endswith(".gz")))

    def _resume_input(self, shares: list[list[Rest]]) -> None:
        self._read_shares([[_split(rest) for rest in share] for share in shares])

    def _share(self, rests: list[Rest]) -> list[list[Rest]]:
        if self._keeps_files:
            return super()._share(rests)
        splits = cut_splits([_split(rest) for rest in rests], self._subtasks)
        shares = assign([split.size_bytes for split in splits], splits, self._subtasks)
        return [[_rest(split) for split in share] for share in shares]

    def _read_shares(self, shares: list[list[Split]]) -> None:
        self._assigned = shares
        self._pending = shares[self._rank][::-1]
        time_column = self._spec.event_time_column
        # A paced source reads little at a time, so that no poll takes long.
        self._buffer_bytes = BUFFER_BYTES if self._spec.rate is None else PACED_BUFFER_BYTES
        self._decoder = JsonDecoder(
            self._spec.schema_read,
            required=[] if time_column is None else [time_column],
            line_bytes_max=self._spec.line_bytes_max,
            lines_max=self.rows_decoded_max,
            paths={
                column: path for column, path in self._spec.paths if column in self._spec.schema_read.names
            },
        )

    def _rests(self) -> list[Rest]:
        rests = [_rest(split) for split in reversed(self._pending)]
        reader = self._reader
        if reader is not None:
            handled_to = reader.line_offset(reader.start)
            start = handled_to
            if self._batch is not None:
                start = reader.line_offset(self._line_of_row(reader, self._batch_offset))
            split = reader.split
            at_end = reader.exhausted and reader.start == reader.stop and self._batch is None
            if not at_end and (split.compressed or start < split.stop_bytes):
                rejected_to = max(handled_to, split.rejected_to_bytes)
                rests.insert(0, Rest(split.path, start, split.stop_bytes, rejected_to, begun=True))
        return rests

    def _line_of_row(self, reader: LineReader, row: int) -> int:
        """Position in the reader's window of the line that gave a row of the last decoded batch."""
        lines = np.empty((self.rows_decoded_max, 3), dtype=np.int64)
        _, count = cut_lines(reader.data, self._decoded_start, reader.start, len(lines), lines)
        if self._batch is not None and count == self._batch.num_rows:
            return int(lines[row, 0])
        shapes = np.empty(count, dtype=np.uint8)
        line_shapes(reader.data, lines, count, self._spec.line_bytes_max, shapes)
        bad = [rejection.start for rejection in self._rejections]
        gave_row = (shapes != SHAPE_BLANK) & ~np.isin(lines[:count, 0], bad)
        return int(lines[np.flatnonzero(gave_row)[row], 0])

    def _chosen(self) -> list[bool]:
        return [bool(assigned) for assigned in self._assigned]

    def _input_quota(self, events_max: int) -> int:
        return line_quotas(events_max, self._assigned)[self._rank]

    def _read_batch(self) -> pa.RecordBatch | None:
        while True:
            if self._reader is None:
                if not self._pending:
                    return None
                self._reader = LineReader(self._pending.pop(), self._spec.line_bytes_max, self._buffer_bytes)
            batch = self._decode(self._reader)
            if batch is None:
                self.close()
            elif batch.num_rows:
                return batch

    def _decode(self, reader: LineReader) -> pa.RecordBatch | None:
        """Decode some lines, maybe none of them good; None at the end of the split."""
        # Refilled when half empty: a batch seldom ends at the end of the buffer before it is full.
        if not reader.exhausted and 2 * (reader.stop - reader.start) < len(reader.data):
            for line in reader.refill():
                reason = too_long(self._spec.line_bytes_max)
                self._reject(reader.split, line.position, reason, line.head, line.length_bytes)
        if reader.start == reader.stop:
            return None
        decoded = self._decoder.decode(reader.data, reader.start, reader.stop)
        self._decoded_start, self._rejections = reader.start, decoded.rejections
        for rejection in decoded.rejections:
            raw = reader.data[rejection.start : rejection.stop].tobytes().rstrip(b"\r\n")
            self._reject(reader.split, reader.base_offset + rejection.start, rejection.reason, raw)
        reader.start = decoded.next_start
        return decoded.batch

    def _reject(
        self, split: Split, position: int, reason: str, raw: bytes, length_bytes: int | None = None
    ) -> None:
        if position < split.rejected_to_bytes:
            return
        self.rejected += 1
        path = split.path
        if self._spec.on_bad_record == "fail":
            raise InputError(
                f"{path} at byte {position}: {reason}; correct the line, or let the source "
                f'{self._context.operator_name} put bad records aside with on_bad_record="dead_letter"'
            )
        if self._context.dead_letters is not None:
            self._context.dead_letters.reject(path, position, reason, raw, length_bytes)


def _rest(split: Split) -> Rest:
    return Rest(split.path, split.start_bytes, split.stop_bytes, split.rejected_to_bytes, split.resumed)


def _split(rest: Rest) -> Split:
    compressed = rest.path.endswith(".gz")
    return Split(rest.path, rest.start, rest.stop, compressed, rest.begun, rest.rejected_to)
