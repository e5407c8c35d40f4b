"""The throughput job on a corpus as a batch query of Polars or DuckDB, in a process of its own.

``python -m benchmarks.batch_reference ENGINE DIRECTORY ID_PATH KEY_PATH COUNTS THREADS SUFFIX`` prints one JSON object.
Imports are not in its time, reading and parsing are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import polars as pl

Engine = Literal["polars", "duckdb"]
_TIMEOUT_S = 600.0


def run_batch(
    engine: Engine,
    directory: Path,
    id_path: Sequence[str],
    key_path: Sequence[str],
    counts: Path,
    threads: int,
    suffix: str = ".jsonl",
) -> dict[str, Any]:
    """Run the query with so many threads over files of a suffix; counts per key go to a Parquet file.

    Its columns are ``server_name`` and ``count``.

    Returns:
        ``kept``, ``seconds``, ``cpu_seconds``.
    """
    command = [sys.executable, "-m", "benchmarks.batch_reference", engine, str(directory)]
    command += [".".join(id_path), ".".join(key_path), str(counts), str(threads), suffix]
    environment = {**os.environ, "POLARS_MAX_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def main(
    engine: str, directory: str, id_text: str, key_text: str, counts_path: str, threads: str, suffix: str
) -> None:
    """The measured process."""
    id_path, key_path = id_text.split("."), key_text.split(".")
    query = _polars if engine == "polars" else _duckdb
    if suffix == ".csv":
        query = _polars_csv if engine == "polars" else _duckdb_csv
    counts, seconds, cpu_seconds = query(directory, id_path, key_path, int(threads))
    counts.write_parquet(counts_path)
    facts = {"kept": int(counts["count"].sum()), "seconds": seconds, "cpu_seconds": cpu_seconds}
    print(json.dumps(facts))


def _polars(
    directory: str, id_path: list[str], key_path: list[str], threads: int
) -> tuple[pl.DataFrame, float, float]:
    import polars as pl

    schema: dict[str, Any] = {}
    for path, leaf in ((id_path, pl.Int64), (key_path, pl.String)):
        inner = schema
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = leaf

    def dtype(tree: Any) -> Any:
        return (
            pl.Struct({name: dtype(inner) for name, inner in tree.items()})
            if isinstance(tree, dict)
            else tree
        )

    def column(path: list[str]) -> pl.Expr:
        found = pl.col(path[0])
        for name in path[1:]:
            found = found.struct.field(name)
        return found

    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    counts = (
        pl.scan_ndjson(f"{directory}/*.jsonl", schema={name: dtype(tree) for name, tree in schema.items()})
        .select(column(id_path).alias("id"), column(key_path).alias("server_name"))
        .filter(pl.col("id") % 4 != 0)
        .group_by("server_name")
        .agg(pl.len().cast(pl.Int64).alias("count"))
        .collect()
    )
    return counts, time.perf_counter() - began_s, time.process_time() - began_cpu_s


def _duckdb(
    directory: str, id_path: list[str], key_path: list[str], threads: int
) -> tuple[pl.DataFrame, float, float]:
    import duckdb
    import polars as pl

    tree: dict[str, Any] = {}
    for path, leaf in ((id_path, "BIGINT"), (key_path, "VARCHAR")):
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = leaf

    def declared(found: Any) -> str:
        if isinstance(found, str):
            return found
        return "STRUCT(" + ", ".join(f'"{name}" {declared(inner)}' for name, inner in found.items()) + ")"

    columns = {name: declared(inner) for name, inner in tree.items()}
    listed = ", ".join(f"'{name}': '{dtype}'" for name, dtype in columns.items())
    id_column, key_column = (".".join(f'"{name}"' for name in path) for path in (id_path, key_path))
    query = (
        f"SELECT {key_column} AS server_name, count(*) AS count FROM read_json('{directory}/*.jsonl', "
        f"format='newline_delimited', columns={{{listed}}}) WHERE {id_column} % 4 != 0 GROUP BY 1"
    )
    connection = duckdb.connect(config={"threads": threads})
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    table = connection.sql(query).to_arrow_table()
    seconds, cpu_seconds = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    counts = pl.from_arrow(table)
    assert isinstance(counts, pl.DataFrame)
    return counts, seconds, cpu_seconds


def _polars_csv(
    directory: str, id_path: list[str], key_path: list[str], threads: int
) -> tuple[pl.DataFrame, float, float]:
    import polars as pl

    id_column, key_column = id_path[0], key_path[0]
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    counts = (
        pl.scan_csv(f"{directory}/*.csv", schema_overrides={id_column: pl.Int64, key_column: pl.String})
        .filter(pl.col(id_column) % 4 != 0)
        .group_by(pl.col(key_column).alias("server_name"))
        .agg(pl.len().cast(pl.Int64).alias("count"))
        .collect()
    )
    return counts, time.perf_counter() - began_s, time.process_time() - began_cpu_s


def _duckdb_csv(
    directory: str, id_path: list[str], key_path: list[str], threads: int
) -> tuple[pl.DataFrame, float, float]:
    import duckdb
    import polars as pl

    id_column, key_column = id_path[0], key_path[0]
    connection = duckdb.connect(config={"threads": threads})
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    table = connection.sql(
        f"SELECT \"{key_column}\" AS server_name, count(*) AS count FROM read_csv('{directory}/*.csv', header=true, "
        f"types={{'{id_column}': 'BIGINT', '{key_column}': 'VARCHAR'}}) WHERE \"{id_column}\" % 4 != 0 GROUP BY 1"
    ).to_arrow_table()
    seconds, cpu_seconds = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    counts = pl.from_arrow(table)
    assert isinstance(counts, pl.DataFrame)
    return counts, seconds, cpu_seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
