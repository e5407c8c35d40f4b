"""The client of a peer's store, against a real gRPC server that stands still."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from task_manager.state import state_client, state_scans
from task_manager.state.state_client import GrpcStateClient
from weir.clock import SystemClock
from weir.errors import ConnectionLostError
from weir.rpc import state_pb2, state_pb2_grpc
from weir.rpc.wire import JobIdentity
from weir.state.layout import encode_key

GROUP = 5
PREFIX = GROUP.to_bytes(2, "big")


class Clock(SystemClock):
    """Stands still but while it is told to run: then each look at it takes a tenth of a second."""

    def __init__(self):
        self.is_running = False
        self._now_s = 0.0

    def monotonic_s(self):
        if self.is_running:
            self._now_s += 0.1
        return self._now_s


class StallingPeer(state_pb2_grpc.StateServicer):
    """Sends some messages of a scan, and then none until the test ends."""

    def __init__(self):
        self.messages = 0
        #: Runs from the moment at which a scan has come: on a full machine that may be late.
        self.clock = None
        self.ended = threading.Event()
        self.cancelled = threading.Event()

    def Scan(self, request, context):
        context.add_callback(self.cancelled.set)
        for number in range(self.messages):
            yield state_pb2.StateScanReply(keys=[encode_key(GROUP, 0, bytes([number]))], values=[b"v"])
        if not self.messages:
            self.clock.is_running = True
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
            service.clock = Clock()
            service.client = GrpcStateClient(
                connection, address, JobIdentity("job", "f00d", 1), 3, {GROUP: 1}, service.clock
            )
            yield service
        service.ended.set()
        server.stop(0).wait()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(state_client, "CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(state_scans, "_WATCH_INTERVAL_S", 0.01)
    # Scans of other tests, and the thread that looks after them, are none of these.
    monkeypatch.setattr(state_scans, "_SCANS", state_scans._ScanWatch())


def scan(peer):
    return peer.client.scan(PREFIX, None, prefixes=[PREFIX + b"\0\0"])


def test_a_scan_that_does_not_begin_is_given_up(peer):
    with pytest.raises(
        ConnectionLostError, match=f"{peer.address} does not answer: a scan of it has stood still"
    ):
        scan(peer)
    assert peer.cancelled.wait(60)


def test_a_scan_that_stops_in_the_middle_is_given_up(peer):
    peer.messages = 3
    entries = scan(peer)
    assert [value for _, value in (next(entries), next(entries), next(entries))] == [b"v"] * 3
    peer.clock.is_running = True
    with pytest.raises(ConnectionLostError, match=f"{peer.address} does not answer"):
        next(entries)


def test_a_caller_may_take_its_time(peer):
    peer.messages = 3
    peer.ended.set()
    entries = scan(peer)
    for _ in range(3):
        peer.clock.is_running = True
        time.sleep(0.1)
        peer.clock.is_running = False
        next(entries)
    assert list(entries) == []


def test_the_thread_that_watches_ends_when_there_is_nothing_to_watch(peer):
    peer.messages = 1
    peer.ended.set()
    for _ in range(3):
        entries = scan(peer)
        watching = state_scans._SCANS._thread
        assert len(list(entries)) == 1
        del entries
        gc.collect()
        watching.join(60)
        assert not watching.is_alive()
