"""Free ports of this machine."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from pathlib import Path

#: ``INDEX/COUNT``: this process is one of COUNT that ask for ports at the same time, and each takes only its share.
SHARE_VARIABLE = "PORTS_SHARE"

_SYSTEM_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Linux's default, below that of others.
_SYSTEM_PORT_MIN = 32_768
_PORT_MIN = 10_000

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
    """A port that was free a moment ago, and that was not given to anybody lately: who got it may not use it yet.

    The system hands none of these out by itself, so no connection takes one before its server does.
    """
    index, count = map(int, os.environ.get(SHARE_VARIABLE, "0/1").split("/"))
    ports = range(_PORT_MIN, _system_port_min())
    while True:
        port = random.choice(ports)
        if port % count == index and port not in _ports_given and is_free(port):
            _ports_given.append(port)
            return port


def _system_port_min() -> int:
    """The lowest port that the system chooses for who asks for any."""
    try:
        lowest = int(_SYSTEM_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _SYSTEM_PORT_MIN
    return lowest if lowest >= 2 * _PORT_MIN else _SYSTEM_PORT_MIN
