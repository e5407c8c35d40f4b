"""A disk with state that is almost full: sources read nothing until it has room again, and each row counts once."""

import os
import time

import pytest

from experiments.cluster import FINAL_STATES
from experiments.small_disk import NoSmallDiskError, SmallDisk
from tests.scenarios.test_user_states import SETTINGS, check

pytestmark = pytest.mark.scenario

EVENTS, RATE = 4_000, 400
DISK_BYTES = 128 << 20


@pytest.fixture
def disk(tmp_path):
    try:
        disk = SmallDisk(tmp_path / "disk", DISK_BYTES)
    except NoSmallDiskError as error:
        pytest.skip(str(error))
    yield disk
    disk.close()


def test_a_job_is_held_back_before_the_disk_is_full_and_goes_on(make_cluster, write_events, tmp_path, disk):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    parameters = {"input": events, "output": tmp_path / "out", "release": tmp_path / "release", "rate": RATE}
    cluster = make_cluster(
        settings=SETTINGS | {"taskManager.rocksDBPath": disk.path / "state" / "data.db"}, task_managers=1
    )
    control_plane = cluster.start_control_plane("flow_states", parameters, exit_when_finished=False)
    cluster.start_task_manager("first")
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 1, "a checkpoint")
    taken = disk.path / "taken"
    with taken.open("wb") as file:
        os.posix_fallocate(
            file.fileno(), 0, os.statvfs(disk.path).f_bavail * os.statvfs(disk.path).f_frsize - (8 << 20)
        )

    def told(status):
        return [manager["waits_for"] for manager in status["task_managers"] if manager["waits_for"]]

    status = cluster.wait_for(told, "a status that says what holds the job back")
    assert "MiB free, less than 13 MiB; free some, or drain it" in told(status)[0]
    assert (
        "rows wait for something outside: the disk of"
        in cluster.wait_for(lambda status: "disk" in status["headline"]["text"], "a headline")["headline"][
            "text"
        ]
    )
    read = cluster.wait_for(stands_still(), "sources that read nothing")["totals"]["events_in"]
    assert read < EVENTS
    # Checkpoints go on.
    latest = cluster.status()["latest_checkpoint"]
    assert cluster.http("POST", "/checkpoints")[0] == 202
    cluster.wait_for(lambda status: status["latest_checkpoint"] > latest, "another checkpoint")
    taken.unlink()
    cluster.wait_for(lambda status: status["totals"]["events_in"] > read, "rows again")
    (tmp_path / "release").touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job", 150)
    assert (status["state"], status["restarts"], told(status)) == ("FINISHED", 0, [])
    check(tmp_path / "out", EVENTS)
    log = control_plane.log_path.read_text()
    assert "sources read nothing until then" in log
    assert "sources read on" in log


def stands_still():
    """Whether nothing was read for half a second: with its rate a source would have read 200 rows."""
    seen = [-1, 0.0]

    def holds(status):
        read, now_s = status["totals"]["events_in"], time.monotonic()
        if read != seen[0]:
            seen[:] = [read, now_s]
        return now_s - seen[1] >= 0.5

    return holds
