"""Headers of every answer: what a page may load, and that no page of others may show it in a frame."""

from __future__ import annotations

import base64
import hashlib
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.questions.access import LOGIN_PATH
from weir.questions.pages import tells_state
from weir.redaction import KNOWN

#: Pages load what this server has, and nothing else; no page of others frames them.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
#: Swagger's page, which has one script of its own and sets styles.
_DOCUMENTATION = "/docs"
_DOCUMENTATION_POLICY = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
#: The page that asks for a token, which has a form.
_LOGIN_POLICY = _POLICY.replace("form-action 'none'", "form-action 'self'")
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_OTHERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]


class HeadersMiddleware:
    """Added last, so that refusals have them, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server for every request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        policy = _LOGIN_POLICY if scope["path"].rstrip("/") == LOGIN_PATH else _POLICY
        if scope["path"].rstrip("/") == _DOCUMENTATION:
            await self._app(scope, receive, _documentation(send))
            return

        # Answers to questions have what is in the state, as it is.
        hides = not tells_state(scope["path"])

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = _with_policy(message, policy)
            elif hides and message["type"] == "http.response.body":
                message = {**message, "body": KNOWN.masked(message.get("body", b""))}
            await send(message)

        await self._app(scope, receive, send_with)


def _with_policy(message: Message, policy: str) -> Message:
    headers = [*message.get("headers", []), *_OTHERS, (b"content-security-policy", policy.encode())]
    return {**message, "headers": headers}


def _documentation(send: Send) -> Send:
    """Sends Swagger's page with the digests of its scripts, which are known when its body is."""
    held: list[Message] = []

    async def send_held(message: Message) -> None:
        if message["type"] == "http.response.start":
            held.append(message)
            return
        if held:
            digests = [
                hashlib.sha256(text).digest() for text in _INLINE_SCRIPT.findall(message.get("body", b""))
            ]
            scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
            await send(_with_policy(held.pop(), _DOCUMENTATION_POLICY.format(scripts=scripts)))
        await send(message)

    return send_held
