"""A task manager's pages: there with the process, without a job, and gone with it."""

import asyncio
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from task_manager.services.question_server import QuestionServer
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


def exchange(server, *pieces):
    """Status and what else a new connection has answered to some bytes, until it is closed or silent."""
    host, _, port = server.place.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        reply = http.client.HTTPResponse(connection)
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            # It was closed before it has read all.
            pass
        reply.begin()
        return reply.status, reply.headers, reply.read()


def test_pages_take_head_and_say_what_they_take_otherwise():
    server = make()
    server.start()
    connection = http.client.HTTPConnection(server.place.http_address, timeout=60)

    def ask(method, path):
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.headers["Allow"], reply.headers["Content-Length"], reply.read()

    assert ask("HEAD", "/healthz") == (200, None, "11", b"")
    # Neither a job nor a control plane is there, as with GET.
    assert ask("HEAD", "/state/count/words/a")[0] == 503
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        for path in ("/healthz", "/metrics", "/state", "/state/count/words/a", "/all", "/keyvalue/a"):
            status, allowed, _, body = ask(method, path)
            assert (status, allowed) == (405, "GET, HEAD"), (method, path)
            assert json.loads(body) == {"error": f"{path} takes GET, HEAD, not {method}"}
    assert ask("POST", "/nothing")[0] == 404
    connection.close()
    server.stop()


def test_a_head_without_an_end_is_not_kept():
    server = make()
    server.start()
    # What fits is a question, whose key is too long.
    assert (
        exchange(server, b"GET /state/a/b/", b"k" * 60_000, b" HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 400
    )
    for first in (b"GET /state/a/b/", b"GET /healthz HTTP/1.1\r\nX: "):
        status, headers, body = exchange(server, first, *[b"k" * 65_536] * 200)
        assert (status, headers["Connection"]) == (431, "close")
        assert "at most 64 KiB" in json.loads(body)["error"]
    assert get(server, "/healthz")[0] == 200
    server.stop()


def test_odd_requests_are_answered_without_a_word_in_the_log(capfd):
    server = make()
    server.start()
    assert exchange(server, b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 404
    # Java's client offers HTTP/2 with each request.
    upgrade = (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    )
    assert exchange(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")[0] == 200
    server.stop()
    assert capfd.readouterr().err == ""
