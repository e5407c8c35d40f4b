"""A task manager's pages: there with the process, without a job, and gone with it."""

import asyncio
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
from weir.questions.link import QuestionLink
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, handshake_to_proto


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
    assert get(server, "/state/count")[0] == 503
    assert get(server, "/other")[0] == 404
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


def test_questions_that_are_answered_at_once_count_for_the_priority_of_their_thread():
    counted, answers = [], SimpleNamespace(quick=lambda question, state_id: (200, {"value": question.key}, 0))
    server = make(niceness=0)
    server._slot.current = lambda identity: SimpleNamespace(answers=answers)
    server._priority = SimpleNamespace(
        asked=lambda now_s: bool(counted.append(threading.current_thread().name))
    )
    server.start()

    async def ask():
        link = QuestionLink("127.0.0.1", server.place.port, server.place.greeting)
        request = control_pb2.QueryRequest(
            handshake=handshake_to_proto(JobIdentity("job", "print", 1)),
            question_json=b'{"step":"count","state":"words","key":"a"}',
        )
        for _ in range(3):
            reply = control_pb2.QueryReply.FromString(await link.ask(request.SerializeToString(), 60))
            assert (reply.status, reply.answer_json) == (200, b'{"value":"a"}')
        link.close()

    asyncio.run(ask())
    server.stop()
    assert counted == ["questions"] * 3
