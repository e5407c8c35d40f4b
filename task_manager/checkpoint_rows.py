"""Rows that were under way to a subtask when barriers overtook them: files of a checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from weir.checkpoints.store import CheckpointStore
from weir.errors import CheckpointError
from weir.protocol.manifest import FileRef


def save_rows(
    store: CheckpointStore, checkpoint_id: int, name: str, rows: Sequence[pa.RecordBatch]
) -> tuple[FileRef, ...]:
    """Write rows that were under way to the checkpoint store: one Arrow IPC file for each schema, in order.

    Raises:
        CheckpointError: they cannot be written.
    """
    by_schema: dict[str, list[pa.RecordBatch]] = {}
    for batch in rows:
        by_schema.setdefault(str(batch.schema), []).append(batch)
    files = []
    for number, batches in enumerate(by_schema.values()):
        with tempfile.TemporaryDirectory(prefix="weir-rows-") as directory:
            path = Path(directory) / "rows.arrow"
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            files.append(store.publish(path, f"files/{checkpoint_id:012d}/rows/{name}-{number}.arrow"))
    return tuple(files)


def load_rows(store: CheckpointStore, files: Sequence[FileRef]) -> list[pa.RecordBatch]:
    """Read what :func:`save_rows` wrote.

    Raises:
        CheckpointError: a file is gone or damaged.
    """
    batches = []
    for file in files:
        with tempfile.TemporaryDirectory(prefix="weir-rows-") as directory:
            path = Path(directory) / "rows.arrow"
            store.fetch(file, path)
            try:
                with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
                    batches += [reader.get_batch(i) for i in range(reader.num_record_batches)]
            except (OSError, pa.ArrowException) as error:
                raise CheckpointError(f"checkpoint file {file.path} is damaged: {error}") from error
    return batches
