"""Timers fire before rows that come after them, from whichever file and subtask, also over a kill -9 and a rescale."""

import polars as pl
import pytest

from experiments.cluster import FINAL_STATES
from experiments.soak import rescale
from tests.effort import cases
from tests.scenarios.losses import lose_task_manager
from tests.scenarios.test_recovery import SETTINGS

pytestmark = pytest.mark.scenario

FILES, VISITS, USERS, RATE = 4, 80, 25, 3_000
HOUR_MS = 3_600_000
COUNTED_STAGE, VISITS_STAGE = 1, 2


def write_logs(folder):
    """Each user has a click an hour in the log of each server, some ms apart."""
    folder.mkdir()
    for server in range(FILES):
        rows = [
            {"id": hour * USERS + user, "user": user, "at": hour * HOUR_MS + user * 10 + server}
            for hour in range(VISITS)
            for user in range(USERS)
        ]
        pl.DataFrame(rows).write_ndjson(folder / f"{server}.jsonl")


@pytest.mark.parametrize(
    ("readers", "rescaled"), cases([(4, VISITS_STAGE)], [(4, VISITS_STAGE), (3, COUNTED_STAGE)])
)
def test_clicks_an_hour_apart_are_visits_of_their_own(make_cluster, tmp_path, readers, rescaled):
    write_logs(tmp_path / "logs")
    cluster = make_cluster(settings=SETTINGS)
    parameters = {
        "input": tmp_path / "logs",
        "output": tmp_path / "out",
        "rate": RATE,
        "release": tmp_path / "release",
        "readers": readers,
    }
    cluster.start_control_plane("flow_time_order", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 3, "three checkpoints")
    cluster.start_task_manager("standby")
    lose_task_manager(cluster, VISITS_STAGE)
    rescale(cluster, rescaled, 3)
    # Owners that were there before get key groups now.
    rescale(cluster, rescaled, 2)
    (tmp_path / "release").touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    parts = [pl.read_ndjson(part) for part in (tmp_path / "out").glob("part-*") if part.stat().st_size]
    found = pl.concat(parts).sort("user", "at")
    assert found["n"].unique().to_list() == [FILES]
    assert found.group_by("user").len()["len"].to_list() == [VISITS] * USERS
