"""A task manager's pages: there with the process, without a job, and gone with it."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from task_manager.queries.question_server import QuestionServer
from weir.clock import SystemClock
from weir.config import TaskManagerConfig
from weir.errors import AddressInUseError, ConnectionLostError


def away():
    raise ConnectionLostError("the control plane does not answer")


def make(**settings):
    calls = SimpleNamespace(directory=away)
    slot = SimpleNamespace(runtime=None)
    return QuestionServer(slot, calls, CollectorRegistry(), TaskManagerConfig(**settings), SystemClock())


def get(server, path, host=None):
    headers = {"Host": host} if host else {}
    request = urllib.request.Request(f"http://{server.place.http_address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_pages_without_a_job(capfd):
    server = make()
    server.start()
    assert get(server, "/healthz") == (200, b'{"ok":true}')
    assert get(server, "/metrics")[0] == 200
    status, body = get(server, "/state/count/words/a")
    assert status == 503
    assert "does not answer: try again" in json.loads(body)["error"]
    assert get(server, "/state/count")[0] == 404
    assert get(server, "/healthz", "evil.example")[0] == 403
    with pytest.raises(AddressInUseError, match=r"taskManager\.http_port"):
        make(http_port=int(server.place.http_address.rpartition(":")[2])).start()
    server.stop()
    with pytest.raises(urllib.error.URLError):
        get(server, "/healthz")
    assert capfd.readouterr().err == ""


def test_no_answer_waits_for_the_one_before_it():
    """asyncio sets this for sockets that it makes itself, not for these."""
    server = make()
    server.start()
    assert all(bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for bound in server._sockets)
    server.stop()


def test_it_can_be_stopped_before_its_thread_has_begun(capfd):
    server, told = make(), threading.Event()
    run = server._run
    server._thread = threading.Thread(target=lambda: told.wait(30.0) and run())
    server.start()
    tell = server._loop.call_soon_threadsafe
    server._loop.call_soon_threadsafe = lambda *work: (tell(*work), told.set())
    server.stop()
    assert server._loop.is_closed()
    assert not server._thread.is_alive()
    server.stop()
    assert capfd.readouterr().err == ""


def test_it_can_be_stopped_at_any_moment(capfd):
    for pause_s in (0.0, 0.0001, 0.0003, 0.001, 0.003):
        server = make()
        server.start()
        time.sleep(pause_s)
        server.stop()
        assert server._loop.is_closed()
        assert not server._thread.is_alive()
    assert capfd.readouterr().err == ""
