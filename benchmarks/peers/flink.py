"""Flink SQL: a script, and Flink's engine in the process that reads it (``execution.target: local``)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from benchmarks.peers.files import PARALLELISM
from benchmarks.peers.processes import Usage, run_measured
from benchmarks.peers.rows import as_told
from benchmarks.peers.task import Task
from benchmarks.peers.texts import EVENT_TIME, OUT_OF_ORDERNESS_S, TABLES, Kind
from services.jars import jars, java
from weir.errors import ConfigError

_PROGRAM = Path(__file__).with_name("FlinkScript.java")
_HEAP = "4g"
#: What Flink's own start scripts open of Java 17.
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.io",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
)
#: Those of Flink's own Nexmark, but for places, parallelism, and checkpoints that come every 10 s and not every 180 s.
_SETTINGS: dict[str, object] = {
    "execution.target": "local",
    "execution.runtime-mode": "streaming",
    "parallelism.default": PARALLELISM,
    "pipeline.object-reuse": "true",
    "state.backend.type": "rocksdb",
    "taskmanager.memory.managed.size": "1g",
    "execution.checkpointing.interval": "10s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": 50_000,
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.local-time-zone": "UTC",
    # A fault ends the run.
    "restart-strategy.type": "none",
}
_TYPES: dict[Kind, str] = {"TIME": "TIMESTAMP_LTZ(3)", "WINDOW": "TIMESTAMP(3)"}


class Flink:
    """Flink, from its jars."""

    def settings(self) -> Mapping[str, object]:
        """Its configuration."""
        return {"heap": _HEAP, **_SETTINGS}

    def version(self) -> str:
        """That of the jars."""
        [path] = jars("flink").glob("flink-runtime-*.jar")
        return path.stem.rpartition("-")[2]

    def run(self, task: Task) -> Usage:
        """Run a script.

        Raises:
            ConfigError: there is no Java compiler.
            ServiceError: Java or Maven is missing.
            ClusterError: a statement failed.
        """
        if not shutil.which("javac"):
            raise ConfigError("Flink's program needs javac: install (Debian) openjdk-17-jdk-headless")
        place = task.directory.resolve()
        place.mkdir(parents=True)
        (place / "script.sql").write_text(script(task), "utf-8")
        settings = {
            **_SETTINGS,
            "execution.checkpointing.dir": (place / "checkpoints").as_uri(),
            "state.backend.rocksdb.localdir": place / "state",
            "io.tmp.dirs": place / "tmp",
            # As in Flink's own Nexmark; files that are kept are there when it has been made.
            "execution.checkpointing.checkpoints-after-tasks-finish": str(task.keeps).lower(),
        }
        (place / "tmp").mkdir()
        (place / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        command = [*java(f"-Xmx{_HEAP}", *opened), "-cp", f"{jars('flink')}/*", str(_PROGRAM)]
        return run_measured(
            [*command, str(place), str(place / "script.sql")], place / "flink.log", name="Flink"
        )

    def rows(self, task: Task) -> pl.DataFrame:
        """The result, of which changes come as Debezium's."""
        paths = [path for path in (task.directory / "result").glob("*") if not path.name.startswith(".")]
        columns = {name: _read_as(kind) for name, kind in task.query.columns.items()}
        row = pl.Struct(columns)
        schema: dict[str, pl.DataType] = {"before": row, "after": row, "op": pl.String()}
        found = pl.concat([pl.read_ndjson(path, schema=schema) for path in paths])
        taken = found.filter(pl.col("op") == "d")["before"].struct.unnest()
        given = found.filter(pl.col("op") == "c")["after"].struct.unnest()
        return as_told(task.query, _left(given, taken))


def _read_as(kind: Kind) -> pl.DataType:
    if kind == "BIGINT":
        return pl.Int64()
    return pl.Float64() if kind == "DOUBLE" else pl.String()


def _left(given: pl.DataFrame, taken: pl.DataFrame) -> pl.DataFrame:
    """Rows that were given more often than they were taken, so often."""
    columns = given.columns
    times = pl.concat([given.with_columns(_n=pl.lit(1)), taken.with_columns(_n=pl.lit(-1))])
    left = times.group_by(columns).agg(pl.col("_n").sum()).filter(pl.col("_n") != 0)
    if (left["_n"] < 0).any():
        raise ValueError("Flink took a row away that was not there")
    return left.select(pl.col(columns).repeat_by("_n")).explode(columns)


def script(task: Task) -> str:
    """The statements: tables, the result, and the query."""
    parts = [_table(name, task.input.tables[name], task.form) for name in task.query.tables]
    return ";\n\n".join([*parts, _result(task), f"INSERT INTO told {task.query.text.strip()}"]) + ";\n"


def _table(name: str, path: Path, form: str) -> str:
    columns = TABLES[name]
    listed = ", ".join(f"{column} {'BIGINT' if kind == 'TIME' else kind}" for column, kind in columns.items())
    made = f"WITH ('connector' = 'filesystem', 'path' = '{path.resolve().as_uri()}', 'format' = '{form}')"
    if EVENT_TIME not in columns:
        return f"CREATE TABLE {name} ({listed}) {made}"
    lateness = f"INTERVAL '{OUT_OF_ORDERNESS_S}' SECOND"
    # A table's columns have the names of the file, where times are numbers; the view has them as times.
    times = f"row_time AS TO_TIMESTAMP_LTZ({EVENT_TIME}, 3), WATERMARK FOR row_time AS row_time - {lateness}"
    return (
        f"CREATE TABLE {name}_file ({listed}, {times}) {made};\n\n"
        f"CREATE VIEW {name} AS SELECT {', '.join(_seen(*item) for item in columns.items())} FROM {name}_file"
    )


def _seen(column: str, kind: Kind) -> str:
    if column == EVENT_TIME:
        return f"row_time AS {column}"
    return f"TO_TIMESTAMP_LTZ({column}, 3) AS {column}" if kind == "TIME" else column


def _result(task: Task) -> str:
    listed = ", ".join(f"{name} {_TYPES.get(kind, kind)}" for name, kind in task.query.columns.items())
    if not task.keeps:
        return f"CREATE TABLE told ({listed}) WITH ('connector' = 'blackhole')"
    place = (task.directory.resolve() / "result").as_uri()
    return (
        f"CREATE TABLE told ({listed}) WITH ("
        f"'connector' = 'filesystem', 'path' = '{place}', 'format' = 'debezium-json')"
    )
