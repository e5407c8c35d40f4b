"""Free ports of this machine."""

from __future__ import annotations

import os
import socket
from collections import deque

#: ``INDEX/COUNT``: this process is one of COUNT that ask for ports at the same time, and each takes only its share.
SHARE_VARIABLE = "PORTS_SHARE"

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
    index, count = map(int, os.environ.get(SHARE_VARIABLE, "0/1").split("/"))
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        # The system tends to hand out only even ports: whose share it is, is told by what is above the last bit.
        if port not in _ports_given and port // 2 % count == index:
            _ports_given.append(port)
            return port
