"""Rows that were under way to a subtask when barriers overtook them: files of a checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.errors import CheckpointError
from weir.keys import key_groups
from weir.protocol.manifest import FileRef
from weir.protocol.routing import RoutingTable
from weir.records import KEY_HASH_COLUMN


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


def rows_of_subtask(
    rows: Sequence[pa.RecordBatch], table: RoutingTable | None, subtask_index: int, lowest_index: int
) -> list[pa.RecordBatch]:
    """Of rows that were under way to a stage those that belong to one of its subtasks now.

    Args:
        rows: of the whole stage; with their key hashes if it has key groups.
        table: who owns the key groups; None: the stage has none, and its lowest subtask takes all rows.
        subtask_index: the subtask.
        lowest_index: the lowest index of the stage's subtasks.
    """
    if table is None:
        return list(rows) if subtask_index == lowest_index else []
    owners = table.group_to_subtask
    mine = []
    for batch in rows:
        groups = key_groups(batch.column(KEY_HASH_COLUMN).to_numpy(), len(table.groups))
        mine.append(batch.filter(pa.array(owners[groups] == subtask_index)))
    return [batch for batch in mine if batch.num_rows]
