"""Connections that have proved nothing yet: they are few and do not last, and new ones never wait for old ones.

Who has taken a certificate, a greeting or a request as proof says so. A server that only counted would be closed to
everybody by as many connections that say nothing; here the oldest of them goes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import OrderedDict
from typing import Any

from weir.clock import Clock, SystemClock

#: Of one process, and how long each may take while others come.
NEWCOMERS_MAX, PATIENCE_S = 256, 10.0


class Newcomers:
    """Those of one server, or of several; any thread may tell."""

    def __init__(self, most: int = NEWCOMERS_MAX, clock: Clock | None = None) -> None:
        """``most``: of more than these the oldest is hung up on."""
        self._most, self._clock = most, clock or SystemClock()
        self._lock = threading.Lock()
        #: By descriptor, oldest first, with the second in which they came. Some may be closed.
        self._found: OrderedDict[int, tuple[socket.socket, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def came(self, connected: socket.socket) -> None:
        """A connection was accepted."""
        number, now_s, late = connected.fileno(), self._clock.monotonic_s(), []
        with self._lock:
            # One that had this number before is closed.
            self._found.pop(number, None)
            self._found[number] = connected, now_s
            while len(self._found) > self._most or self._is_late(now_s):
                late.append(self._found.popitem(last=False)[1][0])
        for each in late:
            _hang_up(each)

    def _is_late(self, now_s: float) -> bool:
        _, since_s = next(iter(self._found.values()))
        return now_s - since_s > PATIENCE_S

    def is_now(self, number: int, connected: socket.socket) -> None:
        """Another socket has the descriptor of a connection, as one with TLS takes it over."""
        with self._lock:
            if number in self._found:
                self._found[number] = connected, self._found[number][1]

    def proved(self, number: int) -> None:
        """The connection with this descriptor has proved what it must, or ends: it counts no more."""
        with self._lock:
            self._found.pop(number, None)


class Entrance(socket.socket):
    """A socket that listens and notes who comes: for servers of asyncio, whose own code accepts."""

    def __init__(self, bound: socket.socket) -> None:
        """Take over ``bound``, which is of no use any more."""
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        #: Protocols of the server tell it who has proved something.
        self.newcomers = Newcomers()

    def accept(self) -> tuple[socket.socket, Any]:
        """As of a socket."""
        connected, address = super().accept()
        self.newcomers.came(connected)
        return connected, address


def _hang_up(connected: socket.socket) -> None:
    # Not the method of a socket with TLS, which forgets its state while another thread uses it.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
