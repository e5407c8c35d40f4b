"""The job on processes of this machine: ``weir run`` with the settings of a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.workflows.home import Home
from weir.errors import ConfigError

#: What ``--store`` stands for. Memory, RocksDB and Cassandra ship state to a new owner before it goes on; with hybrid
#: the new owner goes on at once on the store of the old one, and state follows. With an object store tables of
#: checkpoints in it are the state: a standby keeps them, and a new owner of key groups begins with them.
STORES: dict[str, dict[str, object]] = {
    "rocksdb": {"taskManager.state_backend": "rocksdb", "taskManager.useHybrid": "false"},
    "memory": {"taskManager.state_backend": "memory", "taskManager.useHybrid": "false"},
    "hybrid": {"taskManager.state_backend": "rocksdb", "taskManager.useHybrid": "true"},
    "cassandra": {"taskManager.state_backend": "cassandra", "taskManager.useHybrid": "false"},
    "object": {
        "taskManager.state_backend": "rocksdb",
        "taskManager.useHybrid": "true",
        "taskManager.useRelink": "true",
        "controlPlane.standby_replicas": 1,
    },
}
_CHECKPOINT_URI, _OBJECT_STORE = "controlPlane.checkpoint_uri", "s3://"
JOB = "experiments.workflows.job"


def store_settings(store: str) -> dict[str, object]:
    """The keys of the configuration that a store stands for.

    Raises:
        ConfigError: there is no such store.
    """
    if store not in STORES:
        raise ConfigError(f"--store {store}: there are {', '.join(STORES)}")
    return STORES[store]


def job_parameters(home: Home, parallelism: int, form: str, timers: str) -> dict[str, object]:
    """Of ``job.build``, for the log of a directory.

    Raises:
        InputError: there was no setup.
    """
    given = {"bootstrap": home.bootstrap, "log": home.settings.log}
    return {**given, "parallelism": parallelism, "form": form, "timers": timers}


def run_server(
    home: Home,
    store: str,
    parameters: Mapping[str, object],
    *,
    task_managers: int,
    http_port: int | None,
    settings: Sequence[str],
    fresh: bool,
) -> Any:
    """Become ``weir run``; returns only if that cannot be.

    Args:
        home: of the workload.
        store: one of :data:`STORES`.
        parameters: of the job.
        task_managers: processes that work.
        http_port: of the control plane; None: 9008, or another one if that is taken.
        settings: ``KEY=VALUE`` of the configuration; they win.
        fresh: discard what an earlier run that was killed has left.

    Raises:
        ConfigError: there is no such store, or nobody says where the object store is.
    """
    keys = [f"{key}={value}" for key, value in store_settings(store).items()]
    if store == "object" and not any(
        each.startswith(f"{_CHECKPOINT_URI}={_OBJECT_STORE}") for each in settings
    ):
        raise ConfigError(
            f"--store object: say where it is: --set {_CHECKPOINT_URI}=s3://BUCKET/PATH?region=REGION"
        )
    command = [sys.executable, "-m", "weir", "run", JOB, "--keep-dir", str(home.run_directory)]
    command += ["--task-managers", str(task_managers)]
    command += [] if http_port is None else ["--http-port", str(http_port)]
    command += ["--start-fresh"] if fresh else []
    for key in [*keys, *settings]:
        command += ["--set", key]
    for name, value in parameters.items():
        command += ["--param", f"{name}={value}"]
    sys.stdout.flush()
    os.execv(command[0], command)
