"""On real task managers windows give what a batch computation does, exactly once, through rescales and kill -9."""

import polars as pl
import pytest

from experiments.soak_check import write_events
from tests.scenarios.flows.flow_all_rows import MOVED
from tests.scenarios.flows.flow_windows import GAP_MS, ROWS, SIZE_MS, SLIDE_MS
from weir.testing import folded

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 20_000, 1_000, 100
LATE_EVENTS, LATE_RATE = 2_000, 150
#: Sliding windows and sessions; windows over all rows, late sessions, and those told again.
STAGES, LATE_STAGES = [1, 5], [3, 7, 8]
KEYS = ["server", "window_start", "window_end"]
AGGREGATES = (
    pl.len().alias("n").cast(pl.Int64),
    pl.col("id").sum().alias("total"),
    pl.col("id").max().alias("last"),
)
#: A result is one of a session's rows.
WITHIN = (
    pl.col("window_start") >= pl.col("window_start_of"),
    pl.col("window_end") <= pl.col("window_end_of"),
)


def test_windows_equal_a_batch_through_rescales_and_the_loss_of_a_task_manager(run_disturbed, tmp_path):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 9)
    parameters = {"input": events, "output": tmp_path / "out", "rate": RATE}
    cluster = run_disturbed("flow_windows", parameters, stages=STAGES, parallelisms=(3, 2), rows=4_000)
    assert cluster.status()["totals"]["rows_late"] == {}
    rows = pl.read_ndjson(events)
    starts = pl.col("id") // SLIDE_MS * SLIDE_MS
    panes = [rows.with_columns(window_start=starts - back) for back in range(0, SIZE_MS, SLIDE_MS)]
    check(tmp_path / "out-sliding", fixed(pl.concat(panes)))
    check(tmp_path / "out-tumbling", fixed(rows.with_columns(window_start=pl.col("id") // SIZE_MS * SIZE_MS)))
    session = (pl.col("id").diff().over("server") > GAP_MS).fill_null(value=True).cum_sum().over("server")
    sessions = rows.sort("server", "id").with_columns(session=session).group_by("server", "session")
    bounds = {"window_start": pl.col("id").min(), "window_end": pl.col("id").max() + GAP_MS}
    sessions = sessions.agg(*AGGREGATES, **bounds)
    check(tmp_path / "out-sessions", sessions)
    # What is told bit by bit adds up, and windows by rows have so many.
    sums = (pl.col("n").sum(), pl.col("total").sum(), pl.col("last").max())
    parts = told(tmp_path / "out-parts")
    assert len(parts) > len(parts.unique(KEYS))
    assert_same(
        parts.group_by(KEYS).agg(*sums),
        fixed(rows.with_columns(window_start=pl.col("id") // SIZE_MS * SIZE_MS)),
    )
    visits = told(tmp_path / "out-visits").join(sessions.select(KEYS), on="server", suffix="_of")
    of_sessions = visits.filter(*WITHIN).drop("window_start", "window_end")
    of_sessions = of_sessions.rename({"window_start_of": "window_start", "window_end_of": "window_end"})
    assert len(of_sessions) > len(sessions)
    assert_same(of_sessions.group_by(KEYS).agg(*sums), sessions)
    number = pl.int_range(pl.len()).over("server", order_by="id") // ROWS
    by_rows = rows.with_columns(number=number).group_by("server", "number")
    bounds = {"window_start": pl.col("id").min(), "window_end": pl.col("id").max() + 1}
    check(tmp_path / "out-by-rows", by_rows.agg(*AGGREGATES, **bounds))


def test_windows_over_all_rows_and_late_sessions_equal_a_batch_through_rescales_and_a_loss(
    run_disturbed, tmp_path
):
    # Six of seven rows are late, and each of them is told by itself.
    events = write_events(tmp_path / "events.jsonl", LATE_EVENTS, SERVERS, 9)
    parameters = {"input": events, "output": tmp_path / "out", "rate": LATE_RATE}
    cluster = run_disturbed("flow_all_rows", parameters, stages=LATE_STAGES, parallelisms=(3, 2), rows=150)
    assert cluster.status()["totals"]["rows_late"] == {}
    rows = pl.read_ndjson(events)
    of_all = rows.with_columns(window_start=pl.col("id") // SIZE_MS * SIZE_MS, server=pl.lit(0))
    for name in ("all", "rows"):
        check(tmp_path / f"out-{name}", fixed(of_all), KEYS[1:])
    late = told(tmp_path / "out-late")
    assert late.filter(pl.col("_change") != "insert").height > 0
    moved = rows.with_columns(at=MOVED).sort("server", "at")
    session = (pl.col("at").diff().over("server") > GAP_MS).fill_null(value=True).cum_sum().over("server")
    bounds = {"window_start": pl.col("at").min(), "window_end": pl.col("at").max() + GAP_MS}
    sessions = moved.with_columns(session=session).group_by("server", "session").agg(*AGGREGATES, **bounds)
    assert_same(folded(late), sessions)
    # The last result within the bounds of a session has all of its rows.
    again = told(tmp_path / "out-again").join(sessions.select(KEYS), on="server", suffix="_of")
    of_sessions = again.filter(*WITHIN)
    assert len(of_sessions) > len(sessions)
    whole = of_sessions.sort("n").unique(["server", "window_start_of"], keep="last", maintain_order=True)
    assert_same(whole, sessions)


def fixed(rows):
    return rows.with_columns(window_end=pl.col("window_start") + SIZE_MS).group_by(KEYS).agg(*AGGREGATES)


def told(output):
    parts = [part for part in sorted(output.glob("part-*")) if part.stat().st_size]
    return pl.concat([pl.read_ndjson(part) for part in parts])


def check(output, expected, keys=KEYS):
    assert_same(told(output), expected, keys)


def assert_same(found, expected, keys=KEYS):
    columns = [*keys, "n", "total", "last"]
    found, expected = (rows.select(columns).sort(columns) for rows in (found, expected))
    missing, others = (
        some.join(rest, on=columns, how="anti") for some, rest in ((expected, found), (found, expected))
    )
    # Which ones says where to look: those of one moment, or of the end, or of key groups that moved.
    assert found.equals(expected), f"missing: {missing.rows()[:40]}, not expected: {others.rows()[:40]}"
