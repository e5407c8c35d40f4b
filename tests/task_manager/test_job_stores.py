"""The state of a job whose store has failed before it is closed."""

from __future__ import annotations

import multiprocessing
import os
import resource
from pathlib import Path

from task_manager.job_stores import JobStores
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.protocol.checkpoints.restore_plan import RestorePlan
from weir.state.stores.rocksdb import open_store

FILE_BYTES_MAX = 1 << 20


def fail_and_close(directory: Path, has_checkpoints: bool) -> str:
    """Let a store's tables meet a file size limit, as they would a full disk; returns what closing the job raised."""
    store = open_store(directory / "state.db", RocksDbConfig(write_buffer_bytes=4 << 20), fresh=True)
    checkpoints = CheckpointStore.open(str(directory / "checkpoints"), "job") if has_checkpoints else None
    state = JobStores(store, checkpoints, None, None, RestorePlan(), None, ())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, limits[1]))
    failure = ""
    # The first memory tables are written out in the background: a later write tells that this failed.
    for first in range(0, 100_000, 100):
        try:
            store.write(puts=[(b"%d" % number, os.urandom(10_000)) for number in range(first, first + 100)])
        except StateError as error:
            failure = str(error)
            break
    assert failure
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    try:
        state.close()
    except StateError as error:
        return str(error)
    open_store(directory / "state.db", RocksDbConfig(), fresh=True).close()
    return ""


def test_a_store_that_cannot_be_closed_is_dropped_if_there_are_checkpoints(tmp_path: Path) -> None:
    # In a process of its own: the limit holds for all files of a process.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for has_checkpoints in (True, False):
            raised = pool.apply(fail_and_close, (tmp_path / str(has_checkpoints), has_checkpoints))
            assert bool(raised) is not has_checkpoints, raised
