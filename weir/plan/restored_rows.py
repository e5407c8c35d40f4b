"""Which of the rows that were under way to a stage at a checkpoint belong to one of its subtasks now; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.errors import CheckpointError
from weir.keys.hashing import hash_keys, key_bytes, key_groups
from weir.plan.graph import Stage
from weir.protocol.routing import RoutingTable
from weir.rows.records import KEY_HASH_COLUMN, KEY_PART_COLUMN, SYSTEM_COLUMNS, InputRows, user_columns

#: What to do where a changed job cannot take rows that were under way.
FROM_A_SAVEPOINT = (
    "let the job as it was go on, and start this one from a savepoint that it makes with nothing under way (a higher "
    "checkpoint_alignment_timeout_ms)"
)


def rows_of_subtask(
    rows: Sequence[InputRows],
    stage: Stage,
    table: RoutingTable | None,
    subtask_index: int,
    steps: Collection[str] = (),
    waiting: Sequence[InputRows] = (),
) -> list[InputRows]:
    """Return which rows that were under way to a stage belong to one of its subtasks now.

    Args:
        rows: of the whole stage; with their key hashes if they came by HASH.
        stage: as it is now. Rows of an input that it has not got any more count as those of its first one.
        table: who owns the key groups; None: the stage has none. Its lowest subtask takes rows without a key group.
        subtask_index: the subtask.
        steps: of all stages: rows that wait for one of another stage are left to that.
        waiting: of stages that begin with steps of other stages now: only what waits for a step of this one counts.

    Raises:
        CheckpointError: rows lack a column that the stage reads now, or were added up for a step that it does not
            begin with any more.
    """
    own = {node.name for node in stage.nodes}
    waits = [item for item in rows if item.step and (_step_of(item) in own or _step_of(item) not in steps)]
    waits += [item for item in waiting if item.step and _step_of(item) in own]
    known = [item for item in rows if not item.step]
    known = [item if item.input_index < len(stage.inputs) else replace(item, input_index=0) for item in known]
    known = [_as_sent(item, stage) for item in known]
    is_lowest = subtask_index == min(stage.subtask_indices)
    mine = []
    for item in known:
        if table is None or item.input_index not in stage.keyed_inputs:
            mine += [item] if is_lowest else []
            continue
        owners = table.group_to_subtask
        groups = key_groups(item.batch.column(KEY_HASH_COLUMN).to_numpy(), len(table.groups))
        owned = item.batch.filter(pa.array(owners[groups] == subtask_index))
        if owned.num_rows:
            mine.append(replace(item, batch=owned))
    return mine + [owned for item in waits for owned in _waiting_of(item, stage, table, subtask_index)]


def _step_of(item: InputRows) -> str:
    """The step that rows wait for."""
    return item.step.split("#")[0]


def _waiting_of(
    item: InputRows, stage: Stage, table: RoutingTable | None, subtask_index: int
) -> list[InputRows]:
    """Returns those of a subtask of rows that wait for a step within the stage: by their keys, where they have them."""
    names = [node.name for node in stage.nodes]
    step = _step_of(item)
    keyed = [node for node in stage.nodes[names.index(step) if step in names else 0 :] if node.is_keyed]
    columns = keyed[0].spec.keys_of_input(0) if keyed else ()
    if table is None or not columns or not set(columns) <= set(item.batch.schema.names):
        indices = stage.subtask_indices
        owner = item.subtask_index if item.subtask_index in indices else min(indices)
        return [item] if owner == subtask_index else []
    groups = key_groups(hash_keys(key_bytes(item.batch, columns)), len(table.groups))
    owned = item.batch.filter(pa.array(table.group_to_subtask[groups] == subtask_index))
    return [replace(item, batch=owned)] if owned.num_rows else []


def _as_sent(item: InputRows, stage: Stage) -> InputRows:
    """The rows with the columns that are sent to the stage now: at the checkpoint others may have been read."""
    first = stage.nodes[0]
    if KEY_PART_COLUMN in item.batch.schema.names and not first.spec.combiner:
        # Another step would take a row that stands for several as one.
        raise CheckpointError(
            f"the checkpoint has rows under way to step {first.name!r} that were added up for another step; "
            f"{FROM_A_SAVEPOINT}"
        )
    columns = stage.inputs[item.input_index].columns if stage.inputs else None
    found = user_columns(item.batch.schema)
    if columns is None or list(columns) == found:
        return item
    missing = [name for name in columns if name not in found]
    if missing:
        raise CheckpointError(
            f"the checkpoint has rows under way to step {first.name!r} without column {missing[0]!r}, which nothing "
            f"read when it was made; {FROM_A_SAVEPOINT}"
        )
    system = [name for name in item.batch.schema.names if name in SYSTEM_COLUMNS]
    return replace(item, batch=item.batch.select([*columns, *system]))
