"""A step keyed as the one before it, behind a second reader or ``forward()``, loses nothing by a kill -9."""

import polars as pl
import pytest

from experiments.cluster import FINAL_STATES
from experiments.soak_check import write_events
from tests.scenarios.losses import lose_task_manager
from tests.scenarios.test_recovery import SETTINGS

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 6_000, 2_000, 50


def read(output):
    return pl.concat([pl.read_ndjson(part) for part in sorted(output.glob("part-*")) if part.stat().st_size])


def test_a_count_of_counts_is_exact_after_the_loss_of_a_task_manager(make_cluster, tmp_path):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 3)
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"input": events, "output": tmp_path / "out", "rate": RATE, "release": tmp_path / "release"}
    cluster.start_control_plane("flow_keyed_again", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    # A window as second step had the job wait for ever at its second checkpoint.
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 3, "three checkpoints")
    cluster.start_task_manager("standby")
    stages = cluster.status()["stages"]
    lose_task_manager(cluster, next(each["stage"] for each in stages if each["name"].startswith("second ->")))
    (tmp_path / "release").touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")

    rows = pl.read_ndjson(events).select("server", "id").sort("id")
    expected = rows.with_columns(n=pl.int_range(1, pl.len() + 1).over("server")).sort("server", "n")
    for output in (tmp_path / "out", tmp_path / "out-third"):
        found = read(output).sort("server", "n")
        assert found.select("server", "n").equals(expected.select("server", "n"))
        assert found["m"].equals(expected["n"]), "each row is counted again as often as before"
    windows = read(tmp_path / "out-windows").group_by("server", "window_start").agg(pl.col("m"))
    assert windows["m"].list.len().max() == 1, "no window is told twice"
    wanted = rows.group_by("server", window_start=pl.col("id") // 1000 * 1000).agg(m=pl.len().cast(pl.Int64))
    found = windows.with_columns(pl.col("m").list.first()).sort("server", "window_start")
    assert found.equals(wanted.sort("server", "window_start"))
