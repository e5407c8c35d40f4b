"""A real server on loopback, and callers that say nothing, little, or ask."""

import asyncio
import contextlib
import http.client
import socket
import threading

import pytest
import uvicorn

from weir.questions import silent_connections
from weir.questions.joined_writes import JoiningProtocol
from weir.questions.silent_connections import BACKLOG, CONNECTIONS_MAX


async def application(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    if scope["path"] == "/slow":
        await asyncio.sleep(60)
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def port():
    """Where a server listens."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application, http=JoiningProtocol, log_level="critical", lifespan="off", backlog=BACKLOG
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[bound]))
    thread.start()
    yield bound.getsockname()[1]
    server.should_exit = server.force_exit = True
    thread.join()
    bound.close()


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


def test_where_all_ask_something_a_further_one_is_told(port, connect, monkeypatch):
    monkeypatch.setattr(silent_connections, "CONNECTIONS_MAX", 3)
    for _ in range(3):
        slow = connect()
        slow.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
    status, body = ask(port)
    assert status == 503
    assert b"too many connections" in body
