"""A process of the wire's measurement: ``python -m benchmarks.wal.wire_peer [PORT PORT]`` prints its port.

Without ports it answers each message with a byte. With the ports of two others it hands each message on to both, and
answers once one of them has: what a broker does that leads, but for everything that makes it a log. It ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from log_broker.peers import CHANNEL_OPTIONS
from log_broker.waiting import EOF


def opened(channel: Any) -> Any:
    """Return a stream to a process, of bytes both ways."""
    return channel.stream_stream("/wire/Send")()


async def _answer(request: Any, context: Any) -> None:
    while await context.read() is not EOF:
        await context.write(b".")


class _Relay:
    """Hands messages on to two followers."""

    def __init__(self, ports: Sequence[str]) -> None:
        self._ports = ports

    async def send(self, request: Any, context: Any) -> None:
        """Serve one sender."""
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS) for port in self._ports]
        streams = [opened(channel) for channel in channels]
        answered, told = [0 for _ in streams], 0
        news = asyncio.Event()

        async def hear(index: int) -> None:
            async for _ in _answers(streams[index]):
                answered[index] += 1
                news.set()

        async def tell() -> None:
            nonlocal told
            while True:
                await news.wait()
                news.clear()
                # The leader and one of two followers are the majority.
                while told < max(answered):
                    await context.write(b".")
                    told += 1

        tasks = [asyncio.create_task(work) for work in (hear(0), hear(1), tell())]
        while (message := await context.read()) is not EOF:
            await asyncio.gather(*(stream.write(message) for stream in streams))
        for task in tasks:
            task.cancel()
        for channel in channels:
            await channel.close(None)


async def _answers(stream: Any) -> AsyncIterator[bytes]:
    while (answer := await stream.read()) is not EOF:
        yield answer


async def _serve(ports: Sequence[str]) -> None:
    handler = grpc.stream_stream_rpc_method_handler(_Relay(ports).send if ports else _answer)
    server = grpc.aio.server(
        handlers=[grpc.method_handlers_generic_handler("wire", {"Send": handler})], options=CHANNEL_OPTIONS
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1:]))
