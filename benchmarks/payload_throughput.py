"""Rows with a payload of 200 bytes, from Parquet through a hash exchange, beside batch queries of the same files.

The engine brings every row, payload and all, to the subtask of its key, half of them to the other process. Polars and
DuckDB are two references each, without any exchange. ``polars`` and ``duckdb`` sum up the lengths of the texts, which
stay where they were decompressed: no byte of them is touched. The bar is by ``polars``. With ``_rows`` they hand the
rows over as Arrow record batches, which is the least that anything that reads the rows needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.payload_input import LETTERS, PAYLOAD_BYTES, SNAPPY, Compression, payload_directory
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult

BARS = (Bar("ratio_to_polars", "at least", 0.7), Bar("lost", "at most", 0))
_THREADS = 2
_TIMEOUT_S = 600.0
_BATCH_ROWS = 32_768


@dataclass(frozen=True)
class PayloadOptions:
    """Command-line options."""

    #: Twelve million rows take both sides half a second, a tenth of which is new memory of ours.
    events: int = 24_000_000
    repeat: int = 3
    texts: str = LETTERS
    compression: Compression = SNAPPY


def run(options: PayloadOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the job and both references ``repeat`` times, in turn.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: rows were lost.
        ClusterError: the job did not finish.
    """
    source = payload_directory(options.events, options.texts, options.compression, report)
    runs = []
    for number in range(1, options.repeat + 1):
        runs.append(_one_run(options, source, f"run {number} of {options.repeat}", report))
    config = {
        "job": "benchmarks.payload_job",
        "input": "parquet",
        "payload_bytes": PAYLOAD_BYTES,
        "texts": options.texts,
        "compression": options.compression,
    }
    is_usual = (options.texts, options.compression) == (LETTERS, SNAPPY)
    name = "" if is_usual else f"_{options.texts}_{options.compression}"
    return BenchmarkResult(f"throughput_parquet{name}", config, runs, BARS)


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
    for reference in ("polars", "duckdb", "polars_rows", "duckdb_rows"):
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


def _prepared(engine: str, source: str) -> Callable[[], list[Any]]:
    """A query that returns the number of rows and the sums of ids and of the lengths of the texts."""
    texts = ("server_name", "payload")
    if engine.startswith("polars"):
        rows = pl.scan_parquet(f"{source}/*.parquet")
        if engine == "polars_rows":
            return partial(_summed_batches, partial(_each_frame, rows))
        lengths = [pl.col(name).str.len_bytes().cast(pl.Int64).sum() for name in texts]
        return lambda: list(rows.select(pl.len(), pl.col("id").sum(), *lengths).collect().row(0))
    import duckdb

    connection = duckdb.connect(config={"threads": _THREADS})
    table = f"read_parquet('{source}/*.parquet')"
    if engine == "duckdb_rows":
        batches = connection.sql(f"SELECT * FROM {table}").to_arrow_reader
        return partial(_summed_batches, partial(_each_batch, batches))
    sums = ", ".join(f"sum(strlen({name}))" for name in texts)
    return lambda: list(connection.sql(f"SELECT count(*), sum(id), {sums} FROM {table}").fetchall()[0])


def _arrow(frame: pl.DataFrame) -> pa.RecordBatch:
    """With texts one after the other, as everything that reads Arrow takes them."""
    (batch,) = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks().to_batches()
    return batch


def _each_frame(rows: pl.LazyFrame, take: Callable[[pa.RecordBatch], None]) -> None:
    def take_frame(frame: pl.DataFrame) -> None:
        take(_arrow(frame))

    rows.sink_batches(take_frame)


def _each_batch(
    reader: Callable[[int], pa.RecordBatchReader], take: Callable[[pa.RecordBatch], None]
) -> None:
    for batch in reader(_BATCH_ROWS):
        take(batch)


def _summed_batches(run: Callable[[Callable[[pa.RecordBatch], None]], None]) -> list[Any]:
    """Sums of all batches that a query hands over."""
    sums = np.zeros(4, dtype=np.int64)

    def take(batch: pa.RecordBatch) -> None:
        lengths = [pc.sum(pc.binary_length(batch.column(name))).as_py() for name in batch.schema.names[1:]]
        sums[:] += [batch.num_rows, pc.sum(batch.column("id")).as_py(), *lengths]

    run(take)
    return list(sums)


def main(engine: str, source: str) -> None:
    """The measured process; imports are not in its time."""
    query = _prepared(engine, source)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    sums = query()
    facts = {
        "seconds": time.perf_counter() - began_s,
        "cpu_seconds": time.process_time() - began_cpu_s,
        "sums": [int(value) for value in sums],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
