"""On real task managers timers fire and rows of a side output leave exactly once, through rescales and kill -9."""

import polars as pl
import pytest

from experiments.soak_check import write_events
from tests.scenarios.flows.flow_timers import DELAY_MS, SPAN_MS

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 20_000, 1_000, 300


def test_every_timer_fires_exactly_once_through_rescales_and_the_loss_of_a_task_manager(
    run_disturbed, tmp_path
):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 9)
    parameters = {"input": events, "output": tmp_path / "out", "rate": RATE}
    run_disturbed("flow_timers", parameters, stages=[1], parallelisms=(3, 2), rows=1_000)
    check(events, tmp_path / "out")
    check_side_output(events, tmp_path / "out-seen")


def read(output):
    return pl.concat([pl.read_ndjson(part) for part in sorted(output.glob("part-*")) if part.stat().st_size])


def check_side_output(events, output):
    """Every row, once, with its number among those of its key, in the order in which they were read."""
    expected = pl.read_ndjson(events).select("id", "server").sort("id")
    expected = expected.with_columns(n=pl.int_range(1, pl.len() + 1).over("server"))
    assert read(output).sort("id").equals(expected)


def check(events, output):
    found = read(output)
    expected = (
        pl.read_ndjson(events)
        .select("server", at=pl.col("id") // SPAN_MS * SPAN_MS + DELAY_MS)
        .unique()
        .sort("server", "at")
        .with_columns(n=pl.int_range(1, pl.len() + 1).over("server"))
    )
    by_event = found.filter(pl.col("kind") == "event").select("server", "at", "n").sort("server", "at")
    assert by_event.equals(expected)
    by_clock = found.filter(pl.col("kind") == "clock")
    assert by_clock.height > SERVERS
    assert by_clock.select(pl.struct("server", "n").is_unique().all()).item()
    assert by_clock.sort("server", "n").select((pl.col("at").diff().over("server") >= 0).all()).item()
