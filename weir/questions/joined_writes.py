"""HTTP connections on which the head of an answer and its body leave as one write.

Uvicorn writes them one after the other: two system calls, and a caller that is woken twice. On a busy machine each of
them costs about as much as everything else that is done for a question.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class JoinedWrites:
    """A transport that keeps the head of an answer for the write that follows, until the loop's next turn at most."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """As of a transport."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD) and data.endswith(b"\r\n\r\n"):
            self._head = data
            # An answer to HEAD has no body, and one that is streamed may have none for long.
            self._loop.call_soon(self._send_head)
            return
        self._transport.write(data)

    def close(self) -> None:
        """As of a transport: after what was written."""
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class JoiningProtocol(HttpToolsProtocol):
    """For ``uvicorn.Config(http=...)``."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop."""
        super().connection_made(transport)
        self.transport = JoinedWrites(transport, self.loop)  # type: ignore[assignment]
