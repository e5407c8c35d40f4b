"""A broker's process and the controller's, from start to orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc.aio

from log_broker.attendance import Attendance
from log_broker.broker import Broker
from log_broker.broker_service import BrokerService, add_to
from log_broker.controller import Controller
from log_broker.pages import PageServer
from log_broker.peers import CHANNEL_OPTIONS
from log_broker.waiting import end, start
from weir.clock import SystemClock
from weir.errors import AddressInUseError
from weir.process.descriptors import raise_limit
from weir.rpc import log_pb2_grpc
from weir.rpc.access import Gate, add_port, async_gates
from weir.types import join_address

log = logging.getLogger("log_broker")

_GRACE_S = 0.2


def run_broker(
    broker_id: int,
    host: str,
    port: int,
    controller: str,
    directory: Path,
    advertised: str,
    advertised_port: int = 0,
) -> int:
    """Serve as a broker until SIGTERM or Ctrl-C; returns the exit code.

    Args:
        broker_id: from 1 on; the same at each start with the same directory.
        host: to listen on.
        port: to listen on; 0: any free one.
        controller: its address.
        directory: of the broker's data.
        advertised: host under which others reach this one; "": ``host``.
        advertised_port: port under which they do; 0: the one that is listened on.

    Raises:
        AddressInUseError: the port is taken.
    """
    # Each segment is a file.
    raise_limit()

    async def serve() -> None:
        broker = Broker(broker_id, directory, SystemClock())

        async def stop() -> None:
            await broker.close()

        gate = Gate()
        server = _server(gate)
        add_to(server, BrokerService(broker, controller))
        bound = await _listen(server, host, port, gate)
        attendance = Attendance(
            broker, controller, join_address(advertised or host, advertised_port or bound)
        )
        await _until_signal(server, [attendance.run, broker.tick_forever], stop)

    asyncio.run(serve())
    return 0


def run_controller(
    host: str, port: int, directory: Path, lease_s: float, http_port: int, advertised: str = ""
) -> int:
    """Serve as the controller until SIGTERM or Ctrl-C; returns the exit code.

    Args:
        host: to listen on.
        port: to listen on; 0: any free one.
        directory: of the record.
        lease_s: a broker that is silent for so long is lost.
        http_port: of the page ``/log``; 0: any free one.
        advertised: name under which others ask for that page; "": ``host``.

    Raises:
        AddressInUseError: a port is taken.
        LogDamagedError: the record is not what was written.
    """

    async def serve() -> None:
        controller = Controller(directory, lease_s)
        gate = Gate()
        server = _server(gate)
        log_pb2_grpc.add_LogControllerServicer_to_server(controller, server)
        pages = PageServer(controller, host, http_port, advertised)
        await _listen(server, host, port, gate)
        pages.start()
        await _until_signal(server, [controller.leave_absent, controller.move_leaders], pages.stop)

    asyncio.run(serve())
    return 0


def _server(gate: Gate) -> grpc.aio.Server:
    # Without this, two brokers could share a port and each get half of the calls.
    return grpc.aio.server(
        interceptors=async_gates(gate), options=[("grpc.so_reuseport", 0), *CHANNEL_OPTIONS]
    )


async def _listen(server: grpc.aio.Server, host: str, port: int, gate: Gate) -> int:
    address = join_address(host, port)
    try:
        bound = add_port(server, address, gate)
    except RuntimeError as error:
        raise AddressInUseError(
            f"cannot listen on {address}: the port is in use or the address is not this machine's; "
            "choose another with --port"
        ) from error
    await server.start()
    log.info("listening on %s", join_address(host, bound))
    return bound


async def _until_signal(
    server: grpc.aio.Server,
    works: list[Callable[[], Coroutine[Any, Any, None]]],
    stop: Callable[[], Coroutine[Any, Any, None]] | None,
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    tasks = [start(work(), work.__name__) for work in works]
    await stopped.wait()
    for task in tasks:
        await end(task)
    await server.stop(_GRACE_S)
    if stop is not None:
        await stop()
