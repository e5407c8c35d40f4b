"""The state of a job whose store has failed before it is closed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from task_manager.job_stores import JobStores, Restored
from task_manager.topology import Topology
from tests.file_limit import file_bytes_limited
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.rows import save_rows
from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.plan.stages import physical_graph
from weir.protocol.checkpoints.restore_plan import RestorePlan
from weir.rows.records import InputRows
from weir.state.api import StateBackend
from weir.state.stores.rocksdb import open_store
from weir.types import SubtaskId

SETTINGS = RocksDbConfig(write_buffer_bytes=4 << 20)


def fill(store: StateBackend) -> None:
    """The first memory tables are written out in the background: a later write tells that this failed."""
    value = os.urandom(10_000)
    for first in range(0, 100_000, 100):
        store.write(puts=[(b"%d" % number, value) for number in range(first, first + 100)])


def failed_state(directory: Path, checkpoints: CheckpointStore | None) -> JobStores:
    """Of a store whose tables have met a limit of their size, as they would a full disk."""
    store = open_store(directory / "state.db", SETTINGS, fresh=True)
    with file_bytes_limited(1 << 20), pytest.raises(StateError, match="file size limit"):
        fill(store)
    return JobStores(store, checkpoints, None, None)


def test_a_store_that_cannot_be_closed_is_dropped_if_there_are_checkpoints(tmp_path: Path) -> None:
    failed_state(tmp_path, CheckpointStore.open(str(tmp_path / "checkpoints"), "job")).close()
    open_store(tmp_path / "state.db", SETTINGS, fresh=True).close()
    with pytest.raises(StateError):
        failed_state(tmp_path / "alone", None).close()


def test_all_know_which_subtasks_of_a_source_have_rows_of_the_checkpoint(tmp_path: Path) -> None:
    """The others have ended before the first row where they have nothing to read, and need not be waited for."""
    flow = weir.Dataflow("job")
    lines = flow.source("in", weir.JsonLines("in", schema={"id": int}), parallelism=3)
    lines.map("behind", dict, {"id": int}).sink("out", weir.JsonLinesSink("out"))
    topology = Topology(physical_graph(flow.build()), {}, {})
    (stage,) = topology.graph.stages
    files = CheckpointStore.open(str(tmp_path / "checkpoints"), "job")
    waiting = InputRows(0, pa.record_batch({"id": [1, 2]}), step="behind", subtask_index=1)
    plan = RestorePlan(rows={stage.index: save_rows(files, 3, "rows", [waiting])})
    here = SubtaskId(stage.index, 0)
    store = open_store(tmp_path / "state.db", SETTINGS, fresh=True)
    restored = JobStores(store, files, None, None, Restored(plan, files, [here]))
    assert restored.subtasks_with_rows(stage, topology) == {1}
    assert restored.rows_for(here, topology) == []
    assert JobStores(store, files, None, None).subtasks_with_rows(stage, topology) == frozenset()
    store.close()
