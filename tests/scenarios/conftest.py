import json
import os
from pathlib import Path

import pytest

from experiments.cluster import FINAL_STATES, Cluster
from experiments.held_source import keep_back
from experiments.soak import rescale
from tests.scenarios.losses import lose_task_manager

ROOT = Path(__file__).parents[2]
FLOWS = Path(__file__).parent / "flows"
SERVERS = 23
#: Of the rows of a held source; what is kept back for each event that disturbs the job, so that rows come after it.
KEPT_BACK = 1 / 8
EVENTS_THAT_DISTURB = 3
#: Of a long wait; with looks every 50 ms the control plane and the test take 7 % of a core.
POLL_SHARE = 0.05


@pytest.fixture(scope="session")
def environment():
    """Variables with which a process anywhere finds Weir and the flows of these tests."""
    paths = [str(FLOWS), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="session")
def write_events():
    def write(path, count, first=0):
        """Events ``first`` to ``first + count - 1`` as JSON lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (
            json.dumps({"id": number, "server": f"server-{number % SERVERS}"})
            for number in range(first, first + count)
        )
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def release(tmp_path):
    """A file that a test makes to let a held source (:mod:`experiments.held_source`) end."""
    return tmp_path / "release"


@pytest.fixture
def make_cluster(tmp_path, environment, forks):
    """Clusters below the test's directory; all of their processes end with the test.

    A failure ends the job, unless a test sets ``restart_attempts``.
    """
    clusters = []

    def make(settings=None, **arguments):
        settings = {"controlPlane.restart_attempts": 0, **(settings or {})}
        directory = tmp_path / f"cluster_{len(clusters)}"
        options = {"environment": environment, "popen": forks.popen, "poll_share": POLL_SHARE}
        cluster = Cluster(directory, settings=settings, **options, **arguments)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()


@pytest.fixture
def run_disturbed(make_cluster, release):
    """Runs a held flow to its end through a rescale, the loss of a task manager and another rescale."""

    def run(flow, parameters, *, stages, parallelisms, rows, settings=None, end=None, supply=None):
        """Start ``flow`` with two task managers; returns the cluster, whose job is finished.

        However long an event takes, rows come after it: a part of the input is kept back for each of them.

        Args:
            flow: a module of ``flows`` whose ``build`` takes ``release``.
            parameters: its others.
            stages: what is rescaled, one after the other; a subtask of the last one is lost.
            parallelisms: of each stage, before the loss and after it.
            rows: that the job must have written before the first rescale, and more after each of the other events;
                fewer than the job makes of ``KEPT_BACK`` of its input.
            settings: besides those that make checkpoints frequent and the loss soon noticed.
            end: called with the cluster at last, for a job that does not end by itself.
            supply: called for more rows after each event, for a job without held sources.
        """
        quick = {
            "taskManager.operator_quota": 20,
            "controlPlane.checkpoint_interval_ms": 300,
            "controlPlane.checkpoint_pause_ms": 100,
            "controlPlane.lease_timeout_ms": 5000,
            "controlPlane.restart_attempts": 20,
        }
        kept_back = KEPT_BACK * EVENTS_THAT_DISTURB
        keep_back(release, kept_back)
        cluster = make_cluster(settings=quick | (settings or {}))
        cluster.start_control_plane(flow, parameters | {"release": release}, exit_when_finished=False)
        for name in ("first", "second"):
            cluster.start_task_manager(name)

        def write_more():
            nonlocal kept_back
            before = cluster.status()["totals"]["events_out"]
            kept_back -= KEPT_BACK
            keep_back(release, kept_back)
            if supply is not None:
                supply()
            cluster.wait_for(lambda status: status["totals"]["events_out"] >= before + rows, "further rows")

        cluster.wait_for(lambda status: status["totals"]["events_out"] >= rows, "the first rows")
        for stage in stages:
            rescale(cluster, stage, parallelisms[0])
        write_more()
        lose_task_manager(cluster, stages[-1], -1)
        write_more()
        for stage in stages:
            rescale(cluster, stage, parallelisms[1])
        write_more()
        release.touch()
        if end is not None:
            end(cluster)
            return cluster
        status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job", 300)
        assert (status["state"], status["cause"]) == ("FINISHED", "")
        assert rows < status["totals"]["events_out"] * KEPT_BACK, "too few rows are kept back"
        return cluster

    return run
