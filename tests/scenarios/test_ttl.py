"""State with a TTL on real task managers: what has expired is never returned, and what has not is never missed."""

import polars as pl
import pytest

from experiments.soak_check import write_events
from tests.scenarios.flows.flow_ttl import TTL_MS, UNKNOWN

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 10_000, 1_000, 300


def test_a_state_expires_through_rescales_and_the_loss_of_a_task_manager(run_disturbed, tmp_path):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 9)
    run_disturbed(
        "flow_ttl",
        {"input": events, "output": tmp_path / "out", "rate": RATE},
        stages=[1],
        parallelisms=(2, 3),
        rows=1_000,
        settings={"controlPlane.out_of_order_grace_period": 0.0},
    )
    check(events, tmp_path / "out")


def check(events, output):
    parts = [pl.read_ndjson(part) for part in sorted(output.glob("part-*")) if part.stat().st_size]
    found = pl.concat(parts).sort("server", "id")
    # What is not to expire: each row once, and a count of all of them.
    expected = pl.read_ndjson(events).select("id", "server").sort("server", "id")
    assert found.select("id", "server").equals(expected)
    numbered = found.with_columns(wanted=pl.int_range(1, pl.len() + 1).over("server"))
    assert numbered.filter(pl.col("n") != pl.col("wanted")).is_empty()
    # What the last row of the key left, at its event time.
    rows = found.with_columns(
        left=pl.col("found").shift(1).over("server") + 1,
        left_recent=pl.col("recent").shift(1).over("server") + 1,
        left_at=pl.col("now").shift(1).over("server"),
    ).filter(pl.col("left").is_not_null())
    assert rows.filter(pl.col("before") != pl.col("left_at")).is_empty()
    known = rows.filter(pl.col("before") != UNKNOWN)
    is_expired = pl.col("now") - pl.col("before") >= TTL_MS
    expired, living = known.filter(is_expired), known.filter(~is_expired)
    assert min(expired.height, living.height) > SERVERS
    assert expired.filter((pl.col("found") != 0) | (pl.col("recent") != 0)).is_empty()
    assert living.filter(pl.col("found") != pl.col("left")).is_empty()
    # Elements of a list expire one by one: the last one has not.
    assert living.filter((pl.col("recent") == 0) | (pl.col("recent") > pl.col("left_recent"))).is_empty()
