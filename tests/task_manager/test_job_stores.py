"""The state of a job whose store has failed before it is closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from task_manager.job_stores import JobStores
from tests.file_limit import file_bytes_limited
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state.api import StateBackend
from weir.state.stores.rocksdb import open_store

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
