"""Sources that wait for each other stay near each other through rescales and kill -9."""

import json

import polars as pl
import pytest

from tests.scenarios.flows.flow_aligned import DRIFT_MS, WINDOW_MS

pytestmark = pytest.mark.scenario

ROWS_NEAR, ROWS_FAR, RATE, SERVERS = 12_000, 1_200, 1_000, 40
#: Between two rows. At the same rate one source is ten times as fast.
STEP_NEAR_MS, STEP_FAR_MS = 10, 100
BATCH_ROWS = 30
#: A batch, a watermark's interval, and processes that say at different moments how far they are.
BEYOND_MS = BATCH_ROWS * STEP_FAR_MS + 7_000


def test_a_source_that_is_ahead_waits_also_after_rescales_and_a_loss(run_disturbed, tmp_path):
    given = {"far": (ROWS_FAR, STEP_FAR_MS), "near": (ROWS_NEAR, STEP_NEAR_MS), "none": (0, 0)}
    rows = {}
    for name, (count, step_ms) in given.items():
        made = [{"id": n, "server": f"s{n % SERVERS}", "at": n * step_ms} for n in range(count)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in made))
        rows[name] = made
    parameters = {name: tmp_path / name for name in given} | {"output": tmp_path / "out", "rate": RATE}
    settings = {"taskManager.batch_size": BATCH_ROWS}
    run_disturbed("flow_aligned", parameters, stages=[4], parallelisms=(3, 2), rows=350, settings=settings)
    parts = [part for part in sorted((tmp_path / "out").glob("part-*")) if part.stat().st_size]
    found = pl.concat(
        [pl.read_ndjson(part, infer_schema_length=None) for part in parts], how="diagonal_relaxed"
    )
    for name in ("far", "near"):
        of_windows = pl.DataFrame(rows[name]).group_by(
            "server", window_start=pl.col("at") // WINDOW_MS * WINDOW_MS
        )
        expected = of_windows.agg(pl.len().cast(pl.Int64).alias(name)).sort("server", "window_start")
        told = found.filter(pl.col(name) > 0).select("server", "window_start", name)
        assert told.sort("server", "window_start").equals(expected)
    # When a row of one was read, the other had read all rows that are so much earlier.
    by_time = found.group_by("window_start").agg(pl.col("far_us", "near_us").min()).sort("window_start")
    starts_ms, far_us, near_us = (by_time[name].to_list() for name in ("window_start", "far_us", "near_us"))
    read_us = dict(zip(starts_ms, near_us, strict=True))
    allowed_ms = (DRIFT_MS + BEYOND_MS) // WINDOW_MS * WINDOW_MS
    ahead = [
        start_ms
        for start_ms, at_us in zip(starts_ms, far_us, strict=True)
        if at_us is not None and start_ms >= allowed_ms and read_us[start_ms - allowed_ms] > at_us
    ]
    assert not ahead, f"read too soon: rows from {ahead} ms on, of {starts_ms[-1]}"
