"""Three brokers that the tests of this folder share."""

import contextlib
import itertools

import pytest

import weir.log
from experiments import processes
from experiments.log_cluster import LogCluster

NAMES = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def brokers(tmp_path_factory, forks):
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "start_process", forks.popen)
            # On a busy machine a broker may be silent for long.
            cluster = stack.enter_context(LogCluster(tmp_path_factory.mktemp("log"), lease_ms=30_000))
        yield cluster


@pytest.fixture
def topic(brokers):
    name = next(NAMES)
    weir.log.create_topic(brokers.addresses, name, partitions=2)
    return name
