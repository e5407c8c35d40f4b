"""Free ports of this machine."""

from __future__ import annotations

import socket
from collections import deque

#: The last ones of :func:`free_port`; few of all that there are.
_ports_given: deque[int] = deque(maxlen=1000)


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1 at this port; connections that are just closing do not hinder it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port that was free a moment ago, and that was not given to anybody lately: who got it may not use it yet."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _ports_given:
            _ports_given.append(port)
            return port
