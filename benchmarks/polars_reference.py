"""The same job as a Polars batch query in a process of its own: the reference, and the independent count.

``python -m benchmarks.polars_reference INPUT COUNTS.parquet`` prints one JSON object. Imports are not in its
time, reading and parsing are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TIMEOUT_S = 600.0


def run_reference(
    input_directory: Path, counts_path: Path, *, threads: int, cpus: list[int] | None = None
) -> dict[str, Any]:
    """Run it with so many threads, on these processors; counts per key go to a Parquet file.

    Returns:
        ``events``, ``kept``, ``seconds``, ``cpu_seconds``, ``events_per_second``, ``peak_rss_bytes_max``, ``what``.
    """
    environment: Mapping[str, str] = {**os.environ, "POLARS_MAX_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.polars_reference", str(input_directory), str(counts_path)]
    if cpus is not None:
        command.append(",".join(map(str, cpus)))
    done = subprocess.run(command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return {"what": f"Polars batch query, {threads} thread(s), same input", **facts}


def main(input_directory: str, counts_path: str, cpus: str = "") -> None:
    """The measured process."""
    import resource

    import polars as pl

    if cpus:
        os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(",")])
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    schema = {"id": pl.Int64, "server_name": pl.String}
    counts = (
        pl.scan_ndjson(f"{input_directory}/*.jsonl", schema=schema)
        .filter(pl.col("id") % 4 != 0)
        .group_by("server_name")
        .agg(pl.len().cast(pl.Int64).alias("count"))
        .collect()
    )
    seconds, cpu_seconds = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    counts.write_parquet(counts_path)
    events = sum(_lines(path) for path in sorted(Path(input_directory).glob("*.jsonl")))
    facts = {
        "events": events,
        "kept": int(counts["count"].sum()),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "events_per_second": events / seconds,
        "peak_rss_bytes_max": peak_bytes,
    }
    print(json.dumps(facts))


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 22), b""))


if __name__ == "__main__":
    main(*sys.argv[1:])
