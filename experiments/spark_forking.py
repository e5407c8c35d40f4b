"""Spark's daemon of Python processes, ``spark.python.daemon.module``, with what Weir's steps import there already.

Each process that a task asks for imports Weir anew otherwise: 1.2 s of processor time, and a query of a stream asks for
several. For tests with many short jobs (see ``experiments.forking``); jobs of users have Spark's own daemon.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil

#: The setting of a session.
DAEMON = {"spark.python.daemon.module": "experiments.spark_forking"}
_NEEDED = ("pyspark.worker", "pyspark.sql.streaming.stateful_processor_util")
_PACKAGES = ("weir.spark", "weir.operators", "weir.specs")
#: Clients of servers, which the jobs do not need.
_LEFT_OUT = {"kafka", "kafka_connectors", "cassandra", "delta_sink"}


def main() -> None:
    """Import, and serve as Spark's own daemon does."""
    for package in _PACKAGES:
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if found.name not in _LEFT_OUT:
                importlib.import_module(f"{package}.{found.name}")
    for name in _NEEDED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
