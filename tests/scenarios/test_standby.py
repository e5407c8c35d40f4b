"""A task manager dies, and another one goes on with the state in an object store: as its standby, or block by block."""

import pytest

from experiments.cluster import FINAL_STATES
from experiments.s3_server import s3_server, uri_of
from experiments.soak import JOB
from experiments.soak_check import check_output, write_events
from tests.scenarios.losses import lose_task_manager, task_manager_of

pytestmark = pytest.mark.scenario

COUNT = 1
SETTINGS = {
    "taskManager.operator_quota": 20,
    # On request only, so that the standby has the latest one when its turn comes.
    "controlPlane.checkpoint_interval_ms": 0,
    "controlPlane.restart_attempts": 20,
}


@pytest.mark.parametrize("standbys", [1, 0])
def test_a_takeover_fetches_no_table(make_cluster, tmp_path, standbys):
    requests = tmp_path / "requests"
    with s3_server(delay_ms=20, requests=requests) as port:
        settings = {
            **SETTINGS,
            "controlPlane.checkpoint_uri": uri_of(port),
            "controlPlane.standby_replicas": standbys,
            "taskManager.fetched_image_bytes_max": 0,
        }
        cluster = make_cluster(settings=settings)
        events = write_events(tmp_path / "events.jsonl", 3_000, 300, 7)
        hold = {"rate": 1_000, "release": tmp_path / "release"}
        parameters = {"input": events, "output": tmp_path / "out", **hold, "ballast_bytes": 200}
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        for name in ("first", "second"):
            cluster.start_task_manager(name)
        cluster.wait_for(lambda status: status["totals"]["events_in"] > 1_000, "rows")
        assert cluster.http("POST", "/checkpoints")[0] == 202
        victim = f"127.0.0.1:{task_manager_of(cluster, COUNT).port}"

        def is_kept(status):
            kept = [each for each in status["standbys"] if each["of"] == victim]
            is_here = not standbys or (kept and kept[0]["checkpoint"] == status["latest_checkpoint"])
            return status["latest_checkpoint"] and is_here

        status = cluster.wait_for(is_kept, "the standby to have the checkpoint")
        for kept in status["standbys"]:
            if kept["of"] == victim:
                assert (kept["lag_checkpoints"], kept["lag_bytes"], kept["problem"]) == (0, 0, "")
                assert kept["held_bytes"] > 0
                labels = f'of="{victim}",task_manager="{kept["task_manager"]}"'
                assert f"{labels}}} 0.0" in cluster.http("GET", "/metrics")[1]
        before = requests.read_text().splitlines()
        assert standbys == any(line.startswith("GET") and line.endswith(".sst") for line in before)
        lose_task_manager(cluster, COUNT)
        status = cluster.wait_for(lambda status: status["stages"][COUNT]["records_in"] > 0, "rows again")
        (survivor,) = status["task_managers"]
        asked = requests.read_text().splitlines()[len(before) :]
        tables = [line for line in asked if line.startswith("GET") and line.endswith(".sst")]
        if standbys:
            # The manifest says what is right; tables were here.
            assert (survivor["fetched_files"], survivor["fetched_bytes"], tables) == (0, 0, [])
        else:
            # Files beside the tables, and parts of these.
            assert 0 < survivor["fetched_files"] < 10
            assert tables
        (tmp_path / "release").touch()
        status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
        assert (status["state"], status["cause"]) == ("FINISHED", "")
        check_output(events, tmp_path / "out")
        # Its checkpoints go with it.
        cluster.stop()
