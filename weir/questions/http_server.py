"""Uvicorn inside the event loop of a process that does other things, too."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from weir.clock import SystemClock
from weir.process.newcomers import Entrance
from weir.questions.silent_connections import BACKLOG, lengthen_queue
from weir.security.identity import current
from weir.security.tokens import Tokens

#: How old the date of an answer may be.
_DATE_S = 1.0


def listen(host: str, port: int, *, or_any_port: bool) -> Entrance:
    """Return a socket that listens, so that of two processes only one has a port.

    Args:
        host: name or address of this machine.
        port: 0: any free one.
        or_any_port: take any free port if that one is taken.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it: else the rest of an answer waits 40 ms for the caller to acknowledge its head.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        if or_any_port and error.errno == errno.EADDRINUSE:
            return listen(host, 0, or_any_port=False)
        raise
    return Entrance(listening)


def http_config(
    app: ASGIApp, protocol: Callable[..., asyncio.Protocol], *, end_s: int | None = None
) -> uvicorn.Config:
    """Return how a process serves HTTP, encrypted if it has certificates.

    Args:
        app: the application.
        protocol: makes the protocol of each connection, with what uvicorn tells it.
        end_s: open requests have so long when the server ends; None: as long as they take.
    """
    config = uvicorn.Config(
        app,
        # Uvicorn calls it only.
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        # The audit log has who connects, and not who that says it is.
        proxy_headers=False,
        log_level="warning",
        # As all of this process: bounded, and without control characters.
        log_config=None,
        lifespan="off",
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=end_s,
    )
    tls = current().tls
    if tls is not None:
        config.load()
        config.ssl = tls.serving(asks_certificate=False)
    return config


def http_tokens() -> Tokens | None:
    """Return the tokens without which nothing is answered over HTTP; None: this process has no certificates.

    Raises:
        ConfigError: their files cannot be read.
    """
    tls = current().tls
    return None if tls is None else Tokens(tls.directory, SystemClock())


class QuietServer(uvicorn.Server):
    """Leaves signals to the process, and sleeps while nothing comes: uvicorn's own loop looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaves = asyncio.Event()

    def leave(self) -> None:
        """Let ``serve`` finish open requests and return; called in the event loop."""
        self.should_exit = True
        self._leaves.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        lengthen_queue(sockets)

    async def main_loop(self) -> None:
        """Return when the server is to end; the date of answers is set anew meanwhile."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaves.wait(), _DATE_S)

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Do nothing: the process handles signals itself."""
        yield
