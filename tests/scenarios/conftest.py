import json
import os
from pathlib import Path

import pytest

from experiments.cluster import Cluster

ROOT = Path(__file__).parents[2]
FLOWS = Path(__file__).parent / "flows"
SERVERS = 23


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
def make_cluster(tmp_path, environment):
    """Clusters below the test's directory; all of their processes end with the test.

    A failure ends the job, unless a test sets ``restart_attempts``.
    """
    clusters = []

    def make(settings=None, **arguments):
        settings = {"controlPlane.restart_attempts": 0, **(settings or {})}
        directory = tmp_path / f"cluster_{len(clusters)}"
        cluster = Cluster(directory, environment=environment, settings=settings, **arguments)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()
