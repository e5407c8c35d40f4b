"""Methods of HTTP: HEAD is asked for wherever GET is, and what a page does not take is told with what it takes."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.questions.guard import CHANGING_PATHS

#: Of pages that are only read.
READING = b"GET, HEAD"


class HeadMiddleware:
    """Answers HEAD as GET, without the body: programs that watch a service ask so whether it is there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server for every request."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or scope["path"].rstrip("/") in CHANGING_PATHS:
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        # What never ends must know.
        await self._app({**scope, "method": "GET", "weir.is_head": True}, receive, send_head)


def wrong_method(path: str, method: str) -> str:
    """Why a page that is only read refuses a request."""
    return f"{path} takes {READING.decode()}, not {method}"
