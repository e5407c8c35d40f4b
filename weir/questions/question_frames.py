"""Frames of questions and answers: a length, the number of the question and its bytes."""

from __future__ import annotations

import asyncio
import logging
import struct

from typing_extensions import override

log = logging.getLogger(__name__)


#: Of a frame: bytes of its content, number of the question.
HEADER = struct.Struct("<IQ")


#: What one frame may have.
FRAME_BYTES_MAX = 64 << 20


class FrameBudget:
    """Bytes of frames that have begun to come, over all connections of a server; used in its event loop."""

    def __init__(self, bytes_max: int = 2 * FRAME_BYTES_MAX) -> None:
        """``bytes_max``: what they may have together; a connection that would bring more is closed."""
        self._bytes_max = bytes_max
        self.used_bytes = 0

    def take(self, more_bytes: int) -> bool:
        """Note that so many more have come, or fewer; False: they are too many."""
        self.used_bytes += more_bytes
        return self.used_bytes <= self._bytes_max


class Framed(asyncio.Protocol):
    """Cuts what comes into frames."""

    def __init__(self, budget: FrameBudget | None = None) -> None:
        self._buffer = bytearray()
        self._budget = budget
        #: Of what the budget has noted for this connection.
        self._noted_bytes = 0
        self.transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            # Of a connection that is being closed, the loop may still bring some.
            return
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            length, number = HEADER.unpack_from(self._buffer, start)
            if length > FRAME_BYTES_MAX:
                self.close()
                return
            stop = start + HEADER.size + length
            if len(self._buffer) < stop:
                break
            content = bytes(self._buffer[start + HEADER.size : stop])
            start = stop
            self.frame_received(number, content)
        del self._buffer[:start]
        self._note()

    def _note(self) -> None:
        """What is kept counts against the budget of the server."""
        if self._budget is None:
            return
        more_bytes, self._noted_bytes = len(self._buffer) - self._noted_bytes, len(self._buffer)
        if more_bytes and not self._budget.take(more_bytes) and more_bytes > 0:
            log.warning("a connection is closed: frames that have begun have too many bytes together")
            self._forget()
            self.close()

    def _forget(self) -> None:
        self._buffer.clear()
        if self._budget is not None:
            self._budget.take(-self._noted_bytes)
            self._noted_bytes = 0

    def frame_received(self, number: int, content: bytes) -> None:
        """A whole frame has come."""
        raise NotImplementedError

    @property
    def is_closed(self) -> bool:
        """Return whether nothing can be sent, or not any more."""
        return self.transport is None or self.transport.is_closing()

    def send(self, number: int, content: bytes) -> None:
        """Send a frame; nothing happens if the connection is closed."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(HEADER.pack(len(content), number) + content)

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()
