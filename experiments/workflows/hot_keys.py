"""One key with half of all rows, beside uniform keys: how much slower a sum by key is."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from experiments.workflows.trial import Say

_KEYS, _ID_MAX, _HOT_SHARE, _SEED = 100_000, 100, 0.5, 7
_SHARES = {"uniform": 0.0, "hot": _HOT_SHARE}
_PARTS = 4
EMITS = ("per_event", "per_batch")


def run_hot_keys(rows: int, repeat: int, say: Say, emits: Sequence[str] = EMITS) -> dict[str, Any]:
    """Run the sum over uniform keys and over hot ones, in turn, for each way in which it tells results.

    Args:
        rows: of each run.
        repeat: runs of each; the median counts.
        say: told of progress.
        emits: of the aggregation, see ``hot_job.build``.

    Returns:
        ``ratio``: rows per second with a hot key, of those with uniform keys, the lowest of all ways; and each.

    Raises:
        ClusterError: a job did not finish.
    """
    with tempfile.TemporaryDirectory() as place:
        for name, share in _SHARES.items():
            _write(Path(place) / name, rows, share)
        found = {emit: _measure(Path(place), rows, repeat, emit, say) for emit in emits}
    return {
        "ratio": min(each["ratio"] for each in found.values()),
        "hot_share": _HOT_SHARE,
        "rows": rows,
        **found,
    }


def _measure(place: Path, rows: int, repeat: int, emit: str, say: Say) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in _SHARES}
    cpu_us: dict[str, list[float]] = {name: [] for name in _SHARES}
    for number in range(repeat):
        for name in _SHARES:
            say(f"hot keys: {emit}, {name}, {rows:,} rows, run {number + 1} of {repeat}")
            parameters = {"input": str(place / name), "emit": emit}
            setup = EngineSetup("experiments.workflows.hot_job", parameters)
            run = run_engine(setup, place / f"{emit}-{name}-{number}")
            rates[name].append(run.events_in / run.sustained_s)
            cpu_us[name].append(1e6 * run.job_cpu_s / run.events_in)
    uniform, hot = (median(rates[name]) for name in _SHARES)
    return {
        "ratio": round(hot / uniform, 2),
        "uniform_rows_per_second": round(uniform),
        "hot_rows_per_second": round(hot),
        # Other work on the machine changes it less.
        "uniform_cpu_us": round(median(cpu_us["uniform"]), 3),
        "hot_cpu_us": round(median(cpu_us["hot"]), 3),
    }


def _write(directory: Path, rows: int, hot_share: float) -> None:
    """Lines of which this share has the key ``server-0``, anywhere among the others."""
    directory.mkdir()
    rng = np.random.default_rng(_SEED)
    line = pl.concat_str(
        pl.lit('{"id": '), pl.col("id"), pl.lit(', "server_name": "server-'), pl.col("key"), pl.lit('"}')
    )
    for part in range(_PARTS):
        count = rows // _PARTS
        keys = rng.integers(1, _KEYS + 1, count)
        keys[rng.random(count) < hot_share] = 0
        frame = pl.DataFrame({"id": rng.integers(1, _ID_MAX + 1, count), "key": keys})
        path = directory / f"part-{part}.jsonl"
        frame.select(line.alias("line")).write_csv(path, include_header=False, quote_style="never")
