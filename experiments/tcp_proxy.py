"""A TCP proxy that can be cut: what is behind it stays silent meanwhile, as behind a broken network."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

_CHUNK_BYTES = 1 << 16
_CONNECT_TIMEOUT_S = 2.0


class TcpProxy:
    """Listens on a free port of 127.0.0.1 and passes bytes to another one; use as a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        """From now on nothing passes, in either direction; connections stay open, and nobody is told."""
        self._open.clear()

    def mend(self) -> None:
        """Pass everything on again, also what was sent meanwhile."""
        self._open.set()

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._closed = True
        self._open.set()
        # A plain close would not wake the thread that accepts.
        for item in (self._listener, *self._now()):
            _shut(item)

    def _now(self) -> list[socket.socket]:
        with self._lock:
            return list(self._sockets)

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), name="proxy", daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(self._target, _CONNECT_TIMEOUT_S)
        except OSError:
            _shut(near)
            return
        far.settimeout(None)
        with self._lock:
            self._sockets |= {near, far}
        threading.Thread(target=self._pass_on, args=(near, far), name="proxy", daemon=True).start()
        self._pass_on(far, near)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK_BYTES):
                self._open.wait()
                target.sendall(data)
        except OSError:
            pass
        # The end of a connection does not pass through a cut either.
        self._open.wait()
        for item in (source, target):
            _shut(item)
        with self._lock:
            self._sockets -= {source, target}


def _shut(item: socket.socket) -> None:
    with contextlib.suppress(OSError):
        item.shutdown(socket.SHUT_RDWR)
    item.close()
