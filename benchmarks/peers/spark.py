"""Spark Structured Streaming: :mod:`benchmarks.peers.spark_driver` in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import metadata

import polars as pl

from benchmarks.peers.files import PARALLELISM
from benchmarks.peers.processes import Usage, run_measured
from benchmarks.peers.rows import as_told
from benchmarks.peers.spark_driver import CONF, HEAP_BYTES, MASTER, TRIGGER
from benchmarks.peers.task import RefusedError, Task
from benchmarks.peers.texts import TABLES


class Spark:
    """Spark, from its package."""

    def settings(self) -> Mapping[str, object]:
        """Its configuration."""
        return {"master": MASTER, "heap": f"{HEAP_BYTES >> 30}g", "trigger": TRIGGER, **CONF}

    def version(self) -> str:
        """That of the package."""
        return metadata.version("pyspark")

    def run(self, task: Task) -> Usage:
        """Run the driver.

        Raises:
            RefusedError: Spark has no such query of streams.
            ClusterError: the query failed.
        """
        place = task.directory.resolve()
        place.mkdir(parents=True)
        order = {
            "text": task.query.spark or task.query.text,
            "tables": {
                name: {"path": str(path.resolve()), "columns": TABLES[name]}
                for name, path in task.input.cuts.items()
            },
            "form": task.form,
            "mode": "append" if task.query.key is None else "update",
            "result": str(place / "result") if task.keeps else "",
            "checkpoints": str(place / "checkpoints"),
            "outcome": str(place / "outcome.json"),
            "partitions": PARALLELISM,
        }
        (place / "order.json").write_text(json.dumps(order), "utf-8")
        command = [sys.executable, "-m", "benchmarks.peers.spark_driver", str(place / "order.json")]
        usage = run_measured(command, place / "spark.log", name="Spark")
        if refused := json.loads((place / "outcome.json").read_text("utf-8"))["refused"]:
            raise RefusedError(refused)
        return usage

    def rows(self, task: Task) -> pl.DataFrame:
        """The result; of rows that take the place of others, the last ones."""
        found = pl.read_parquet(task.directory / "result" / "*" / "*.parquet", hive_partitioning=True)
        if task.query.key is not None:
            found = found.sort("part").unique(task.query.key, keep="last")
        return as_told(task.query, found)
