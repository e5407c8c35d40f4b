"""Rows that were under way to a subtask when barriers overtook them: files of a checkpoint.

A file is an Arrow IPC file of rows of one input and one schema; the metadata of its schema say which input that was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import FileRef
from weir.rows.records import WATERMARK_MIN_MS, InputRows

#: Metadata of a file's schema: position of the rows' input among those of the stage, in decimal digits. Files of older
#: versions have none; a stage could only merge its inputs then.
_INPUT_KEY = b"weir.input_index"
#: Metadata, 1: see ``InputRows.in_time``. Files of older versions have none.
_IN_TIME_KEY = b"weir.in_time"
#: Metadata of rows that wait for a step within the stage, see ``InputRows.step``; others have none.
_STEP_KEY, _KNOWN_KEY, _SUBTASK_KEY = b"weir.step", b"weir.known_ms", b"weir.subtask"


def save_rows(
    store: CheckpointStore, checkpoint_id: int, name: str, rows: Sequence[InputRows]
) -> tuple[FileRef, ...]:
    """Write rows that were under way to the checkpoint store; the rows of each input stay in order.

    Raises:
        CheckpointError: they cannot be written.
    """
    files = []
    for number, part in enumerate(_parts(rows)):
        with tempfile.TemporaryDirectory(prefix="weir-rows-") as directory:
            path = Path(directory) / "rows.arrow"
            schema, note = part[0].batch.schema, _note_of(part[0])
            noted = schema.with_metadata({**(schema.metadata or {}), **note})
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, noted) as writer:
                for item in part:
                    writer.write_batch(item.batch.replace_schema_metadata(noted.metadata))
            files.append(store.publish(path, f"files/{checkpoint_id:012d}/rows/{name}-{number}.arrow"))
    return tuple(files)


def _note_of(item: InputRows) -> dict[bytes, bytes]:
    note = {_INPUT_KEY: str(item.input_index).encode()}
    if item.in_time:
        note[_IN_TIME_KEY] = b"1"
    if item.step:
        note[_STEP_KEY] = item.step.encode()
        note[_KNOWN_KEY], note[_SUBTASK_KEY] = str(item.known_ms).encode(), str(item.subtask_index).encode()
    return note


def _parts(rows: Sequence[InputRows]) -> list[list[InputRows]]:
    """Rows of one input, or for one step, and one schema; a new part begins where the schema changes."""
    parts: list[list[InputRows]] = []
    latest: dict[object, list[InputRows]] = {}
    for item in rows:
        kind = item.input_index, item.in_time, item.step, item.known_ms, item.subtask_index
        part = latest.get(kind)
        if part is None or not part[0].batch.schema.equals(item.batch.schema, check_metadata=True):
            part = latest[kind] = []
            parts.append(part)
        part.append(item)
    return parts


def load_rows(store: CheckpointStore, files: Sequence[FileRef]) -> list[InputRows]:
    """Read what :func:`save_rows` wrote; of files of older versions of Weir the first input counts.

    Raises:
        CheckpointError: a file is gone or damaged.
    """
    rows = []
    for file in files:
        with tempfile.TemporaryDirectory(prefix="weir-rows-") as directory:
            path = Path(directory) / "rows.arrow"
            store.fetch(file, path)
            try:
                with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
                    rows += _read(reader)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise CheckpointError(f"checkpoint file {file.path} is damaged: {error}") from error
    return rows


def _read(reader: pa.RecordBatchFileReader) -> list[InputRows]:
    metadata = dict(reader.schema.metadata or {})
    index = int(metadata.pop(_INPUT_KEY, b"0"))
    in_time = metadata.pop(_IN_TIME_KEY, b"") == b"1"
    step = metadata.pop(_STEP_KEY, b"").decode()
    known_ms, subtask = int(metadata.pop(_KNOWN_KEY, WATERMARK_MIN_MS)), int(metadata.pop(_SUBTASK_KEY, b"0"))
    batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    return [
        InputRows(index, batch.replace_schema_metadata(metadata or None), in_time, step, known_ms, subtask)
        for batch in batches
    ]
