"""Pages of the controller: ``/log`` has the state of the whole log, as ``weir log status --json`` prints it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from log_broker.controller import Controller
from weir.errors import AddressInUseError
from weir.questions.access import AccessMiddleware, Audit
from weir.questions.guard import Admission, GuardMiddleware, own_hosts
from weir.questions.http_server import QuietServer, http_config, http_tokens, listen
from weir.questions.methods import READING, HeadMiddleware, wrong_method
from weir.questions.silent_connections import PatientProtocol
from weir.types import join_address

log = logging.getLogger("log_broker.pages")

_PATHS = ("/log", "/healthz")


def log_pages(controller: Controller, admitted: Admission) -> ASGIApp:
    """Return the application; it changes nothing."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, status = scope["path"].rstrip("/"), 200
        more: list[tuple[bytes, bytes]] = []
        if path not in _PATHS:
            status = 404
            body = orjson.dumps({"error": f"no page {scope['path']}; there are {', '.join(_PATHS)}"})
        elif scope["method"] != "GET":
            status, more = 405, [(b"allow", READING)]
            body = orjson.dumps({"error": wrong_method(path, scope["method"])})
        elif path == "/log":
            body = orjson.dumps(controller.status().as_json())
        else:
            body = b'{"ok":true}'
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *more,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return GuardMiddleware(AccessMiddleware(HeadMiddleware(answer), http_tokens(), Audit()), admitted)


class PageServer:
    """Answers over HTTP in the controller's event loop."""

    def __init__(self, controller: Controller, host: str, port: int, advertised: str = "") -> None:
        """Listen at once.

        Args:
            controller: whose state is told.
            host: to listen on.
            port: to listen on; 0: any free one.
            advertised: another name of this machine, under which requests may come.

        Raises:
            AddressInUseError: the port is taken.
        """
        try:
            self._socket = listen(host, port, or_any_port=False)
        except OSError as error:
            raise AddressInUseError(
                f"cannot listen on {join_address(host, port)} (HTTP): {error.strerror}; choose another port with "
                "--http-port"
            ) from error
        admitted = Admission(
            own_hosts(host, advertised), owner="controller", hosts_setting="--advertised-host"
        )
        pages = log_pages(controller, admitted)
        self._server = QuietServer(
            http_config(pages, partial(PatientProtocol, newcomers=self._socket.newcomers))
        )
        self.port: int = self._socket.getsockname()[1]
        self._task: asyncio.Task[None] | None = None
        log.info("state of the log: http://%s/log", join_address(host, self.port))

    def start(self) -> None:
        """Begin to answer; called inside the event loop."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Finish open requests and stop."""
        self._server.leave()
        if self._task is not None:
            await self._task
        self._socket.close()
