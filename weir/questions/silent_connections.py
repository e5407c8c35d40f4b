"""HTTP connections that say nothing: they are ended, and never take the place of one that asks something."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from weir.process.newcomers import Newcomers

#: Connections of a server; each costs a descriptor, of which a process may have only 1,024.
CONNECTIONS_MAX = 256
#: For the address and headers of a request, from when the connection is there or their first byte. One of which no
#: more of a body comes, or that takes no more of an answer, for so long gives way to others.
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
    #: When a part of a request came last, and since when the other end takes no more of an answer; None: it does.
    _came_s = 0.0
    _full_since_s: float | None = None

    def __init__(self, *args: Any, newcomers: Newcomers | None = None, **kwargs: Any) -> None:
        """``newcomers``: of the socket that listens; a connection is one until it is encrypted."""
        super().__init__(*args, **kwargs)
        self._newcomers = newcomers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop."""
        super().connection_made(transport)
        if self._newcomers is not None:
            self._newcomers.proved(transport.get_extra_info("socket").fileno())
        self._await_head()
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._end_silence()
        self._came_s = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._came_s = self.loop.time()
        super().on_body(body)

    def pause_writing(self) -> None:
        """Called by the loop: what is to be sent waits."""
        self._full_since_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Called by the loop: the other end has taken some."""
        self._full_since_s = None
        super().resume_writing()

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
        """Whether no request is being answered or has come whole."""
        return self._silence is not None or self.timeout_keep_alive_task is not None

    @property
    def stuck_since_s(self) -> float | None:
        """Since when the other end neither sends the rest of its request nor takes the answer; None: it does."""
        if self._full_since_s is not None:
            return self._full_since_s
        cycle = self.cycle
        return None if cycle is None or cycle.response_complete or not cycle.more_body else self._came_s

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
        late_s = self.loop.time() - HEAD_S
        stuck = [
            (since_s, each)
            for each in others
            if (since_s := each.stuck_since_s) is not None and since_s < late_s
        ]
        if stuck:
            min(stuck, key=lambda found: found[0])[1].give_way()
            return
        length = b"content-length: %d\r\n" % len(_BODY)
        head = (
            STATUS_LINE[_FULL] + b"content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
        )
        self.transport.write(head + length + b"\r\n" + _BODY)
        self.transport.close()
