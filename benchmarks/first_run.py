"""The first run on a machine: no kernel is compiled yet. How soon has the README's job its first row?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from benchmarks.results import Bar, BenchmarkResult

BARS = (Bar("first_row_of_all", "at most", 0.107),)
_JOB = """
import polars as pl
import weir


def build(input: str = "events.jsonl", parallelism: int = 1) -> weir.Dataflow:
    flow = weir.Dataflow("counts")
    events = flow.source("events", weir.JsonLines(input, schema={"id": int, "server_name": str}))
    kept = events.filter("keep", pl.col("id") % 4 != 0)
    kept.key_by("server_name").count("count", parallelism=parallelism).sink("out", weir.Print())
    return flow
"""


def run(report: Callable[[str, float], None]) -> BenchmarkResult:
    """``weir run`` and then ``weir compile``, each with a cache of kernels of its own that is empty.

    Raises:
        RuntimeError: one of them failed; with what it wrote to standard error.
    """
    with tempfile.TemporaryDirectory(prefix="weir-first-run-") as directory:
        place = Path(directory)
        (place / "counts.py").write_text(_JOB)
        lines = (f'{{"id": {n}, "server_name": "server-{n}"}}\n' for n in range(1, 101))
        (place / "events.jsonl").write_text("".join(lines))
        report("weir run", 0.0)
        first_row_s, run_s = _run(place)
        report("weir compile", 0.1)
        all_kernels_s = _compile(place)
    figures = {
        "first_row_s": first_row_s,
        "run_s": run_s,
        "all_kernels_s": all_kernels_s,
        "first_row_of_all": first_row_s / all_kernels_s,
    }
    return BenchmarkResult("first_run", {"job": "counts.py of the README"}, [figures], BARS)


def _run(place: Path) -> tuple[float, float]:
    """Seconds from the start of the command to the first line that the job prints, and to its end."""
    began_s = time.monotonic()
    with (
        (place / "errors").open("w+") as errors,
        _weir(
            place, "run", ["run", "counts.py", "--param", "parallelism=2", "--http-port", "0"], errors
        ) as process,
    ):
        assert process.stdout is not None
        first = process.stdout.readline()
        first_s = time.monotonic() - began_s
        process.stdout.read()
        if process.wait() or not first:
            errors.seek(0)
            raise RuntimeError(f"weir run ended with code {process.returncode}: {errors.read()}")
    return first_s, time.monotonic() - began_s


def _compile(place: Path) -> float:
    began_s = time.monotonic()
    with (place / "errors").open("w+") as errors, _weir(place, "compile", ["compile"], errors) as process:
        assert process.stdout is not None
        process.stdout.read()
        if process.wait():
            errors.seek(0)
            raise RuntimeError(f"weir compile ended with code {process.returncode}: {errors.read()}")
    return time.monotonic() - began_s


def _weir(place: Path, cache: str, arguments: list[str], errors: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weir", *arguments],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(place / f"kernels-{cache}")},
    )
