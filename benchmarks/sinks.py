"""How many rows a second a transactional file sink takes, beside Polars' streaming sink of the same rows."""

from __future__ import annotations

import itertools
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

from benchmarks.command_line import SinkName
from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, SEED
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult

BARS = (Bar("ratio_to_polars", "at least", 0.7),)

_PARTS = 8
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class SinksOptions:
    """Command-line options."""

    sink: SinkName = "parquet"
    events: int = 20_000_000
    repeat: int = 3
    roll_ms: float | None = None
    checkpoint_interval_ms: int = 1_000
    data_root: Path = DATA_DIRECTORY


def run(options: SinksOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the job and Polars ``repeat`` times, in turn, and compare what they wrote.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: rows are lost or come twice.
        ClusterError: the job did not finish.
    """
    report("generating the input", 0.0)
    source = _input(options)
    runs = []
    for number in range(1, options.repeat + 1):
        with tempfile.TemporaryDirectory(prefix="weir-sinks-", dir=options.data_root) as directory:
            label = f"run {number} of {options.repeat}"
            runs.append(_one_run(options, source, Path(directory), label, report))
    config = {
        "job": "benchmarks.sink_job",
        "sink": options.sink,
        "events": options.events,
        "roll_ms": options.roll_ms,
        "checkpoint_interval_ms": options.checkpoint_interval_ms,
        "task_managers": 2,
    }
    return BenchmarkResult("sinks", config, runs, BARS if options.sink == "parquet" else ())


def _one_run(
    options: SinksOptions,
    source: Path,
    directory: Path,
    label: str,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    report(f"{label}: engine", 0.0)
    out = directory / "out"
    setup = EngineSetup(
        "benchmarks.sink_job",
        {"input": source, "output": out, "sink": options.sink}
        | ({"roll_ms": options.roll_ms} if options.roll_ms is not None else {}),
        settings={"controlPlane.checkpoint_interval_ms": options.checkpoint_interval_ms},
    )
    engine = run_engine(
        setup, directory / "cluster", lambda events: report(f"{label}: engine", events / options.events)
    )
    report(f"{label}: Polars", 0.0)
    reference = _reference(options.sink, source, directory / "polars")
    figures = engine.figures()
    # To the end of the job: the last files become visible after the last row.
    ended_s = (
        (engine.status["ended_ms"] - engine.status["started_ms"]) / 1e3
        if "ended_ms" in engine.status
        else 0.0
    )
    written = sorted(path for path in out.rglob("part-*") if path.is_file())
    report(f"{label}: comparing rows", 0.0)
    if _checksum(options.sink, out) != _checksum("parquet", source):
        raise BenchmarkError(f"the rows in {out} are not those of the input")
    return {
        **figures,
        "seconds_to_the_end": ended_s,
        "files": len(written),
        "bytes": sum(path.stat().st_size for path in written),
        "reference": reference,
        "ratio_to_polars": figures["events_per_second"] / reference["events_per_second"],
        "cpu_ratio_to_polars": figures["cpu_seconds_per_million_events"]
        / (reference["cpu_seconds"] / options.events * 1e6),
        "lost": 0,
        "duplicated": 0,
    }


def _input(options: SinksOptions) -> Path:
    directory = options.data_root / f"sinks-{options.events}-seed-{SEED}"
    if directory.exists():
        return directory
    options.data_root.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=options.data_root))
    try:
        rng = np.random.default_rng(SEED)
        bounds = np.linspace(0, options.events, _PARTS + 1).astype(int).tolist()
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            keys = pl.Series(rng.integers(1, 100_001, stop - start))
            frame = pl.DataFrame(
                {
                    "id": np.arange(start, stop),
                    "server_name": pl.select("server-" + keys.cast(pl.String)).to_series(),
                    "value": rng.random(stop - start),
                    "count": rng.integers(0, 1000, stop - start),
                }
            )
            frame.write_parquet(fresh / f"part-{number:05d}.parquet", row_group_size=250_000)
        fresh.rename(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return directory


def _checksum(sink: str, directory: Path) -> tuple[object, ...]:
    """Number of rows, sums of the numbers, and of the lengths of the texts."""
    match sink:
        case "parquet":
            rows = pl.scan_parquet(f"{directory}/*.parquet")
        case "csv":
            rows = pl.scan_csv(f"{directory}/*.csv")
        case "json_lines":
            rows = pl.scan_ndjson(f"{directory}/*.jsonl")
        case _:
            rows = pl.scan_delta(str(directory))
    sums = rows.select(
        pl.len(),
        pl.col("id").sum(),
        pl.col("count").sum(),
        pl.col("server_name").str.len_bytes().sum().alias("text"),
        # Sums of floats depend on the order.
        (pl.col("value") * 1e6).round().cast(pl.Int64).sum(),
        pl.col("id").n_unique().alias("unique"),
    )
    return sums.collect().row(0)


def _reference(sink: str, source: Path, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.sinks", sink, str(source), str(out)]
    environment = {**os.environ, "POLARS_MAX_THREADS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return {"what": "Polars streaming sink, 2 threads, same input", **facts}


def main(sink: str, source: str, out: str) -> None:
    """The measured process of the reference; imports are not in its time."""
    rows = pl.scan_parquet(f"{source}/*.parquet")
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    if sink == "csv":
        rows.sink_csv(out)
    elif sink == "json_lines":
        rows.sink_ndjson(out)
    else:
        rows.sink_parquet(out)
    with open(out, "rb+") as file:
        os.fsync(file.fileno())
    seconds, cpu_seconds = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    events = rows.select(pl.len()).collect().item()
    facts = {"seconds": seconds, "cpu_seconds": cpu_seconds, "events_per_second": events / seconds}
    print(json.dumps({**facts, "bytes": Path(out).stat().st_size}))


if __name__ == "__main__":
    main(*sys.argv[1:])
