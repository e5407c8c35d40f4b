"""Tokens of HTTP: who may look, and who may operate; and the audit log of what was done.

Where a process has certificates, each request but ``/healthz`` needs a token: ``Authorization: Bearer ...`` of
programs, a cookie of browsers, which the page ``/login`` sets. Without certificates all who reach the port may do all,
as the guard lets them; the audit log is written in both cases.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.clock import Clock, SystemClock
from weir.process.log_tail import AUDIT_LOGGER
from weir.questions.guard import CHANGING_PATHS
from weir.redaction import redacted_text
from weir.security.tokens import Right, Tokens

log = logging.getLogger(AUDIT_LOGGER)

LOGIN_PATH = "/login"
_COOKIE = "weir_token"
_COOKIE_S = 12 * 3600
#: Pages that need no token.
_OPEN_PATHS = frozenset({"/healthz", LOGIN_PATH})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM_BYTES_MAX = 4096
#: For the token of somebody who logs in.
_FORM_S = 10.0
_SHOWN_MAX = 300
#: In the scope of a request: what the caller may do.
_RIGHT = "weir.right"
#: Who brings no token that is right.
_STRANGER = "token none"
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Weir</title>
<meta name="viewport" content="width=device-width">
<h1>Weir</h1><form method="post" action="/login"><p><label>Token (look.token or operate.token)
<input name="token" type="password" autocomplete="current-password" required autofocus></label>
<button>Open</button></p><p>{}</p></form></html>"""


class Audit:
    """Writes actions to the log, and to a file if there is to be one."""

    def __init__(self, path: str = "", clock: Clock | None = None) -> None:
        """``path``: of the file; "": none."""
        self._path = Path(path) if path else None
        self._clock = clock or SystemClock()

    def note(self, who: str, client: str, method: str, target: str, status: int) -> None:
        """Write that somebody has done something, or was refused.

        Strangers do not get to the file, which they could fill a disk with; the log cuts floods.
        """
        shown = redacted_text(target)[:_SHOWN_MAX]
        # Of another level, so that a flood of them cuts none of the others.
        level = logging.WARNING if who == _STRANGER else logging.INFO
        log.log(level, "%s at %s: %s %s: %d", who, client, method, shown, status)
        if self._path is None or who == _STRANGER:
            return
        entry = {
            "time_ms": self._clock.now_us() // 1000,
            "who": who,
            "client": client,
            "method": method,
            "target": shown,
            "status": status,
        }
        line = json.dumps(entry).encode() + b"\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            log.error("security.audit_file %s cannot be written: %s", self._path, error.strerror)


def right_of(scope: Mapping[str, Any]) -> Right:
    """What the caller of a request may do, for pages that show more to some; ``AccessMiddleware`` has found it out."""
    right = scope.get(_RIGHT, Right.NONE)
    return right if isinstance(right, Right) else Right.NONE


class AccessMiddleware:
    """Comes after the guard and before everything else."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None, audit: Audit) -> None:
        """``tokens``: None: none are needed."""
        self._app, self._tokens, self._audit = app, tokens, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server for every request."""
        if scope["type"] != "http":
            if self._tokens is None:
                await self._app(scope, receive, send)
            return
        path, method = scope["path"].rstrip("/"), scope["method"]
        changes = method not in _SAFE_METHODS or path in CHANGING_PATHS
        if self._tokens is None:
            scope[_RIGHT] = Right.OPERATE
            await self._audited(scope, receive, send, "anyone", changes=changes)
            return
        if path == LOGIN_PATH:
            await self._log_in(scope, receive, send)
            return
        right = scope[_RIGHT] = self._tokens.right_of(_token_of(Headers(scope=scope)))
        needed = Right.NONE if path in _OPEN_PATHS else Right.OPERATE if changes else Right.LOOK
        if right >= needed:
            await self._audited(scope, receive, send, f"token {right.name.lower()}", changes=changes)
            return
        refusal = _refusal(scope, right)
        if changes or right is not Right.NONE:
            self._audit.note(
                f"token {right.name.lower()}", _client(scope), method, _target(scope), refusal.status_code
            )
        await refusal(scope, receive, send)

    async def _audited(self, scope: Scope, receive: Receive, send: Send, who: str, *, changes: bool) -> None:
        if not changes:
            await self._app(scope, receive, send)
            return

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._audit.note(who, _client(scope), scope["method"], _target(scope), message["status"])
            await send(message)

        await self._app(scope, receive, send_noted)

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._tokens is not None
        if scope["method"] != "POST":
            await HTMLResponse(_FORM.format(""))(scope, receive, send)
            return
        try:
            async with asyncio.timeout(_FORM_S):
                body = await _body(receive)
        except TimeoutError:
            body = b""
        given = parse_qs(body.decode(errors="replace")).get("token", [""])[0]
        right = self._tokens.right_of(given.strip())
        answer: Response
        if right is Right.NONE:
            answer = HTMLResponse(_FORM.format("This is no token of this job."), 401)
        else:
            answer = RedirectResponse("/", 303)
            answer.set_cookie(
                _COOKIE, given.strip(), _COOKIE_S, httponly=True, secure=True, samesite="strict"
            )
        self._audit.note(
            f"token {right.name.lower()}", _client(scope), "POST", LOGIN_PATH, answer.status_code
        )
        await answer(scope, receive, send)


def _refusal(scope: Scope, right: Right) -> Response:
    wants_page = "text/html" in Headers(scope=scope).get("accept", "")
    if right is Right.LOOK:
        return JSONResponse({"error": "this token may look only; use the one in operate.token"}, 403)
    if wants_page and scope["method"] == "GET":
        return RedirectResponse(LOGIN_PATH, 303)
    told = "a token is needed: 'Authorization: Bearer TOKEN' with what is in look.token or operate.token"
    return JSONResponse({"error": told}, 401, {"www-authenticate": "Bearer"})


def _token_of(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    # Python's SimpleCookie stops at what another server of the same host may have set, as JSON.
    return cookie_parser(headers.get("cookie", "")).get(_COOKIE, "")


async def _body(receive: Receive) -> bytes:
    body = b""
    while len(body) < _FORM_BYTES_MAX:
        message = await receive()
        if message["type"] != "http.request":
            break
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body[:_FORM_BYTES_MAX]


def _client(scope: Scope) -> str:
    host, port = scope.get("client") or ("?", 0)
    return f"{host}:{port}"


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode(errors="replace")
    return f"{scope['path']}?{query}" if query else str(scope["path"])
