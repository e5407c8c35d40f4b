"""The client of a peer's store, against a real gRPC server that stands still."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from task_manager.state import state_client
from task_manager.state.state_client import GrpcStateClient
from weir.clock import SystemClock
from weir.errors import ConnectionLostError
from weir.rpc import state_pb2, state_pb2_grpc
from weir.rpc.wire import JobIdentity
from weir.state.layout import encode_key

GROUP = 5
PREFIX = GROUP.to_bytes(2, "big")


class StallingPeer(state_pb2_grpc.StateServicer):
    """Sends some messages of a scan, and then none until the test ends."""

    def __init__(self):
        self.messages = 0
        self.ended = threading.Event()
        self.cancelled = threading.Event()

    def Scan(self, request, context):
        context.add_callback(self.cancelled.set)
        for number in range(self.messages):
            yield state_pb2.StateScanReply(keys=[encode_key(GROUP, 0, bytes([number]))], values=[b"v"])
        self.ended.wait(60)


@pytest.fixture
def peer():
    service = StallingPeer()
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        state_pb2_grpc.add_StateServicer_to_server(service, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        with grpc.insecure_channel(address) as connection:
            service.address = address
            service.client = GrpcStateClient(
                connection, address, JobIdentity("job", "f00d", 1), 3, {GROUP: 1}, SystemClock()
            )
            yield service
        service.ended.set()
        server.stop(0).wait()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(state_client, "CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(state_client, "_WATCH_INTERVAL_S", 0.05)


def scan(peer):
    return peer.client.scan(PREFIX, None, prefixes=[PREFIX + b"\0\0"])


def test_a_scan_that_does_not_begin_is_given_up(peer):
    with pytest.raises(
        ConnectionLostError, match=f"{peer.address} does not answer: a scan of it has stood still"
    ):
        scan(peer)
    assert peer.cancelled.wait(10)


def test_a_scan_that_stops_in_the_middle_is_given_up(peer):
    peer.messages = 3
    entries = scan(peer)
    assert [value for _, value in (next(entries), next(entries), next(entries))] == [b"v"] * 3
    with pytest.raises(ConnectionLostError, match=f"{peer.address} does not answer"):
        next(entries)


def test_a_caller_may_take_its_time(peer):
    peer.messages = 3
    peer.ended.set()
    entries = scan(peer)
    for _ in range(3):
        time.sleep(0.5)
        next(entries)
    assert list(entries) == []
