"""A real server on loopback, and callers that say nothing, little, or ask."""

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
import time
from functools import partial

import pytest
import uvicorn

from weir.clock import SystemClock
from weir.process.newcomers import NEWCOMERS_MAX, Entrance
from weir.questions import silent_connections
from weir.questions.joined_writes import JoiningProtocol
from weir.questions.silent_connections import BACKLOG, CONNECTIONS_MAX
from weir.security.certificates import initialise, now
from weir.security.roles import Role
from weir.security.tls_files import TlsFiles

#: More than the buffers of both ends take.
LARGE_BYTES = 50 << 20


async def application(scope, receive, send):
    body = b"x" * LARGE_BYTES if scope["path"] == "/large" else b"{}"
    while scope["path"] == "/body" and (await receive()).get("more_body"):
        continue
    length = b"%d" % len(body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    if scope["path"] == "/slow":
        await asyncio.sleep(60)
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def served(tls=None):
    """The port where a server listens."""
    bound = Entrance(socket.create_server(("127.0.0.1", 0)))
    protocol = partial(JoiningProtocol, newcomers=bound.newcomers)
    config = uvicorn.Config(application, http=protocol, log_level="critical", lifespan="off", backlog=BACKLOG)
    if tls is not None:
        config.load()
        config.ssl = tls.serving(asks_certificate=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[bound]))
    thread.start()
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        bound.close()


@pytest.fixture
def port():
    """Where a server listens."""
    with served() as port:
        yield port


def ask(port, path="/"):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as reply:
            return reply.status, reply.read()


@pytest.fixture
def connect(port):
    """Connections that are closed with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(
            contextlib.closing(socket.create_connection(("127.0.0.1", port), 60))
        )


def is_ended(connection):
    """Wait until the server has ended it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_flood_of_silent_connections_does_not_keep_others_out(port, connect):
    silent = [connect() for _ in range(CONNECTIONS_MAX + 200)]
    assert ask(port) == (200, b"{}")
    # The oldest had to go.
    assert all(is_ended(connection) for connection in silent[:200])


def test_silence_is_ended(port, connect, monkeypatch):
    monkeypatch.setattr(silent_connections, "HEAD_S", 0.2)
    assert is_ended(connect())


def test_a_head_that_does_not_end_is_ended_also_after_another_request(port, connect, monkeypatch):
    monkeypatch.setattr(silent_connections, "HEAD_S", 0.2)
    first = connect()
    first.sendall(b"GET / HTTP/1.1\r\nHost: ")
    assert is_ended(first)
    later = connect()
    later.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert later.recv(4096).endswith(b"{}")
    later.sendall(b"GET / HTTP/1.1\r\nHost: ")
    assert is_ended(later)


def test_an_answer_may_take_longer_than_a_head(port, connect, monkeypatch):
    monkeypatch.setattr(silent_connections, "HEAD_S", 0.1)
    slow = connect()
    slow.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    assert slow.recv(12) == b"HTTP/1.1 200"
    slow.settimeout(0.5)
    # The rest of the head, and then nothing for much longer than a head may take.
    slow.recv(4096)
    with pytest.raises(TimeoutError):
        slow.recv(4096)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_who_stops_in_the_midst_of_a_request_or_an_answer_gives_way(
    port, connect, monkeypatch, request_bytes
):
    monkeypatch.setattr(silent_connections, "HEAD_S", 0.1)
    monkeypatch.setattr(silent_connections, "CONNECTIONS_MAX", 3)
    for _ in range(3):
        connect().sendall(request_bytes)
    deadline_s = time.monotonic() + 30
    while ask(port)[0] != 200:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_connections_that_never_encrypt_keep_nobody_out(tmp_path):
    initialise(tmp_path / "made", [], 2, now())
    tls = TlsFiles(tmp_path / "made", Role.CONTROL_PLANE, SystemClock())
    context = ssl.create_default_context(cafile=str(tls.authority_path))
    with served(tls) as port, contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", port), 60)))
            for _ in range(NEWCOMERS_MAX + 20)
        ]
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        stack.callback(connection.close)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"{}"
        # The oldest had to go.
        assert all(is_ended(each) for each in silent[:20])


def test_where_all_ask_something_a_further_one_is_told(port, connect, monkeypatch):
    monkeypatch.setattr(silent_connections, "CONNECTIONS_MAX", 3)
    for _ in range(3):
        slow = connect()
        slow.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
    status, body = ask(port)
    assert status == 503
    assert b"too many connections" in body
