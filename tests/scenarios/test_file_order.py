"""Files over the same hours lose no row to the order in which they are read, also not by a kill -9."""

import polars as pl
import pytest

from experiments.cluster import FINAL_STATES
from tests.scenarios.losses import lose_task_manager
from tests.scenarios.test_recovery import SETTINGS

pytestmark = pytest.mark.scenario

FILES, ROWS, RATE = 4, 3_000, 2_000


@pytest.mark.parametrize("parallelism", [1, 2])
def test_every_row_counts_once_over_the_loss_of_a_task_manager(make_cluster, tmp_path, parallelism):
    (tmp_path / "logs").mkdir()
    for number in range(FILES):
        rows = pl.DataFrame({"id": range(ROWS)}).with_columns(server=pl.lit(f"server-{number}"))
        rows.write_ndjson(tmp_path / "logs" / f"{number}.jsonl")
    cluster = make_cluster(settings=SETTINGS)
    parameters = {
        "input": tmp_path / "logs",
        "output": tmp_path / "out",
        "rate": RATE,
        "release": tmp_path / "release",
        "parallelism": parallelism,
    }
    cluster.start_control_plane("flow_file_order", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 3, "three checkpoints")
    cluster.start_task_manager("standby")
    lose_task_manager(cluster, 0)
    (tmp_path / "release").touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    assert status["totals"]["rows_late"] == {}
    parts = [pl.read_ndjson(part) for part in (tmp_path / "out").glob("part-*") if part.stat().st_size]
    found = pl.concat(parts).select("server", "window_start", "n").sort("server", "window_start")
    assert found.height == FILES * ROWS // 1_000
    assert found["n"].unique().to_list() == [1_000]
