"""HTTP connections that say nothing: they are ended, and never take the place of one that asks something."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

#: Connections of a server; each costs a descriptor, of which a process may have only 1,024.
CONNECTIONS_MAX = 256
#: For the address and headers of a request, from when the connection is there or their first byte.
HEAD_S = 10.0
#: Accepted at a time, before anybody can look at them; and how many more the system keeps: others have to try again,
#: after a second.
BACKLOG, _QUEUE = 128, 1_024
_FULL = 503
_BODY = b'{"error":"too many connections; close some, or try again"}'


def lengthen_queue(sockets: Iterable[socket.socket] | None) -> None:
    """Let the system keep more connections than are accepted at a time; called when a server has begun to listen."""
    for each in sockets or ():
        each.listen(_QUEUE)


class PatientProtocol(HttpToolsProtocol):
    """Bounds what connections take that ask nothing."""

    _silence: asyncio.TimerHandle | None = None
    since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._end_silence()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._end_silence()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        """End the connection if no head is complete in time; from its first byte on, if called again."""
        if self._silence is None:
            self.since_s = self.loop.time()
            self._silence = self.loop.call_later(HEAD_S, self._give_up)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _give_up(self) -> None:
        self._silence = None
        self.give_way()

    @property
    def asks_nothing(self) -> bool:
        """Return whether no request is being answered or has come whole."""
        return self._silence is not None or self.timeout_keep_alive_task is not None

    def give_way(self) -> None:
        """End this connection at once: another one needs its place."""
        self.connections.discard(self)
        self._end_silence()
        self.transport.abort()

    def _make_room(self) -> None:
        """End the connection that has asked nothing for the longest time; where all ask something, this one."""
        others = cast("Iterable[PatientProtocol]", self.connections)
        idle = [each for each in others if each is not self and each.asks_nothing]
        if idle:
            oldest = min(idle, key=lambda each: each.since_s)
            oldest.give_way()
            return
        length = b"content-length: %d\r\n" % len(_BODY)
        head = (
            STATUS_LINE[_FULL] + b"content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
        )
        self.transport.write(head + length + b"\r\n" + _BODY)
        self.transport.close()
