"""The servers of a task manager begin and end together, also where one of them cannot begin or is stopped at once."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from task_manager.server import TaskManagerServer
from task_manager.services.question_server import QuestionServer
from weir.clock import SystemClock
from weir.config import TaskManagerConfig
from weir.errors import AddressInUseError


def make(**settings):
    config = TaskManagerConfig(**{"tm_port": 0} | settings)
    slot = SimpleNamespace(
        runtime=None, orders_secret=b"orders", find_inbox=None, find_store=None, drop_job=lambda: None
    )
    calls = SimpleNamespace(directory=dict)
    questions = QuestionServer(slot, calls, CollectorRegistry(), config, SystemClock())
    return TaskManagerServer(config, slot, SystemClock(), questions)


@pytest.fixture(autouse=True)
def _no_threads_are_left():
    before = set(threading.enumerate())
    yield
    deadline_s = time.monotonic() + 60
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.002)


@pytest.mark.parametrize("setting", ["tm_port", "exchange_port", "http_port"])
def test_a_taken_port_leaves_nothing_that_listens(setting):
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = make(**{setting: other.getsockname()[1]})
        with pytest.raises(AddressInUseError):
            server.start()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server._exchange._port or 1))
        server.stop()


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.01])
def test_one_that_is_stopped_soon_ends(pause_s):
    server = make()
    server.start()
    time.sleep(pause_s)
    server.stop()
    server.stop()
