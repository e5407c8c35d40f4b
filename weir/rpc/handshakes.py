"""Connections to a server of gRPC that came to nothing, because the other end has no certificate that is right.

gRPC itself tells nobody of them. Its server asks for the certificates whenever a connection begins, and each caller
makes a call at once: whoever has begun and made none is told of in the log, by number.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

log = logging.getLogger("weir.access")

#: So long may a connection take until its first call.
_PATIENCE_S = 5.0
_PEERS_MAX = 4096


class Handshakes:
    """Counts of one server; any thread may tell."""

    def __init__(self, address: str = "") -> None:
        """``address``: of the server, for the log; set when it listens."""
        self.address = address
        self._lock = threading.Lock()
        #: Connections that have begun and made no call yet; those of the last round are late.
        self._fresh = self._late = 0
        self._peers: OrderedDict[str, None] = OrderedDict()
        self._timer: threading.Timer | None = None

    def began(self) -> None:
        """Note that a connection begins."""
        with self._lock:
            self._fresh += 1
            if self._timer is None:
                self._start_timer()

    def called(self, peer: str) -> None:
        """Note that a connection makes a call; ``peer``: as gRPC names it."""
        if peer in self._peers:
            return
        with self._lock:
            self._peers[peer] = None
            if len(self._peers) > _PEERS_MAX:
                self._peers.popitem(last=False)
            if self._late:
                self._late -= 1
            elif self._fresh:
                self._fresh -= 1

    def _start_timer(self) -> None:
        self._timer = threading.Timer(_PATIENCE_S, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        with self._lock:
            refused, self._late, self._fresh = self._late, self._fresh, 0
            self._timer = None
            if self._late:
                self._start_timer()
        if refused:
            log.warning(
                "refused %d connection(s) to %s: no certificate, one of another authority, or one that has expired",
                refused,
                self.address,
            )
