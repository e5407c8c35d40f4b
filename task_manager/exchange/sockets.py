"""The connections of links: who may begin one, and frames to and from their bytes.

Between processes of one machine a link is a Unix socket: each byte costs a third less than by TCP.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from task_manager.exchange.frames import SIZES
from task_manager.exchange.tunnels import TunnelSocket, client_tunnel
from weir.errors import AddressInUseError, HandshakeError
from weir.types import join_address

#: The first bytes of a connection; the secret follows, which is told over gRPC.
_MAGIC = b"weir-link-1\n"
_SECRET_BYTES = 32
GREETING_BYTES = len(_MAGIC) + _SECRET_BYTES
#: Buffers that one call may send.
_PIECES_MAX = 512
#: What is read at once, and the largest frame that is copied out of it.
_READ_BYTES = 64 << 10


def new_greeting() -> bytes:
    """Returns the bytes with which a connection to this process must begin."""
    return _MAGIC + secrets.token_bytes(_SECRET_BYTES)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; ``port`` 0: any free one.

    Raises:
        AddressInUseError: the port is taken.
    """
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise AddressInUseError(
            f"cannot listen on {join_address(host, port)} for rows of other task managers: {error.strerror}; "
            "choose another taskManager.exchange_port"
        ) from error


def listen_locally() -> tuple[socket.socket, str] | None:
    """A Unix socket that takes connections of this machine, and its name; None: there are no such sockets here.

    An abstract one: nothing of it is left when the process is gone, however that ended. Nobody else can have taken the
    name, because nobody can guess it.
    """
    if sys.platform != "linux":
        return None
    name = f"weir-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(f"\0{name}")
        listening.listen(128)
    except OSError:
        listening.close()
        return None
    return listening, name


def dial(
    host: str, port: int, greeting: bytes, timeout_s: float, local_name: str = "", shared: int | None = None
) -> socket.socket:
    """A connection to a socket of :func:`listen`, or to one of :func:`listen_locally` where that is on this machine.

    ``shared``: descriptor of a file that goes with the greeting, on this machine only (:func:`is_local`).

    Raises:
        OSError: nobody answers.
    """
    connected = _dial_locally(local_name, timeout_s) if local_name else None
    if connected is None:
        connected = socket.create_connection((host.removeprefix("[").removesuffix("]"), port), timeout_s)
    try:
        send_at_once(connected)
        connected = connected if is_local(connected) else client_tunnel(connected)
        sent = 0
        if shared is not None and is_local(connected):
            sent = socket.send_fds(connected, [greeting], [shared])
        connected.sendall(greeting[sent:])
    except OSError:
        connected.close()
        raise
    connected.settimeout(None)
    return connected


def _dial_locally(name: str, timeout_s: float) -> socket.socket | None:
    """A connection to a socket of :func:`listen_locally`; None: it is on another machine, or in another container."""
    if sys.platform != "linux":
        return None
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        connected.connect(f"\0{name}")
    except OSError:
        connected.close()
        return None
    return connected


def is_local(connected: socket.socket) -> bool:
    """Return whether the other end is surely on this machine."""
    is_unix = sys.platform == "linux" and connected.family == socket.AF_UNIX
    return is_unix and not isinstance(connected, TunnelSocket)


def receive_greeting(connected: socket.socket) -> tuple[bytes, int | None]:
    """What a connection begins with, cut off where the other end hangs up, and the descriptor that came with it.

    Nothing after it is read. The caller closes the descriptor.

    Raises:
        OSError: the connection is broken.
    """
    greeting, descriptors = b"", []
    try:
        while len(greeting) < GREETING_BYTES:
            wanted = GREETING_BYTES - len(greeting)
            if is_local(connected):
                data, found, _, _ = socket.recv_fds(connected, wanted, 1, socket.MSG_CMSG_CLOEXEC)
                descriptors += found
            else:
                data = connected.recv(wanted)
            if not data:
                break
            greeting += data
    except OSError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    return greeting, descriptors[0] if descriptors else None


def send_at_once(connected: socket.socket) -> None:
    """Let small messages not wait for others, where the kernel would do so."""
    if connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send_some(connected: socket.socket, data: bytes) -> bytes:
    """Send what goes without waiting; returns the rest.

    Raises:
        OSError: the connection is broken.
    """
    try:
        return data[connected.send(data, socket.MSG_DONTWAIT) :]
    except BlockingIOError:
        return data


def send_all(connected: socket.socket, pieces: Sequence[bytes | pa.Buffer]) -> None:
    """Send pieces one after the other; waits for the other end to read.

    Raises:
        OSError: the connection is broken.
    """
    views = [memoryview(piece) for piece in pieces if len(piece)]
    while views:
        sent = connected.sendmsg(views[:_PIECES_MAX])
        whole = 0
        while whole < len(views) and sent >= len(views[whole]):
            sent -= len(views[whole])
            whole += 1
        views = views[whole:]
        if sent:
            views[0] = views[0][sent:]


def hang_up(connected: socket.socket) -> None:
    """End both directions, so that no thread waits at the connection any more; each end's reader closes its socket."""
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The other end was faster.
        return


class FrameReader:
    """Reads frames of one connection; used by one thread."""

    def __init__(self, connected: socket.socket, frame_bytes_max: int) -> None:
        """``frame_bytes_max``: a head and a body that claim to be larger together end the connection."""
        self._connected = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._frame_bytes_max = frame_bytes_max
        self._view = memoryview(bytearray(_READ_BYTES))
        #: :meth:`read_some` has seen that the other end has hung up.
        self.has_ended = False
        #: What was read and not taken yet is between these.
        self._begin = self._end = 0

    def await_some(self) -> None:
        """Sleep until something comes, or the other end hangs up; where this process mostly writes.

        A thread that waits in a read of a Unix socket is woken whenever the other end takes what was written; one that
        polls is not.
        """
        if self._begin == self._end:
            self._poll.poll()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was read that was not taken."""
        return self._begin == self._end

    def read_some(self, wait_s: float) -> bool:
        """Read what is here, or comes in so many seconds (to the ms); False: nothing, or the other end has hung up.

        For :meth:`take_whole`; only while whole frames were taken, so that there is room.

        Raises:
            OSError: the connection is broken.
        """
        if wait_s > 0 and not self._poll.poll(wait_s * 1e3):
            return False
        if self._begin == self._end:
            self._begin = self._end = 0
        try:
            read = self._connected.recv_into(self._view[self._end :], 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        self._end += read
        self.has_ended = read == 0
        return read > 0

    def take_whole(self) -> tuple[bytes, pa.Buffer | None] | None:
        """Return a frame that was read, as :meth:`read`; None: the next one is not all here. Never waits.

        Raises:
            HandshakeError: the frame is too large.
        """
        here_bytes = self._end - self._begin
        if here_bytes < SIZES.size:
            return None
        head_bytes, body_bytes = SIZES.unpack_from(self._view, self._begin)
        return self.read() if SIZES.size + head_bytes + body_bytes <= here_bytes else None

    def read(self) -> tuple[bytes, pa.Buffer | None] | None:
        """The next head, and the body if it has one; None: the other end has hung up.

        Raises:
            OSError: the connection is broken.
            HandshakeError: the frame is too large.
        """
        if not self._fill(SIZES.size):
            return None
        head_bytes, body_bytes = SIZES.unpack_from(self._view, self._begin)
        if head_bytes + body_bytes > self._frame_bytes_max:
            raise HandshakeError(
                f"a frame of {head_bytes + body_bytes} bytes is larger than a message may be"
            )
        whole_bytes = SIZES.size + head_bytes + body_bytes
        if whole_bytes <= _READ_BYTES:
            return self._read_small(whole_bytes, head_bytes)
        self._begin += SIZES.size
        head = self.read_exactly(head_bytes) if head_bytes <= _READ_BYTES else self._read_large(head_bytes)
        if head is None:
            return None
        if not body_bytes:
            return bytes(head), None
        body = self.read_exactly(body_bytes) if body_bytes <= _READ_BYTES else self._read_large(body_bytes)
        return None if body is None else (bytes(head), pa.py_buffer(body))

    def _read_small(self, whole_bytes: int, head_bytes: int) -> tuple[bytes, pa.Buffer | None] | None:
        """A frame that one read may bring."""
        if self._end - self._begin < whole_bytes and not self._fill(whole_bytes):
            return None
        head_at = self._begin + SIZES.size
        body_at, self._begin = head_at + head_bytes, self._begin + whole_bytes
        head = bytes(self._view[head_at:body_at])
        # Bytes of their own are aligned.
        return head, pa.py_buffer(bytes(self._view[body_at : self._begin])) if self._begin > body_at else None

    def read_exactly(self, size_bytes: int) -> bytes | None:
        """So many bytes, at most those of one read, aligned; None: the other end has hung up."""
        if not self._fill(size_bytes):
            return None
        data = bytes(self._view[self._begin : self._begin + size_bytes])
        self._begin += size_bytes
        return data

    def _read_large(self, size_bytes: int) -> pa.Buffer | None:
        """More bytes than one read has, in memory of their own."""
        # Arrow's allocator would touch, and so clear, 32 MiB for the first one of a thread.
        large = np.empty(size_bytes, dtype=np.uint8)
        target = large.data
        at = self._end - self._begin
        target[:at] = self._view[self._begin : self._end]
        self._begin = self._end = 0
        while at < size_bytes:
            read = self._connected.recv_into(target[at:])
            if not read:
                return None
            at += read
        return pa.py_buffer(large)

    def _fill(self, size_bytes: int) -> bool:
        """Have so many bytes at hand, at most ``_READ_BYTES``; False: the other end has hung up."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin + size_bytes > _READ_BYTES:
            left = self._end - self._begin
            self._view[:left] = bytes(self._view[self._begin : self._end])
            self._begin, self._end = 0, left
        while self._end - self._begin < size_bytes:
            read = self._connected.recv_into(self._view[self._end :])
            if not read:
                return False
            self._end += read
        return True
