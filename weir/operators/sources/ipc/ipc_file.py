"""An Arrow IPC file of either format, read by the numbers of its record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa

from weir.operators.sources.files.input_files import InputFiles, unreadable
from weir.operators.sources.ipc.whole_arrays import check_whole

_MAGIC = b"ARROW1"
_MEND = "check that it is a whole file or stream of Arrow IPC"


class IpcFile:
    """An open file; a stream is read in order only.

    Args:
        path: the file.
        files: where it is.

    Raises:
        InputError: it cannot be read; also from :meth:`read`.
    """

    #: More record batches than a stream has.
    batches_max = 1 << 30

    def __init__(self, path: str, files: InputFiles) -> None:
        self.path = path
        self._files = files
        self._names: Sequence[str] | None = None
        #: Of a stream: the number of its next record batch.
        self._next = 0
        self._source: Any = None
        try:
            with files.open(path) as file:
                self._is_file = file.read(len(_MAGIC)) == _MAGIC
            self._open(None)
            self.schema: pa.Schema = self._reader.schema
            #: Record batches; None: a stream does not say.
            self.batch_count: int | None = self._reader.num_record_batches if self._is_file else None
        except (OSError, pa.ArrowException) as error:
            self.close()
            raise unreadable(path, error, _MEND) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, number: int, names: Sequence[str]) -> pa.RecordBatch | None:
        """The columns of these names of a record batch; None: the stream has ended before.

        Without names there are no columns; ``num_rows`` of the result is right.
        """
        try:
            batch = self._read(number, list(names))
            if batch is None:
                return None
            batch = batch.select(list(names))
            check_whole(batch)
            return batch
        except (OSError, pa.ArrowException) as error:
            failed = unreadable(self.path, error, f"{_MEND}; all record batches before {number} were read")
            raise failed from error

    def _read(self, number: int, names: list[str]) -> pa.RecordBatch | None:
        if self._names != names or (not self._is_file and number < self._next):
            self._open(names)
        if self._is_file:
            return self._reader.get_batch(number)
        while self._next < number:
            if self._next_of_stream() is None:
                return None
        return self._next_of_stream()

    def _next_of_stream(self) -> pa.RecordBatch | None:
        try:
            batch: pa.RecordBatch = self._reader.read_next_batch()
        except StopIteration:
            return None
        self._next += 1
        return batch

    def _open(self, names: list[str] | None) -> None:
        """Open anew, to decode the columns of these names."""
        options = pa.ipc.IpcReadOptions(use_threads=False)
        if names:
            options.included_fields = [
                self.schema.get_field_index(name) for name in self.schema.names if name in names
            ]
        self.close()
        source = self._files.arrow_source(self.path)
        self._source = pa.OSFile(source, "rb") if isinstance(source, str) else source
        opened = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
        self._reader: Any = opened(self._source, options=options)
        self._names = names
        self._next = 0

    def close(self) -> None:
        """Release the file; safe to call twice."""
        if self._source is not None:
            self._source.close()
            self._source = None
