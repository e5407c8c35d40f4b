"""Connections to other task managers over gRPC, and which jobs they may ask for."""

from __future__ import annotations

import importlib
import re

import grpc

from weir.errors import HandshakeError
from weir.rpc import channels
from weir.rpc.wire import JobIdentity, check_same_job, parse_address
from weir.security.roles import Role

#: How often a thread that waits in grpcio looks without need; not a part of its interface.
_GRPC_WAIT_MODULE, _GRPC_WAIT, _GRPC_WAIT_S = "grpc._common", "MAXIMUM_WAIT_TIMEOUT", 5.0

#: What gRPC says of a call on a closed channel, in two ways.
_CLOSED = re.compile(r"closed channel|Channel closed")


def let_grpc_sleep() -> None:
    """Let threads that wait for a message sleep until it comes; called once, before the first call.

    grpcio wakes each of them ten times a second, for signal handlers of Python 2: 0.015 cores with thirty channels on
    which nothing happens, 0.001 without. There is no public setting: a release of grpcio that has moved or changed this
    one stays as it is, and costs that much.
    """
    try:
        common = importlib.import_module(_GRPC_WAIT_MODULE)
    except ImportError:
        return
    if isinstance(getattr(common, _GRPC_WAIT, None), int | float):
        setattr(common, _GRPC_WAIT, _GRPC_WAIT_S)


def connect(address: str, options: list[tuple[str, int]]) -> grpc.Channel:
    """A connection to another task manager, shared by all calls to it.

    Addresses come in messages: gRPC would also take paths of sockets, or the name of a resolver.

    Raises:
        HandshakeError: the address has another form than ``host:port``.
    """
    return channels.connect(
        str(parse_address(address)),
        Role.TASK_MANAGER,
        [
            *options,
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_http_proxy", 0),
        ],
    )


def is_closed(error: BaseException) -> bool:
    """Return whether a call came too late: the connection was closed by this process, in another thread."""
    return isinstance(error, ValueError) and _CLOSED.search(str(error)) is not None


def check_channel_job(ours: JobIdentity | None, theirs: JobIdentity) -> None:
    """Refuse a channel of a job that is not deployed here.

    Raises:
        HandshakeError: nothing is deployed, or something else is.
    """
    if ours is None:
        raise HandshakeError(f"job {theirs.job_id} is not deployed here")
    check_same_job(ours, theirs)
