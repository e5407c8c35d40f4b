"""The receiving process of the transport benchmark: takes channels, finishes every batch at once, counts rows.

``python -m benchmarks.transport_peer`` prints its port, then one JSON object per finished channel, and ends when
its standard input closes.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa

from task_manager.exchange.exchange_service import ExchangeService
from task_manager.exchange.inbox import Inbox
from weir.clock import SystemClock
from weir.rows.records import EndOfStream
from weir.rpc.wire import JobIdentity, message_size_options
from weir.types import ChannelId

MESSAGE_BYTES_MAX = 64 << 20
#: Methods of plain gRPC, without protobuf and Arrow.
RAW_STREAM, RAW_ECHO = "/raw/Stream", "/raw/Echo"
_THREADS = 16


def _raw_handler() -> grpc.GenericRpcHandler[bytes, bytes]:
    """Bytes in, one byte out per message; and an echo."""
    handlers = {
        "Stream": grpc.stream_stream_rpc_method_handler(_acknowledge),
        "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
    }
    return grpc.method_handlers_generic_handler("raw", handlers)


def _acknowledge(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    for _ in requests:
        yield b"."


class _Consumer:
    """Takes what arrives in one inbox."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        threading.Thread(target=self._drain, name="consumer", daemon=True).start()

    def find_inbox(self, identity: JobIdentity, channel: ChannelId) -> Inbox:
        return self.inbox

    def _drain(self) -> None:
        rows = batches = 0
        while True:
            delivery = self.inbox.poll(1.0)
            if delivery is None:
                continue
            if isinstance(delivery.element, pa.RecordBatch):
                rows += delivery.element.num_rows
                batches += 1
            ended = isinstance(delivery.element, EndOfStream)
            delivery.release()
            if ended:
                print(json.dumps({"rows": rows, "batches": batches}), flush=True)
                rows = batches = 0


def main() -> None:
    """Serve until standard input closes."""
    consumer = _Consumer()
    server = grpc.server(
        ThreadPoolExecutor(_THREADS),
        handlers=[_raw_handler()],
        options=[("grpc.so_reuseport", 0), *message_size_options(MESSAGE_BYTES_MAX)],
    )
    exchange = ExchangeService(consumer.find_inbox, MESSAGE_BYTES_MAX, SystemClock())
    exchange.listen("127.0.0.1")
    exchange.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(json.dumps({"port": port}), flush=True)
    sys.stdin.read()
    server.stop(grace=None).wait()


if __name__ == "__main__":
    main()
