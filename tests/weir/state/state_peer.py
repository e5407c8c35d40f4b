"""A task manager's state service over a real socket, and hybrid backends that reach it. For tests of this directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc

from task_manager.connections import check_channel_job
from task_manager.state.state_client import GrpcStateClient
from task_manager.state.state_service import StateService
from weir.clock import SystemClock
from weir.protocol.fencing import EpochFence
from weir.rpc import state_pb2_grpc
from weir.rpc.wire import JobIdentity, message_size_options
from weir.state.api import StateBackend

JOB = JobIdentity("job-1", "f00d", 1)
STAGE = 3
MESSAGE_BYTES_MAX = 8 << 20


class Peer:
    """A store behind a gRPC server; ``address`` is where it listens."""

    def __init__(self, store: StateBackend) -> None:
        self.store = store
        self.fence = EpochFence()
        self._threads = ThreadPoolExecutor(16)
        options = message_size_options(MESSAGE_BYTES_MAX)
        self.server = grpc.server(self._threads, options=options)
        state_pb2_grpc.add_StateServicer_to_server(StateService(self._find_store), self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self.server.start()
        self.connection = grpc.insecure_channel(self.address, options=options)

    def _find_store(self, identity: JobIdentity) -> tuple[StateBackend, EpochFence]:
        check_channel_job(JOB, identity)
        return self.store, self.fence

    def connect(self, address: str, epochs: Mapping[int, int]) -> GrpcStateClient:
        """For ``PlacedStore``."""
        assert address == self.address
        return GrpcStateClient(self.connection, address, JOB, STAGE, epochs, SystemClock())

    def stop(self) -> None:
        """End the server; open calls fail."""
        self.connection.close()
        self.server.stop(0).wait()
        self._threads.shutdown()


@contextlib.contextmanager
def serving(store: StateBackend) -> Iterator[Peer]:
    """A running peer over a store, which stays open."""
    peer = Peer(store)
    try:
        yield peer
    finally:
        peer.stop()
