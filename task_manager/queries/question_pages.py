"""The pages of a task manager: questions to the state of the whole job, and metrics. They change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial

import orjson
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send

from weir.process.newcomers import Entrance
from weir.questions.access import AccessMiddleware, Audit
from weir.questions.guard import Admission, GuardMiddleware
from weir.questions.http_server import http_config, http_tokens
from weir.questions.joined_writes import Begin, JoiningProtocol
from weir.questions.methods import READING, HeadMiddleware, wrong_method
from weir.questions.pages import StatePages
from weir.questions.silent_connections import lengthen_queue

#: Answers have the date, which is set anew so often.
_DATE_S = 1.0
#: Pages besides questions.
_READ_PATHS = frozenset({"/healthz", "/metrics"})


def question_pages(pages: StatePages, registry: CollectorRegistry, admitted: Admission) -> ASGIApp:
    """The application."""

    async def others(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, content_type = 200, b"application/json"
        more: list[tuple[bytes, bytes]] = []
        if scope["path"] in _READ_PATHS and scope["method"] != "GET":
            status, more = 405, [(b"allow", READING)]
            body = orjson.dumps({"error": wrong_method(scope["path"], scope["method"])})
        elif scope["path"] == "/healthz":
            body = b'{"ok":true}'
        elif scope["path"] == "/metrics":
            body = await asyncio.to_thread(generate_latest, registry)
            content_type = CONTENT_TYPE_LATEST.encode()
        else:
            status = 404
            known = "/state/{step}/{state}, /state/{step}/{state}/{key}, /metrics, /healthz"
            body = orjson.dumps({"error": f"no page {scope['path']}; a task manager has {known}"})
        headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *more]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return GuardMiddleware(
        AccessMiddleware(HeadMiddleware(pages.before(others)), http_tokens(), Audit()), admitted
    )


class PageServer(uvicorn.Server):
    """Serves an application in the loop that it is started in; leaves signals to the process."""

    def __init__(self, app: ASGIApp, begin: Begin | None, bound: Entrance) -> None:
        """``begin``: see ``JoiningProtocol``."""
        super().__init__(http_config(app, partial(JoiningProtocol, begin=begin, newcomers=bound.newcomers)))
        # Connections inherit it: else the rest of an answer waits 40 ms for the caller to acknowledge its head.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bound = bound

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Begin to answer."""
        return loop.create_task(self.serve(sockets=[self._bound]))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        lengthen_queue(sockets)

    async def main_loop(self) -> None:
        """Set the date of answers anew, until the loop's end cancels this: uvicorn's own looks ten times a second."""
        while not await self.on_tick(0):
            await asyncio.sleep(_DATE_S)

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Do nothing: the process handles signals itself."""
        yield
