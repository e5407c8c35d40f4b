"""Questions and answers between processes: one TCP connection for all of them, in frames, over asyncio.

A call over gRPC costs four times as much CPU, and several threads have to be woken for it. The control plane and task
managers ask; task managers answer (``task_manager.services.question_server``). A frame is a length, the number of the
question and its bytes; an empty one takes a question back. The first bytes of a connection are a secret that is told
over gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from weir.errors import ConnectionLostError
from weir.process.newcomers import PATIENCE_S, Entrance, Newcomers
from weir.security.identity import current, server_context
from weir.security.roles import Role

log = logging.getLogger(__name__)

#: Of a frame: bytes of its content, number of the question.
HEADER = struct.Struct("<IQ")
_MAGIC = b"weir-ask-1\n"
_SECRET_BYTES = 32
_GREETING_BYTES = len(_MAGIC) + _SECRET_BYTES
#: What one frame may have.
FRAME_BYTES_MAX = 64 << 20
_CONNECT_S = 2.0
#: If a question is late and nothing else has come for so long, nobody may be there.
_SILENT_S = 5.0


def new_greeting() -> bytes:
    """What connections to this process must begin with."""
    return _MAGIC + secrets.token_bytes(_SECRET_BYTES)


@dataclass(frozen=True)
class QuestionPlace:
    """Where a process takes questions; port 0: nowhere."""

    port: int = 0
    greeting: bytes = b""
    #: Where its pages are, ``host:port``; "": nowhere.
    http_address: str = ""
    #: Connections that begin with it bring calls of ``weir.rpc.frequent_calls``; empty: none do.
    calls_greeting: bytes = b""


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


class _Framed(asyncio.Protocol):
    """Cuts what comes into frames."""

    def __init__(self, budget: FrameBudget | None = None) -> None:
        self._buffer = bytearray()
        self._budget = budget
        #: Of what the budget has noted for this connection.
        self._noted_bytes = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

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
        """Whether nothing can be sent, or not any more."""
        return self.transport is None or self.transport.is_closing()

    def send(self, number: int, content: bytes) -> None:
        """Send a frame; nothing happens if the connection is closed."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(HEADER.pack(len(content), number) + content)

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()


#: A question, and what takes its answer, in the loop; returns what takes the question back.
Asked = Callable[[bytes, Callable[[bytes], None]], Callable[[], None] | None]


class AnsweringProtocol(_Framed):
    """The side that answers; one for each connection, in the event loop of its server."""

    def __init__(
        self,
        takers: Mapping[bytes, Asked],
        budget: FrameBudget | None = None,
        newcomers: Newcomers | None = None,
    ) -> None:
        """Begin.

        Args:
            takers: what takes the questions of a connection, by its greeting.
            budget: of the server.
            newcomers: of the server; they leave it with their greeting.
        """
        super().__init__(budget)
        self._takers = takers
        self._newcomers = newcomers
        self._descriptor = -1
        #: Ends a connection that does not greet.
        self._silence: asyncio.TimerHandle | None = None
        self._greeted = b""
        self._asked: Asked | None = None
        #: What takes back the questions that have no answer yet.
        self._open: dict[int, Callable[[], None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        super().connection_made(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._silence = asyncio.get_running_loop().call_later(PATIENCE_S, self.close)

    def _is_known(self) -> None:
        """The other end has greeted as it must: it may be silent now."""
        if self._newcomers is not None:
            self._newcomers.proved(self._descriptor)
        self._end_silence()

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if len(self._greeted) < _GREETING_BYTES:
            missing = _GREETING_BYTES - len(self._greeted)
            self._greeted, data = self._greeted + data[:missing], data[missing:]
            if len(self._greeted) == _GREETING_BYTES:
                for greeting, asked in self._takers.items():
                    if secrets.compare_digest(self._greeted, greeting):
                        self._asked = asked
                if self._asked is None:
                    self.close()
                    return
                self._is_known()
        if data and self._asked is not None:
            super().data_received(data)

    def frame_received(self, number: int, content: bytes) -> None:
        """A question, or one is taken back."""
        if not content:
            taken_back = self._open.pop(number, None)
            if taken_back is not None:
                taken_back()
            return
        is_answered = False

        def answer(reply: bytes) -> None:
            nonlocal is_answered
            is_answered = True
            self._open.pop(number, None)
            self.send(number, reply)

        assert self._asked is not None
        take_back = self._asked(content, answer)
        if take_back is not None and not is_answered:
            self._open[number] = take_back

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody waits for the answers any more."""
        self._end_silence()
        self._forget()
        for take_back in self._open.values():
            take_back()
        self._open.clear()


async def serve_links(takers: Mapping[bytes, Asked], entrance: Entrance) -> asyncio.Server:
    """Answer who connects to ``entrance``, in the loop that runs; ``takers``: as of :class:`AnsweringProtocol`."""
    budget, newcomers = FrameBudget(), entrance.newcomers
    return await asyncio.get_running_loop().create_server(
        lambda: AnsweringProtocol(takers, budget, newcomers), sock=entrance, ssl=server_context()
    )


#: Takes what is answered, or why nothing is; called by the loop, once.
Done = Callable[[bytes | ConnectionLostError], None]


class _AskingProtocol(_Framed):
    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        #: What takes the answer, when it is late, and after how many seconds that is.
        self._waiting: dict[int, tuple[Done, float, float]] = {}
        #: For all that wait; a timer for each takes as long as all else that is done here for a question.
        self._timer: asyncio.TimerHandle | None = None
        #: When the other side was heard last, as of the loop's clock.
        self._heard_s = self._loop.time()

    def ask(self, number: int, question: bytes, timeout_s: float, done: Done) -> None:
        """Send a question."""
        late_s = self._loop.time() + timeout_s
        self._waiting[number] = done, late_s, timeout_s
        if self._timer is None or late_s < self._timer.when():
            self._set_timer(late_s)
        self.send(number, question)

    def take_back(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        if self._waiting.pop(number, None) is not None:
            self.send(number, b"")

    def frame_received(self, number: int, content: bytes) -> None:
        self._heard_s = self._loop.time()
        self._end(number, content)

    def _set_timer(self, late_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(late_s, self._expire)

    def _expire(self) -> None:
        """Some may have taken too long; the timer is that of the first, which may have been answered."""
        self._timer = None
        now_s = self._loop.time()
        for number, (_, late_s, timeout_s) in list(self._waiting.items()):
            if late_s <= now_s:
                self.send(number, b"")
                if now_s - self._heard_s >= _SILENT_S:
                    self.close()
                self._end(number, ConnectionLostError(f"it did not answer within {timeout_s:g} s"))
        if self._waiting:
            self._set_timer(min(late_s for _, late_s, _ in self._waiting.values()))

    def _end(self, number: int, content: bytes | ConnectionLostError) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting[0](content)

    def connection_lost(self, error: Exception | None) -> None:
        for number in list(self._waiting):
            self._end(number, ConnectionLostError("the connection was closed"))
        if self._timer is not None:
            self._timer.cancel()


class QuestionLink:
    """The side that asks; used in one event loop. Connects when it is needed, and again after a loss."""

    def __init__(self, host: str, port: int, greeting: bytes) -> None:
        self._place = host, port
        self._greeting = greeting
        self._protocol: _AskingProtocol | None = None
        self._connecting = asyncio.Lock()
        self._number = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection: an answer that is late is no reason to end it, for others are on their way."""
        return self._protocol is not None and not self._protocol.is_closed

    async def ask(self, question: bytes, timeout_s: float) -> bytes:
        """What is answered.

        If the caller is cancelled, the question is taken back.

        Raises:
            ConnectionLostError: nobody answers, or not in time.
        """
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        take_back = self._send(await self._connected(), question, timeout_s, partial(_settle, future))
        try:
            return await future
        finally:
            take_back()

    def begin(self, question: bytes, timeout_s: float, done: Done) -> Callable[[], None] | None:
        """As :meth:`ask`, without a task of asyncio, each of whose steps is a turn of the loop.

        Returns:
            What takes the question back, whereupon ``done`` is not called; None: there is no connection yet, for which
            it takes ``ask``.
        """
        protocol = self._protocol
        if protocol is None or protocol.is_closed:
            return None
        return self._send(protocol, question, timeout_s, done)

    def _send(
        self, protocol: _AskingProtocol, question: bytes, timeout_s: float, done: Done
    ) -> Callable[[], None]:
        self._number += 1
        number = self._number
        protocol.ask(number, question, timeout_s, done)
        return partial(protocol.take_back, number)

    async def _connected(self) -> _AskingProtocol:
        protocol = self._protocol
        if protocol is not None and not protocol.is_closed:
            return protocol
        async with self._connecting:
            protocol = self._protocol
            if protocol is not None and not protocol.is_closed:
                return protocol
            host, port = self._place
            tls = current().tls
            context = None if tls is None else tls.calling()
            name = None if tls is None else Role.TASK_MANAGER.server_name
            try:
                async with asyncio.timeout(_CONNECT_S):
                    _, protocol = await asyncio.get_running_loop().create_connection(
                        _AskingProtocol, host, port, ssl=context, server_hostname=name
                    )
            except (OSError, TimeoutError) as error:
                raise ConnectionLostError(str(error) or "it does not answer in time") from error
            assert protocol.transport is not None
            protocol.transport.write(self._greeting)
            self._protocol = protocol
            return protocol

    def close(self) -> None:
        """Close the connection; who waits gets ConnectionLostError."""
        if self._protocol is not None:
            with contextlib.suppress(RuntimeError):
                self._protocol.close()


def _settle(future: asyncio.Future[bytes], content: bytes | ConnectionLostError) -> None:
    if future.done():
        return
    if isinstance(content, bytes):
        future.set_result(content)
    else:
        future.set_exception(content)
