"""One Spark session for all tests of this directory: starting one takes several seconds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workload.session import open_session

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with open_session("weir tests", "local[2]", short_run=True) as session:
        yield session


@pytest.fixture
def run_script():
    """Run workgen.py or plot.py as a user does."""

    def run(script: str, *arguments: object, env: dict[str, str] | None = None) -> Any:
        command = [sys.executable, str(ROOT / script), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=250, check=False)

    return run


@pytest.fixture(autouse=True)
def _py4j_leaves_sockets(request: pytest.FixtureRequest) -> None:
    """py4j leaves the sockets of finished threads to the garbage collector."""
    if request.node.get_closest_marker("spark"):
        for warning in (
            "ignore:unclosed <socket:ResourceWarning",
            "ignore::pytest.PytestUnraisableExceptionWarning",
        ):
            request.node.add_marker(pytest.mark.filterwarnings(warning))
