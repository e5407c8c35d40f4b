"""Arrow IPC messages of record batches, without a copy of what is in their columns."""

from __future__ import annotations

import pyarrow as pa

_OFFSET_BYTES = 4


class _Written:
    """What is written to a file that keeps the pieces as they come."""

    #: What pyarrow asks of a file.
    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes | pa.Buffer] = []

    def write(self, piece: bytes | pa.Buffer) -> int:
        """Called by pyarrow, with columns where they are."""
        self.pieces.append(piece)
        return len(piece)

    def flush(self) -> None:
        """Called by pyarrow."""

    def close(self) -> None:
        """Called by pyarrow."""


class IpcPieces:
    """Arrow IPC messages as the pieces that they consist of; whole columns are not copied.

    ``RecordBatch.serialize`` makes the same bytes in memory of their own. A message begins with four bytes of its form,
    four with the length of its head, and that head; the buffers of its columns follow, each filled up to eight bytes.
    """

    def __init__(self, schema: pa.Schema) -> None:
        # An object of its own, because Python does not see that the stream refers to it.
        self._file = _Written()
        #: Before the buffers of a message; 0: not known.
        self.head_bytes = 0
        #: Messages of the first columns only, and how many these are.
        self._before: IpcPieces | None = None
        self._before_place = 0
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), schema)
        # The first batch comes after the schema, which has its place in the head of a frame.
        self.of(pa.RecordBatch.from_pylist([], schema=schema))

    def of(self, batch: pa.RecordBatch) -> list[bytes | pa.Buffer]:
        """The message of a batch."""
        self._stream.write_batch(batch)
        pieces, self._file.pieces = self._file.pieces, []
        if batch.num_rows and len(pieces) > 1:
            # The same for all batches of a schema.
            self.head_bytes = 8 + int.from_bytes(pieces[1], "little")
        return pieces

    def bytes_before_texts(self, rows: pa.RecordBatch, place: int) -> int | None:
        """Bytes of a message before the texts of a column that the rows lack yet; None: that is not known.

        What it says is not relied on: where it is wrong, texts are copied once more.
        """
        if not self.head_bytes:
            return None
        before_bytes = 0
        if place:
            before = rows.select(range(place))
            if self._before is None or self._before_place != place:
                self._before, self._before_place = IpcPieces(before.schema), place
                self._before.of(before)
            before_bytes = pa.ipc.get_record_batch_size(before) - self._before.head_bytes
        return self.head_bytes + before_bytes + _filled_up(_OFFSET_BYTES * (rows.num_rows + 1))


def _filled_up(size_bytes: int) -> int:
    return -(-size_bytes // 8) * 8
