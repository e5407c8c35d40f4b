"""A broker's process and the controller's, from start to orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from log_broker.attendance import Attendance
from log_broker.broker import Broker
from log_broker.broker_service import BrokerService, add_to
from log_broker.controller import Controller
from log_broker.errors import LogWriteError
from log_broker.pages import PageServer
from log_broker.peers import CHANNEL_OPTIONS, Controllers
from log_broker.salvage import salvage
from log_broker.waiting import end, start
from weir.clock import SystemClock
from weir.errors import AddressInUseError, ConfigError, SupersededError
from weir.process.descriptors import raise_limit
from weir.process.owned_directory import owned_directory
from weir.records.file_keeper import FileKeeper, Keeper
from weir.rpc import log_pb2_grpc
from weir.rpc.access import SERVER_OPTIONS, Gate, add_port, async_gates
from weir.types import join_address

log = logging.getLogger("log_broker")

_GRACE_S = 0.2
#: The controller's record, and what it is called in messages.
_DOCUMENT, _OWNER = "controller.json", "controller of the log"
#: Of a directory with data: two would write the same segments.
_OWNER_OF_DATA = "broker"


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
        controller: its address, or those of several with commas.
        directory: of the broker's data.
        advertised: host under which others reach this one; "": ``host``.
        advertised_port: port under which they do; 0: the one that is listened on.

    Raises:
        AddressInUseError: the port is taken, or another broker has the directory.
        ConfigError: the directory cannot be used.
    """
    # Each partition and each stream has one.
    raise_limit()

    async def serve() -> None:
        broker = Broker(broker_id, directory, SystemClock())
        controllers = Controllers(controller)

        async def stop() -> None:
            await broker.close()

        gate = Gate()
        server = _server(gate)
        add_to(server, BrokerService(broker, controllers))
        bound = await _listen(server, host, port, gate)
        attendance = Attendance(
            broker, controllers, join_address(advertised or host, advertised_port or bound)
        )
        await _until_signal(server, [attendance.run, broker.tick_forever], stop)

    with owned_directory(directory, _OWNER_OF_DATA):
        asyncio.run(serve())
    return 0


def run_salvage(directory: Path, partition: str) -> int:
    """Put back what a replica had before it began anew, while its broker does not run; returns the exit code.

    Args:
        directory: of the broker's data.
        partition: written ``topic/0``.

    Raises:
        AddressInUseError: the broker runs.
        ConfigError: nothing was set aside, or the directory cannot be used.
    """
    topic, _, number = partition.rpartition("/")
    with owned_directory(directory, _OWNER_OF_DATA):
        try:
            end_offset = salvage(directory / f"{topic}-{number}")
        except OSError as error:
            raise LogWriteError(f"{partition}: {error}; mend the disk, and call this again") from error
    print(
        f"{partition}: whole up to offset {end_offset}; start the broker, and then: weir log accept-loss {partition} ID"
    )
    return 0


@dataclass(frozen=True)
class RecordPlace:
    """Where the controller's record is."""

    #: Of the file, unless it is in etcd.
    directory: Path | None
    #: ``host:port`` of each endpoint of etcd; with some, several controllers may run, of which one leads.
    etcd_endpoints: Sequence[str] = ()
    #: Of this log among those that have their record there.
    name: str = "log"

    def keeper(self, on_lost: Callable[[], None]) -> Keeper:
        """Return what keeps it; ``on_lost`` is called in another thread when another controller may lead.

        Raises:
            ConfigError: there is no place.
        """
        if self.etcd_endpoints:
            from weir.records.etcd_keeper import EtcdKeeper

            prefix = f"/weir-log/{self.name}"
            return EtcdKeeper(self.etcd_endpoints, prefix, on_lost, owner=_OWNER, setting="--etcd")
        if self.directory is None:
            raise ConfigError("the controller's record needs a place: give --dir, or --etcd")
        return FileKeeper(self.directory / _DOCUMENT, owner=_OWNER, setting="--dir")


def run_controller(
    host: str, port: int, record: RecordPlace, lease_s: float, http_port: int, advertised: str = ""
) -> int:
    """Serve as the controller until SIGTERM or Ctrl-C; returns the exit code. Waits while another one leads.

    Args:
        host: to listen on.
        port: to listen on; 0: any free one.
        record: where it is.
        lease_s: a broker that is silent for so long is lost.
        http_port: of the page ``/log``; 0: any free one.
        advertised: name under which others ask for that page; "": ``host``.

    Raises:
        AddressInUseError: a port is taken, or another controller has the file.
        CheckpointError: the record cannot be read.
        ConfigError: there is no place for the record.
        LogDamagedError: the record is not what was written.
        SupersededError: another controller leads.
    """

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[None] = loop.create_future()

        def on_lost() -> None:
            error = SupersededError("another controller may lead: the lease in etcd has run out")
            loop.call_soon_threadsafe(_fail, lost, error)

        keeper = record.keeper(on_lost)
        try:
            await asyncio.to_thread(keeper.lead)
            controller = Controller(keeper, lease_s)
            gate = Gate()
            server = _server(gate)
            log_pb2_grpc.add_LogControllerServicer_to_server(controller, server)
            pages = PageServer(controller, host, http_port, advertised)
            await _listen(server, host, port, gate)
            pages.start()

            async def store() -> None:
                try:
                    await controller.store()
                except Exception as error:  # whatever it is: a controller that cannot store ends
                    _fail(lost, error)

            works = [store, controller.leave_absent, controller.move_leaders]
            await _until_signal(server, works, pages.stop, lost)
        finally:
            keeper.close()

    asyncio.run(serve())
    return 0


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _server(gate: Gate) -> grpc.aio.Server:
    return grpc.aio.server(interceptors=async_gates(gate), options=[*SERVER_OPTIONS, *CHANNEL_OPTIONS])


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
    stop: Callable[[], Coroutine[Any, Any, None]],
    over: asyncio.Future[None] | None = None,
) -> None:
    """Serve until a signal, until one of ``works`` fails, or until ``over`` is done; the error is raised then."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future() if over is None else over
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None if ended.done() else ended.set_result(None))
    tasks = [start(work(), work.__name__) for work in works]

    def end_with(task: asyncio.Task[None]) -> None:
        # Without one of its parts a process only seems to live; whoever has started it starts it again.
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            _fail(ended, error)

    for task in tasks:
        task.add_done_callback(end_with)
    await asyncio.wait([ended])
    for task in tasks:
        await end(task)
    await server.stop(_GRACE_S)
    await stop()
    ended.result()
