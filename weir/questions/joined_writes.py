"""HTTP connections on which the head of an answer and its body leave as one write, and questions need no task.

Uvicorn writes them one after the other: two system calls, and a caller that is woken twice. On a busy machine each of
them costs about as much as everything else that is done for a question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from weir.questions.silent_connections import PatientProtocol

#: Status, headers and body.
Response = tuple[int, list[tuple[bytes, bytes]], bytes]
#: Takes a response; None: it takes the application.
Done = Callable[[Response | None], None]
Begin = Callable[[Any, Done], Callable[[], None] | None]
_HEAD = b"HTTP/1.1 "
#: Of a request: its line and headers.
_REQUEST_HEAD_BYTES_MAX = 64 << 10
_TOO_LARGE = 431


class JoinedWrites:
    """A transport that keeps the head of an answer for the write that follows, until the loop's next turn at most."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write data, as a transport does."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD) and data.endswith(b"\r\n\r\n"):
            self._head = data
            # An answer to HEAD has no body, and one that is streamed may have none for long.
            self._loop.call_soon(self._send_head)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close, as a transport does: after what was written."""
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class JoiningProtocol(PatientProtocol):
    """The protocol for ``uvicorn.Config(http=...)``."""

    def __init__(self, *args: Any, begin: Begin | None = None, **kwargs: Any) -> None:
        """``begin``: takes some requests before the application does; see ``StatePages.begin``."""
        super().__init__(*args, **kwargs)
        self._begin = begin
        self._take_back: Callable[[], None] | None = None
        #: What has come of a request after the piece in which its head began; None: no head is incomplete.
        self._head_bytes: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop."""
        super().connection_made(transport)
        self.transport = JoinedWrites(transport, self.loop)  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Called by the loop; a head that does not end is kept in memory until it does, and so has a bound."""
        was_incomplete = self._head_bytes is not None
        super().data_received(data)
        if self._head_bytes is not None:
            self._await_head()
        if not was_incomplete or self._head_bytes is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > _REQUEST_HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse_head()

    def _unsupported_upgrade_warning(self) -> None:
        """A caller that could also speak HTTP/2 or more, as Java's says with each request, is answered in HTTP/1.1."""

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._head_bytes = None
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()
        super().connection_lost(exc)

    def _refuse_head(self) -> None:
        told = f"the address and headers of a request have at most {_REQUEST_HEAD_BYTES_MAX >> 10} KiB"
        body = b'{"error":"%s"}' % told.encode()
        length = b"content-length: %d\r\n\r\n" % len(body)
        head = STATUS_LINE[_TOO_LARGE] + b"content-type: application/json\r\nconnection: close\r\n" + length
        self.transport.write(head + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        is_plain = cycle.keep_alive and not cycle.waiting_for_100_continue and not self.flow.write_paused
        if self._begin is None or not is_plain:
            super()._start_asgi_task(cycle, app)
            return

        def done(response: Response | None) -> None:
            self._take_back = None
            if response is None:
                super(JoiningProtocol, self)._start_asgi_task(cycle, app)
            else:
                self._respond(cycle, *response)

        self._take_back = self._begin(cycle.scope, done)
        if self._take_back is None:
            super()._start_asgi_task(cycle, app)

    def _respond(
        self, cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Send a whole answer, as ``cycle.send`` does, in one piece."""
        lines = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            # The server is about to end.
            lines.append(b"connection: close\r\n")
        self.transport.write(b"".join((*lines, b"\r\n", body)))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
