"""Links between machines, encrypted: a thread moves bytes between a connection with TLS and a pair of sockets.

The parts of a link write with ``sendmsg`` and read without waiting, from several threads, which no connection of
Python's ``ssl`` can do. So they keep a plain socket, whose other end never leaves this process.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable
from functools import cache

from weir.security.identity import Identity, current
from weir.security.roles import Role
from weir.security.tls_files import TlsFiles

_PIECE_BYTES = 256 << 10
#: A kind of event is waited for until the other one has come: in one direction.
_READ, _WRITE = select.POLLIN, select.POLLOUT


class TunnelSocket(socket.socket):
    """The end of a pair that a link uses; its other end leads to another machine."""


def client_tunnel(connected: socket.socket, identity: Identity | None = None) -> socket.socket:
    """Encrypt a connection that this process began, if it has certificates; the peer must be a task manager.

    ``identity``: None: that of this process.

    Raises:
        OSError: the other end proves nothing, or not in the time that the connection may take.
    """
    tls = (identity or current()).tls
    if tls is None:
        return connected
    context = tls.calling()
    secure = context.wrap_socket(connected, server_hostname=Role.TASK_MANAGER.server_name)
    return _begin(secure)


def server_tunnel(
    connected: socket.socket,
    identity: Identity | None = None,
    begun: Callable[[socket.socket], None] = lambda _: None,
) -> socket.socket:
    """Encrypt a connection that another process began, if this one has certificates.

    Args:
        connected: the connection; it is of no use any more.
        identity: None: that of this process.
        begun: called with the socket that has the connection from then on, before the other end has proved anything.

    Raises:
        OSError: as of :func:`client_tunnel`.
    """
    tls = (identity or current()).tls
    if tls is None or connected.family == socket.AF_UNIX:
        return connected
    secure = _serving(tls).wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
    begun(secure)
    try:
        secure.do_handshake()
    except OSError:
        secure.close()
        raise
    return _begin(secure)


@cache
def _serving(tls: TlsFiles) -> ssl.SSLContext:
    """Return the context of all links of a process; it is renewed in place."""
    return tls.serving()


def _begin(secure: ssl.SSLSocket) -> socket.socket:
    ours, theirs = socket.socketpair()
    link = TunnelSocket(fileno=ours.detach())
    link.settimeout(secure.gettimeout())
    for each in (secure, theirs):
        each.setblocking(False)
    threading.Thread(target=_pump, args=(theirs, secure), name="encryption of a link", daemon=True).start()
    return link


class _Direction:
    """Bytes on their way from one end to the other."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source, self._target = source, target
        self._view = memoryview(bytearray(_PIECE_BYTES))
        self._begin = self._end = 0
        #: What has to happen at which socket before more can move.
        self.waits: tuple[socket.socket, int] = (source, _READ)
        self.has_ended = False

    def move(self) -> bool:
        """Move what goes without waiting; False: nothing did."""
        moved = False
        while not self.has_ended:
            try:
                if self._begin == self._end:
                    self.waits = self._source, _READ
                    self._begin, self._end = 0, self._source.recv_into(self._view)
                    self.has_ended = self._end == 0
                else:
                    self.waits = self._target, _WRITE
                    self._begin += self._target.send(self._view[self._begin : self._end])
            except ssl.SSLWantReadError:
                self.waits = self.waits[0], _READ
                return moved
            except ssl.SSLWantWriteError:
                self.waits = self.waits[0], _WRITE
                return moved
            except BlockingIOError:
                return moved
            moved = True
        return moved


def _pump(plain: socket.socket, secure: ssl.SSLSocket) -> None:
    """Move bytes in both directions until either end hangs up."""
    out, back = _Direction(plain, secure), _Direction(secure, plain)
    try:
        while not (out.has_ended or back.has_ended):
            if out.move() | back.move():
                continue
            events: dict[int, int] = {}
            for found, event in (out.waits, back.waits):
                events[found.fileno()] = events.get(found.fileno(), 0) | event
            poll = select.poll()
            for descriptor, event in events.items():
                poll.register(descriptor, event)
            poll.poll()
    except OSError:
        # The link's own reader sees that its end is closed.
        pass
    finally:
        for each in (plain, secure):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
