"""Encrypted connections of links: what is sent arrives, a hang-up is seen, and other certificates are refused."""

import contextlib
import random
import socket
import ssl
import threading
import time

import pytest

from task_manager.exchange import exchange_service
from task_manager.exchange.exchange_service import ExchangeService
from task_manager.exchange.sockets import dial, hang_up, is_local, send_all
from task_manager.exchange.tunnels import client_tunnel, server_tunnel
from weir.clock import SystemClock
from weir.rpc import data_pb2
from weir.rpc.wire import PROTOCOL_VERSION
from weir.security import identity
from weir.security.certificates import initialise, now
from weir.security.identity import Identity
from weir.security.roles import Role
from weir.security.tls_files import TlsFiles

WAIT_S = 30


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("tunnels") / "security"
    initialise(made, [], 2, now())
    return made


def identity_of(directory):
    return Identity(Role.TASK_MANAGER, tls=TlsFiles(directory, Role.TASK_MANAGER, SystemClock()))


@contextlib.contextmanager
def connect_both(of_server, of_client):
    """Both ends; an end that is refused is the error instead."""
    found = {}
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connected, _ = listening.accept()
            connected.settimeout(WAIT_S)
            try:
                found["server"] = server_tunnel(connected, identity_of(of_server))
            except OSError as error:
                found["server"] = error
                connected.close()

        thread = threading.Thread(target=serve)
        thread.start()
        connected = socket.create_connection(listening.getsockname(), WAIT_S)
        try:
            found["client"] = client_tunnel(connected, identity_of(of_client))
        except OSError as error:
            found["client"] = error
            connected.close()
        thread.join(WAIT_S)
    try:
        yield found["client"], found["server"]
    finally:
        for each in found.values():
            if isinstance(each, socket.socket):
                each.close()


def read_exactly(connected, size):
    parts = []
    while size:
        part = connected.recv(min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def test_bytes_arrive_in_both_directions_and_a_hang_up_is_seen(directory):
    with connect_both(directory, directory) as (client, server):
        check_both(client, server)


def check_both(client, server):
    assert not is_local(client)
    rng = random.Random(5)
    sent = [rng.randbytes(6 << 20), rng.randbytes(3 << 20)]
    got = [b"", b""]

    def read(index, connected):
        got[index] = read_exactly(connected, len(sent[index]))

    def write(connected, data):
        cuts = sorted(rng.randrange(len(data)) for _ in range(50))
        send_all(connected, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)])

    works = [
        threading.Thread(target=read, args=(0, server)),
        threading.Thread(target=read, args=(1, client)),
        threading.Thread(target=write, args=(client, sent[0])),
        threading.Thread(target=write, args=(server, sent[1])),
    ]
    for work in works:
        work.start()
    for work in works:
        work.join(WAIT_S)
    assert got == sent
    hang_up(client)
    assert server.recv(1) == b""


def test_a_certificate_of_another_authority_is_refused(directory, tmp_path):
    initialise(tmp_path / "others", [], 2, now())
    with connect_both(directory, tmp_path / "others") as (client, server):
        assert isinstance(client, ssl.SSLError)
        assert isinstance(server, OSError)


def test_a_server_of_another_role_is_refused(directory, tmp_path):
    """A client's certificate is right, and none of a task manager."""
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name.replace("client", "task-manager")).write_bytes((directory / name).read_bytes())
        (tmp_path / name.replace("client", "task-manager")).chmod(0o600)
    with connect_both(tmp_path, directory) as (client, _):
        assert isinstance(client, ssl.SSLCertVerificationError)


def test_a_plain_connection_is_refused_in_time(directory):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stranger = socket.create_connection(listening.getsockname())
        connected, _ = listening.accept()
        connected.settimeout(0.2)
        stranger.sendall(b"weir-link-1\n" + bytes(32))
        with pytest.raises((ssl.SSLError, TimeoutError)):
            server_tunnel(connected, identity_of(directory))
        stranger.close()
        connected.close()


@pytest.mark.parametrize("encrypts", [False, True])
def test_strangers_keep_no_task_manager_out(directory, monkeypatch, encrypts):
    """More connections than may be about to begin: the oldest is hung up on, also in its handshake."""
    ours = identity_of(directory) if encrypts else Identity(Role.TASK_MANAGER)
    monkeypatch.setattr(identity, "_current", ours)
    monkeypatch.setattr(exchange_service, "_GREETING_TIMEOUT_S", 60.0)
    monkeypatch.setattr(exchange_service, "_STRANGERS_MAX", 8)
    exchange = ExchangeService(lambda *_: None, 1 << 20, SystemClock())
    exchange.listen("127.0.0.1", is_local=False)
    with contextlib.ExitStack() as stack:
        stack.callback(exchange.close)
        reply = exchange.OpenLink(data_pb2.OpenLinkRequest(protocol_version=PROTOCOL_VERSION), None)
        strangers = [socket.create_connection(("127.0.0.1", reply.port), WAIT_S) for _ in range(8)]
        link = stack.enter_context(dial("127.0.0.1", reply.port, reply.greeting, WAIT_S))
        deadline_s = time.monotonic() + WAIT_S
        # The first of the strangers had to go, and the link has greeted.
        while len(exchange._newcomers) != 7 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        strangers += [socket.create_connection(("127.0.0.1", reply.port), WAIT_S) for _ in range(8)]
        for each in strangers:
            stack.callback(each.close)
        assert all(each.recv(1) == b"" for each in strangers[:8])
        link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            # It is there, and silent.
            link.recv(1)


def test_who_begins_no_link_is_hung_up_on(directory, monkeypatch):
    """A connection that is encrypted, and then silent, leaves neither sockets nor a thread."""
    delays = []

    def tunnel(connected, **arguments):
        delays.append(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return server_tunnel(connected, **arguments)

    monkeypatch.setattr(exchange_service, "server_tunnel", tunnel)
    monkeypatch.setattr(identity, "_current", identity_of(directory))
    monkeypatch.setattr(exchange_service, "_GREETING_TIMEOUT_S", 1.0)
    exchange = ExchangeService(lambda *_: None, 1 << 20, SystemClock())
    exchange.listen("127.0.0.1", is_local=False)
    try:
        request = data_pb2.OpenLinkRequest(protocol_version=PROTOCOL_VERSION)
        connected = socket.create_connection(("127.0.0.1", exchange.OpenLink(request, None).port), WAIT_S)
        with client_tunnel(connected) as silent:
            assert silent.recv(1) == b""
        assert delays == [1], "credits wait for the acknowledgement of earlier ones"
    finally:
        exchange.close()
