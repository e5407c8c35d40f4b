"""Weir: a file of SQL statements on a control plane and two task managers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.nexmark import SETTINGS
from benchmarks.nexmark_reference import table_of
from benchmarks.peers.files import PARALLELISM
from benchmarks.peers.processes import Usage
from benchmarks.peers.rows import as_told
from benchmarks.peers.task import Task
from benchmarks.peers.texts import EVENT_TIME, OUT_OF_ORDERNESS_S, TABLES

_JOB = "weir.sql.job"
_TASK_MANAGERS = 2
#: Its default, which is ten times as often as Flink's here.
_SETTINGS = {**SETTINGS, "controlPlane.checkpoint_interval_ms": 1000}


class Weir:
    """This engine."""

    def settings(self) -> Mapping[str, object]:
        """Processes and settings."""
        return {"task_managers": _TASK_MANAGERS, "parallelism": PARALLELISM, "state": "rocksdb", **_SETTINGS}

    def version(self) -> str:
        """That of the package."""
        try:
            return metadata.version("weir")
        except metadata.PackageNotFoundError:
            return "of this checkout"

    def run(self, task: Task) -> Usage:
        """Run the script on real processes.

        Raises:
            ClusterError: the job failed.
        """
        place = task.directory.resolve()
        place.mkdir(parents=True)
        path = place / "script.sql"
        path.write_text(script(task), "utf-8")
        setup = EngineSetup(
            _JOB,
            {"file": path, "parallelism": PARALLELISM},
            task_managers=_TASK_MANAGERS,
            settings=_SETTINGS,
            timeout_s=1200,
        )
        run = run_engine(setup, place / "run")
        # A slope has no start in it anyway. That of three interpreters differs from run to run by more than the CPU
        # that the rows of a small run take, so it is left out here already.
        return Usage(run.sustained_s, run.job_cpu_s, sum(run.peak_rss_bytes.values()))

    def rows(self, task: Task) -> pl.DataFrame:
        """The result, a changelog as the table that it leaves."""
        found = pl.read_parquet(task.directory / "result" / "**/*.parquet")
        return as_told(task.query, table_of(found) if task.query.key is not None else found)


def script(task: Task) -> str:
    """The statements: sources, and a sink of the query."""
    parts = []
    for name in task.query.tables:
        columns = ", ".join(
            f"{column} {'BIGINT' if kind == 'TIME' else kind}" for column, kind in TABLES[name].items()
        )
        if EVENT_TIME in TABLES[name]:
            lateness = f"INTERVAL '{OUT_OF_ORDERNESS_S}' SECOND"
            columns += f", WATERMARK FOR {EVENT_TIME} AS {EVENT_TIME} - {lateness}"
        place = task.input.tables[name].resolve()
        parts.append(f"CREATE SOURCE {name} ({columns}) WITH (connector = '{task.form}', path = '{place}')")
    sink = "connector = 'blackhole'"
    if task.keeps:
        sink = f"connector = 'parquet', path = '{task.directory.resolve() / 'result'}'"
    return ";\n\n".join([*parts, f"CREATE SINK result WITH ({sink}) AS {task.query.text.strip()}"]) + ";\n"
