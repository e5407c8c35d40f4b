"""The wire's limit: what plain gRPC carries where each batch goes to one process and from there to two others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import grpc.aio

from benchmarks.results import BenchmarkError
from benchmarks.wal.cases import IN_FLIGHT
from benchmarks.wal.wire_peer import opened
from log_broker.peers import CHANNEL_OPTIONS
from log_broker.waiting import EOF

_MESSAGE = bytes(1 << 20)


def wire(seconds: float) -> dict[str, Any]:
    """Return ``wire_mb_per_second``: MiB/s of messages of 1 MiB that a sender in Python has the answers to.

    Three processes in place of the brokers, five messages under way as our producer has batches, and nothing but gRPC:
    no records, no checks, no files.

    Args:
        seconds: for which it sends.

    Raises:
        BenchmarkError: a process did not start, or did not answer.
    """
    with ExitStack() as processes:
        followers = [_start(processes), _start(processes)]
        try:
            count, took_s = asyncio.run(_send(_start(processes, *followers), seconds))
        except grpc.aio.AioRpcError as error:
            raise BenchmarkError(f"the wire's measurement failed: {error.details()}") from error
    return {"wire_mb_per_second": count * len(_MESSAGE) / (1 << 20) / took_s}


def _start(processes: ExitStack, *ports: str) -> str:
    popen = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wal.wire_peer", *ports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    processes.enter_context(popen)
    processes.callback(popen.terminate)
    assert popen.stdout is not None
    port = popen.stdout.readline().strip()
    if not port:
        raise BenchmarkError("a process of the wire's measurement did not start; its error is above")
    return port


async def _send(port: str, seconds: float) -> tuple[int, float]:
    """Send for so long; returns how many messages were answered, and after how many seconds the last one was."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS) as channel:
        stream = opened(channel)
        await stream.write(_MESSAGE)
        await stream.read()
        free = asyncio.Semaphore(IN_FLIGHT)
        began_s = time.monotonic()
        count = 0

        async def hear() -> None:
            nonlocal count
            while await stream.read() is not EOF:
                count += 1
                free.release()

        hearing = asyncio.create_task(hear())
        while time.monotonic() - began_s < seconds:
            await free.acquire()
            await stream.write(_MESSAGE)
        for _ in range(IN_FLIGHT):
            await free.acquire()
        took_s = time.monotonic() - began_s
        hearing.cancel()
    return count, took_s
