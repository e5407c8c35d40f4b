"""One key with half of all rows, beside uniform keys: how much slower a sum by key is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from experiments.workflows.trial import Say

_KEYS, _ID_MAX, _HOT_SHARE, _SEED = 100_000, 100, 0.5, 7
_PARTS = 4


def run_hot_keys(rows: int, repeat: int, emit: str, say: Say) -> dict[str, Any]:
    """Run the sum over uniform keys and over hot ones, in turn.

    Args:
        rows: of each run.
        repeat: runs of each; the median counts.
        emit: of the aggregation, see ``hot_job.build``.
        say: told of progress.

    Returns:
        ``ratio``: rows per second with a hot key, of those with uniform keys; and both.

    Raises:
        ClusterError: a job did not finish.
    """
    rates: dict[str, list[float]] = {"uniform": [], "hot": []}
    with tempfile.TemporaryDirectory() as place:
        for name, share in (("uniform", 0.0), ("hot", _HOT_SHARE)):
            _write(Path(place) / name, rows, share)
        for number in range(repeat):
            for name, found in rates.items():
                say(f"hot keys: {name}, {rows:,} rows, run {number + 1} of {repeat}")
                parameters = {"input": str(Path(place) / name), "emit": emit}
                setup = EngineSetup("experiments.workflows.hot_job", parameters)
                run = run_engine(setup, Path(place) / f"{name}-{number}")
                found.append(run.events_in / run.sustained_s)
    uniform, hot = median(rates["uniform"]), median(rates["hot"])
    return {
        "ratio": round(hot / uniform, 2),
        "hot_share": _HOT_SHARE,
        "rows": rows,
        "emit": emit,
        "uniform_rows_per_second": round(uniform),
        "hot_rows_per_second": round(hot),
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
