"""Three brokers that the tests of this folder share."""

import itertools

import pytest

import weir.log
from experiments import processes
from experiments.log_cluster import LogCluster

NAMES = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def brokers(tmp_path_factory, forks):
    before, processes.start_process = processes.start_process, forks.popen
    # On a busy machine a broker may be silent for long.
    with LogCluster(tmp_path_factory.mktemp("log"), lease_ms=30_000) as cluster:
        yield cluster
    processes.start_process = before


@pytest.fixture
def topic(brokers):
    name = next(NAMES)
    weir.log.create_topic(brokers.addresses, name, partitions=2)
    return name
