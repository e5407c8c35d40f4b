"""Key groups move to new owners that open the tables of a checkpoint, while a job runs: results stay right.

The job checks at each event that the state is what the event before it left.
"""

import signal

import pytest

from experiments.s3_server import s3_server, uri_of
from experiments.soak import SoakSettings, run_soak
from tests.effort import cases
from tests.scenarios.parties import (
    BALLAST_BYTES,
    KEYED_STAGE,
    SETTINGS,
    Parties,
    check_goes_on,
    request,
    send,
    start_job,
    wait_phase,
    write_rows,
)
from tests.task_manager.rescale.two_owners import GROUPS, World
from weir.state.stores.directory_lock import PUBLISHED_NAME

pytestmark = pytest.mark.scenario

#: What comes out of the images in the background takes many seconds.
SLOW = {
    **SETTINGS,
    "taskManager.useRelink": "true",
    "taskManager.migration_bytes_per_second": 65_536,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.restart_attempts": 20,
    "controlPlane.lease_timeout_ms": 2_000,
}


def test_random_rescales(tmp_path, environment, forks):
    settings = SoakSettings(rescales=4, rate=500, interval_s=0.4, task_managers=2, seed=3)
    lines = []
    result = run_soak(tmp_path, "relink", settings, lines.append, environment, forks.popen)
    assert result.rescales == settings.rescales, lines
    assert 0 < result.groups_relinked <= result.groups_moved


@pytest.mark.parametrize("party", cases(["new"], ["old", "new"]))
def test_kill_of_an_owner_while_state_is_in_images(make_cluster, tmp_path, release, party):
    """The job goes on from a checkpoint that names the images of the one before it."""
    events = write_rows(tmp_path)
    cluster = start_job(make_cluster, events, tmp_path, release, SLOW, BALLAST_BYTES)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 3, "checkpoints")
    parties = Parties(cluster)
    assert parties.stage == KEYED_STAGE
    url = request(cluster, parties.stage)
    report = wait_phase(cluster, url, "MIGRATING")
    assert report["groups_owned"] == report["groups_total"]
    cluster.wait_for(
        lambda status: cluster.http("GET", url)[1]["groups_relinked"] > 0, "the news of relinked groups"
    )
    latest = cluster.status()["latest_checkpoint"]
    cluster.wait_for(lambda status: status["latest_checkpoint"] > latest + 1, "checkpoints after the switch")
    assert cluster.http("GET", url)[1]["phase"] == "MIGRATING", "too quick: the images are needed no more"
    before = cluster.status()["generation"]
    send(cluster, parties.names[party], signal.SIGKILL)
    cluster.wait_for(
        lambda status: status["generation"] > before and status["state"] == "RUNNING", "the restart"
    )
    release.touch()
    check_goes_on(cluster, events, tmp_path)


def test_tables_in_an_object_store(tmp_path):
    """They are fetched, also where one of an abandoned attempt is here already, by name and size."""
    with s3_server() as port:
        for case in ("fetched", "abandoned", "by-blocks"):
            world = World(tmp_path / case, 1, uri_of(port), case)
            try:
                world.change()
                world.checkpoint(1)
                world.change()
                if case == "by-blocks":
                    world.new.images._fetched_bytes_max = 100
                elif case == "abandoned":
                    folder = tmp_path / case / "new" / PUBLISHED_NAME
                    folder.mkdir(exist_ok=True)
                    for image in world.images:
                        for file in image.files.values():
                            (folder / file.path.replace("/", "+")).write_bytes(bytes(file.size_bytes))
                world.prepare(1)
                assert len(world.hand_over()) == GROUPS
                world.check()
                world.change(world.new)
                world.complete()
            finally:
                world.close()
