"""Calls to a control plane that come every second, over plain connections: see ``weir.rpc.frequent_calls``."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TypeVar

import grpc

from weir.questions.link import FRAME_BYTES_MAX, HEADER
from weir.rpc.frequent_calls import FrequentCall, Message, call_frame, reply_from
from weir.security.identity import current
from weir.security.roles import Role
from weir.types import Address

_CONNECT_S = 1.0
_READ_BYTES = 65_536

Reply = TypeVar("Reply", bound=Message)


class LateError(grpc.RpcError):
    """No answer came in time, as a call over gRPC tells it."""

    def code(self) -> grpc.StatusCode:
        """Return the status code, as a call of gRPC does."""
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self) -> str:
        """Return the details, as a call of gRPC does."""
        return "it did not answer in time"


class FrequentCalls:
    """Calls to one control plane; any thread calls, and blocks meanwhile; callers at once have a connection each."""

    def __init__(self, place: Address, greeting: bytes) -> None:
        """Connect nothing yet; ``greeting`` is what each connection begins with."""
        self._place = place
        self._greeting = greeting
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        #: The place can be reached, as far as is known.
        self._is_open = True

    def call(self, call: FrequentCall, request: Message, kind: type[Reply], timeout_s: float) -> Reply | None:
        """The reply; None: the call must be made over gRPC, since it is refused here, or the connection is lost.

        Raises:
            LateError: nobody answered in time.
        """
        connection = self._connection()
        if connection is None:
            return None
        content = call_frame(call, request)
        try:
            connection.settimeout(timeout_s)
            connection.sendall(HEADER.pack(len(content), 0) + content)
            answer = _read_frame(connection)
        except TimeoutError as error:
            connection.close()
            raise LateError from error
        except OSError:
            connection.close()
            return None
        self._keep(connection)
        return reply_from(kind, answer)

    def close(self) -> None:
        """Close all connections; calls that come later are to be made over gRPC."""
        with self._lock:
            self._is_open = False
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self) -> socket.socket | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if not self._is_open:
                return None
        try:
            connection = _connect(self._place)
        except OSError:
            # Perhaps a firewall lets other ports through only, which costs time with each try.
            self.close()
            return None
        with contextlib.suppress(OSError):  # The call fails in the same way.
            connection.sendall(self._greeting)
        return connection

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            if self._is_open:
                self._idle.append(connection)
                return
        connection.close()


def _connect(place: Address) -> socket.socket:
    """A connection, encrypted if this process has certificates.

    Raises:
        OSError: nobody answers, or it proves nothing.
    """
    connection = socket.create_connection((place.host, place.port), _CONNECT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = current().tls
        if tls is None:
            return connection
        return tls.calling().wrap_socket(connection, server_hostname=Role.CONTROL_PLANE.server_name)
    except OSError:
        connection.close()
        raise


def _read_frame(connection: socket.socket) -> bytes:
    """The content of the next frame, which comes in one piece mostly.

    Raises:
        TimeoutError: nothing came for as long as the connection may take.
        ConnectionError: the connection is lost, or brings what is no frame.
    """
    found = bytearray()
    wanted = HEADER.size
    while len(found) < wanted:
        piece = connection.recv(_READ_BYTES)
        if not piece:
            raise ConnectionResetError
        found += piece
        if len(found) >= HEADER.size:
            length, _ = HEADER.unpack_from(found)
            if length > FRAME_BYTES_MAX:
                raise ConnectionAbortedError
            wanted = HEADER.size + length
    if len(found) > wanted:
        raise ConnectionAbortedError
    return bytes(found[HEADER.size :])
