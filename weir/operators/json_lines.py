"""The JSON-lines source."""

from __future__ import annotations

import pyarrow as pa

from weir.errors import InputError
from weir.operators.base import OperatorContext
from weir.operators.json_decode import JsonDecoder
from weir.operators.json_strict import too_long
from weir.operators.line_reader import BUFFER_BYTES, LineReader
from weir.operators.pacing import BatchSource
from weir.operators.splits import Split, assign, line_quotas, list_input_files, plan_splits
from weir.specs import JsonLinesSpec

#: Bytes that a paced source holds, unless a line is longer.
PACED_BUFFER_BYTES = 256 << 10


class JsonLinesReader(BatchSource):
    """Reads one subtask's splits of JSON-lines files; ``json_strict`` defines which lines are good.

    Lines that are not good go to ``context.dead_letters`` with their byte offset; blank lines are
    passed over.
    """

    def __init__(self, spec: JsonLinesSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        #: Lines rejected so far.
        self.rejected = 0
        self._pending: list[Split] = []
        self._reader: LineReader | None = None

    def close(self) -> None:
        """Release the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open_input(self, context: OperatorContext) -> None:
        files = list_input_files(self._spec.path)
        splits = plan_splits(files, context.parallelism)
        self._assigned = assign([split.size_bytes for split in splits], splits, context.parallelism)
        self._pending = self._assigned[context.subtask_index][::-1]
        time_column = self._spec.event_time_column
        # A paced source reads little at a time, so that no poll takes long.
        self._buffer_bytes = BUFFER_BYTES if self._spec.rate is None else PACED_BUFFER_BYTES
        self._decoder = JsonDecoder(
            self._spec.schema,
            required=[] if time_column is None else [time_column],
            line_bytes_max=self._spec.line_bytes_max,
            lines_max=self.rows_decoded_max,
        )

    def _has_input(self) -> list[bool]:
        return [bool(assigned) for assigned in self._assigned]

    def _event_quota(self, events_max: int) -> int:
        return line_quotas(events_max, self._assigned)[self._context.subtask_index]

    def _next_batch(self) -> pa.RecordBatch | None:
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
                self._reject(reader.path, line.position, reason, line.head, line.length_bytes)
        if reader.start == reader.stop:
            return None
        decoded = self._decoder.decode(reader.data, reader.start, reader.stop)
        for rejection in decoded.rejections:
            raw = reader.data[rejection.start : rejection.stop].tobytes().rstrip(b"\r\n")
            self._reject(reader.path, reader.base_offset + rejection.start, rejection.reason, raw)
        reader.start = decoded.next_start
        return decoded.batch

    def _reject(
        self, path: str, position: int, reason: str, raw: bytes, length_bytes: int | None = None
    ) -> None:
        self.rejected += 1
        if self._spec.on_bad_record == "fail":
            raise InputError(
                f"{path} at byte {position}: {reason}; correct the line, or let the source "
                f'{self._context.operator_name} put bad records aside with on_bad_record="dead_letter"'
            )
        if self._context.dead_letters is not None:
            self._context.dead_letters.reject(path, position, reason, raw, length_bytes)
