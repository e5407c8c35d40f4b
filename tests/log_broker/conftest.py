"""Brokers of these tests are forked: a start takes a tenth of the processor time."""

import pytest

from experiments import processes


@pytest.fixture(autouse=True, scope="module")
def forked_brokers(forks):
    before, processes.start_process = processes.start_process, forks.popen
    yield
    processes.start_process = before
