"""Rows with a payload of 200 bytes, from Parquet through a hash exchange, beside batch queries of the same files.

The engine brings every row, payload and all, to the subtask of its key, half of them to the other process. The batch
queries of Polars and DuckDB decode the same columns and sum them up, without any exchange.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, SEED
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult

BARS = (Bar("ratio_to_polars", "at least", 0.7), Bar("lost", "at most", 0))
_THREADS = 2
_TIMEOUT_S = 600.0
_PART_ROWS = 500_000
_ROW_GROUP_ROWS = 131_072


@dataclass(frozen=True)
class PayloadOptions:
    """Command-line options."""

    events: int = 3_000_000
    keys: int = 100_000
    payload_bytes: int = 200
    repeat: int = 3
    data_root: Path = DATA_DIRECTORY


def run(options: PayloadOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the job and both references ``repeat`` times, in turn.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: rows were lost.
        ClusterError: the job did not finish.
    """
    source = payload_directory(options, report)
    runs = []
    for number in range(1, options.repeat + 1):
        runs.append(_one_run(options, source, f"run {number} of {options.repeat}", report))
    config = {"job": "benchmarks.payload_job", "input": "parquet", "payload_bytes": options.payload_bytes}
    return BenchmarkResult("throughput_parquet", config, runs, BARS)


def payload_directory(options: PayloadOptions, report: Callable[[str, float], None]) -> Path:
    """The directory of Parquet files; made if it is not there yet, all of it or nothing."""
    name = f"payload-{options.events}-{options.keys}-{options.payload_bytes}-seed-{SEED}"
    directory = options.data_root / name
    if directory.exists():
        return directory
    options.data_root.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=options.data_root))
    rng = np.random.default_rng(SEED)
    try:
        for part, first in enumerate(range(0, options.events, _PART_ROWS)):
            rows = min(_PART_ROWS, options.events - first)
            # Letters that do not repeat within what a compressor looks at.
            letters = rng.integers(97, 123, rows * options.payload_bytes, dtype=np.uint8)
            payload = letters.view(f"S{options.payload_bytes}").astype(f"U{options.payload_bytes}")
            keys = "server-" + pl.Series(rng.integers(1, options.keys + 1, rows)).cast(pl.String)
            frame = pl.DataFrame(
                {"id": np.arange(first, first + rows), "server_name": keys, "payload": payload}
            )
            path = fresh / f"part-{part:05d}.parquet"
            frame.write_parquet(path, compression="snappy", row_group_size=_ROW_GROUP_ROWS, use_pyarrow=True)
            report("generating the input", (first + rows) / options.events)
        os.replace(fresh, directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return directory


def _one_run(
    options: PayloadOptions, source: Path, label: str, report: Callable[[str, float], None]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="weir-payload-") as name:
        report(f"{label}: engine", 0.0)
        setup = EngineSetup(
            "benchmarks.payload_job",
            {"input": source, "parallelism": 2},
            settings={"taskManager.operator_quota": 32},
        )
        engine = run_engine(
            setup,
            Path(name) / "cluster",
            lambda events: report(f"{label}: engine", events / options.events),
        )
    if (engine.events_in, engine.events_out) != (options.events, options.events):
        raise BenchmarkError(f"{engine.events_in} rows read, {engine.events_out} at the sink")
    figures = {**engine.figures(), "lost": options.events - engine.events_out}
    expected = None
    for reference in ("polars", "duckdb"):
        report(f"{label}: {reference}", 0.0)
        facts = _reference(reference, source)
        if expected not in (None, facts["sums"]):
            raise BenchmarkError(f"Polars has {expected}, DuckDB {facts['sums']}")
        expected = facts["sums"]
        facts["events_per_second"] = options.events / facts["seconds"]
        figures[reference] = facts
        figures[f"ratio_to_{reference}"] = figures["events_per_second"] / facts["events_per_second"]
    return figures


def _reference(engine: str, source: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.payload_throughput", engine, str(source)]
    environment = {**os.environ, "POLARS_MAX_THREADS": str(_THREADS)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def main(engine: str, source: str) -> None:
    """The measured process; imports are not in its time."""
    if engine == "polars":
        query = (
            pl.scan_parquet(f"{source}/*.parquet")
            .select(
                pl.len(),
                pl.col("id").sum(),
                *(pl.col(name).str.len_bytes().cast(pl.Int64).sum() for name in ("server_name", "payload")),
            )
            .collect
        )
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        sums = list(query().row(0))
    else:
        import duckdb

        connection = duckdb.connect(config={"threads": _THREADS})
        text = (
            "SELECT count(*), sum(id), sum(strlen(server_name)), sum(strlen(payload)) "
            f"FROM read_parquet('{source}/*.parquet')"
        )
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        sums = list(connection.sql(text).fetchall()[0])
    facts = {
        "seconds": time.perf_counter() - began_s,
        "cpu_seconds": time.process_time() - began_cpu_s,
        "sums": [int(value) for value in sums],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
