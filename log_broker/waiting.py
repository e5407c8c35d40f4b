"""Waiting for changes of a partition, and tasks that end with what they belong to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import grpc.aio
from grpc.aio import EOF as _EOF  # type: ignore[attr-defined]  # not in the stubs

from log_broker.partition import PartitionReplica

log = logging.getLogger("log_broker")

#: What ``read`` returns behind the last message of a stream.
EOF: object = _EOF
#: What reading or writing raises once a stream has ended.
STREAM_ENDED = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
)


@contextlib.contextmanager
def listening(replica: PartitionReplica) -> Iterator[asyncio.Event]:
    """Hold an event that is set at each change of a replica; who waits for it clears it first, and looks then."""
    event = asyncio.Event()
    replica.listeners.add(event)
    try:
        yield event
    finally:
        replica.listeners.discard(event)


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run something beside; an error of it is logged, since nobody else would hear of it."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, STREAM_ENDED):
        # The stream that it belongs to has ended, and whoever has it goes on.
        log.debug("%s ended: %s", task.get_name(), error)
    elif error is not None:
        log.error("%s ended: %s", task.get_name(), error, exc_info=error)


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
