"""Channels to another task manager: all of them in one connection, Arrow IPC down and credits up.

A message costs both sides some 0.1 ms, whatever is in it. So the channels to one task manager share a *link*: what its
subtasks send within a moment goes together. A subtask that has sent nothing for a moment writes to the connection
itself, because every thread on the way costs as much as the message; a thread of the link does what would have to wait.

Where the connection leads, and how it must begin, is asked over gRPC: who cannot call that task manager has no link.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque

import grpc
import pyarrow as pa

from task_manager.connections import is_closed
from task_manager.exchange.channels import CreditGate
from task_manager.exchange.frames import Frame, FrameEncoder, closed_frame, handshake_frame, read_replies
from task_manager.exchange.shared_memory import SentMemory, make_memory
from task_manager.exchange.sockets import FrameReader, dial, hang_up, is_local, send_all, send_some
from weir.clock import Clock
from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.rows.late_column import TextRoom
from weir.rows.records import Element, EndOfStream, batch_bytes
from weir.rpc import data_pb2, data_pb2_grpc
from weir.rpc.wire import PROTOCOL_VERSION, JobIdentity, parse_address
from weir.subtask_names import NameOf, numbered
from weir.types import ChannelId

#: How long a consumer's task manager may take to accept a channel.
ACCEPT_TIMEOUT_S = 15.0

#: From one small write to the next: what is sent meanwhile goes with the next one.
_SPACING_S = 0.0005
#: So many bytes do not wait, and are written by the link's thread: that may take long.
LARGE_BYTES = 64 << 10
_CLOSED_HERE = "it was closed here"
#: Replies are small.
_REPLY_BYTES_MAX = 1 << 20


class PeerLink:
    """The sending end of all channels to one task manager. Any thread opens channels and sends."""

    def __init__(
        self,
        connection: grpc.Channel,
        address: str,
        identity: JobIdentity,
        clock: Clock,
        name_of: NameOf = numbered,
    ) -> None:
        """Connects in a thread of its own; channels can be opened meanwhile.

        Args:
            connection: leads to the task manager at ``address``; not closed yet.
            address: ``host:port``.
            identity: of the job.
            clock: spaces messages.
            name_of: what subtasks are called in errors.
        """
        self.address = address
        self.identity = identity
        self._stub = data_pb2_grpc.ExchangeStub(connection)
        self._clock = clock
        self._name_of = name_of
        #: Guards the channels and the error.
        self._lock = threading.Lock()
        #: By number; those that were closed are gone.
        self._channels: dict[int, RemoteChannel] = {}
        self._next_number = 1
        #: Why the link is of no use any more.
        self._error: str | None = None
        #: Guards all that follows; tells the link's thread that there is something to do.
        self._guard = threading.Lock()
        self._condition = threading.Condition(self._guard)
        self._pending: deque[bytes | pa.Buffer] = deque()
        self._pending_bytes = 0
        #: Something among them does not wait for others.
        self._is_urgent = False
        #: Where large batches go; None: not connected yet, or to another machine.
        self.memory: SentMemory | None = None
        #: None: not connected yet.
        self._socket: socket.socket | None = None
        self._sent_s = 0.0
        #: The link's thread writes; it sleeps until it is woken; nothing is to be written any more.
        self._is_writing, self._is_parked, self._is_closed = False, False, False
        threading.Thread(target=self._run, name=f"link to {address}", daemon=True).start()

    @property
    def is_broken(self) -> bool:
        """Return whether the connection has ended: channels need another link."""
        return self._error is not None

    def open(self, channel: ChannelId, gate: CreditGate, message_bytes_max: int) -> RemoteChannel:
        """A channel whose handshake is on its way; :meth:`RemoteChannel.wait_accepted` tells whether it is taken."""
        with self._lock:
            opened = RemoteChannel(self, self._next_number, channel, gate, message_bytes_max)
            self._next_number += 1
            self._channels[opened.number] = opened
            error = self._error
        if error is not None:
            opened.fail(self._explain(error, channel))
        self.put(handshake_frame(self.identity, channel, opened.number))
        self.flush()
        return opened

    def put(self, frame: Frame, *, is_urgent: bool = False) -> None:
        """Queue a frame after all earlier ones, for :meth:`flush`; the channels' credits bound what waits here.

        ``is_urgent``: it does not wait for others; large frames never do.
        """
        with self._guard:
            if not self._is_closed:
                self._pending.extend(frame)
                self._pending_bytes += sum(map(len, frame))
                self._is_urgent = self._is_urgent or is_urgent

    def flush(self) -> None:
        """Write what waits: here, if that takes no time, else in the link's thread; never waits."""
        if not self._pending:
            return
        error: OSError | None = None
        with self._guard:
            # Who writes looks again when that is done, also the thread that connects.
            if self._socket is None or self._is_writing or not self._pending:
                return
            if self._pending_bytes < LARGE_BYTES and self._wait_s() <= 0:
                try:
                    self._write_now(self._socket)
                except OSError as raised:
                    error = raised
            if self._pending and (self._is_parked or self._pending_bytes >= LARGE_BYTES):
                self._condition.notify()
        if error is not None:
            self._fail(_reason(error))

    def forget(self, number: int) -> None:
        """A channel was closed: replies for it are of no use any more."""
        with self._lock:
            self._channels.pop(number, None)

    def close(self) -> None:
        """End the connection at once; called when the job has ended here."""
        self._fail(_CLOSED_HERE)

    def _explain(self, reason: str, channel: ChannelId) -> WeirError:
        """Returns the error for the sender on a channel of a broken link."""
        consumer = self._name_of(channel.consumer)
        return ConnectionLostError(
            f"the channel to {consumer} on task manager {self.address} broke: {reason}"
        )

    def _fail(self, reason: str) -> None:
        with self._lock:
            self._error = self._error or reason
            channels = list(self._channels.values())
        with self._condition:
            self._is_closed = True
            self._pending.clear()
            if self._socket is not None:
                hang_up(self._socket)
            self._condition.notify()
        for channel in channels:
            channel.fail(self._explain(reason, channel.channel))

    # --- writing ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Connect, then write what is not written by who sends; the link's thread."""
        try:
            connected = self._connect()
            threading.Thread(
                target=self._read_replies, args=(connected,), name=f"credits {self.address}", daemon=True
            ).start()
            while (pieces := self._next_pieces(connected)) is not None:
                send_all(connected, pieces)
                # Not kept while nothing is to be sent: batches are in it.
                pieces.clear()
        except (OSError, grpc.RpcError) as error:
            self._fail(_reason(error))
        except ValueError as error:
            if not is_closed(error):
                raise
            self._fail(_CLOSED_HERE)

    def _connect(self) -> socket.socket:
        request = data_pb2.OpenLinkRequest(protocol_version=PROTOCOL_VERSION)
        place = self._stub.OpenLink(request, timeout=ACCEPT_TIMEOUT_S)
        host = parse_address(self.address).host
        descriptor = make_memory() if place.local_name else None
        try:
            connected = dial(host, place.port, place.greeting, ACCEPT_TIMEOUT_S, place.local_name, descriptor)
            if descriptor is not None and is_local(connected):
                self.memory = SentMemory(descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        return connected

    def _next_pieces(self, connected: socket.socket) -> list[bytes | pa.Buffer] | None:
        """Wait for something to write; None: nothing is to be written any more."""
        with self._condition:
            self._is_writing = False
            self._socket = connected
            while not self._is_closed:
                wait_s = self._wait_s()
                if self._pending and (wait_s <= 0 or self._pending_bytes >= LARGE_BYTES):
                    self._is_writing = True
                    return self._take()
                self._is_parked = not self._pending
                self._condition.wait(wait_s if self._pending else None)
                self._is_parked = False
            hang_up(connected)
            return None

    def _write_now(self, connected: socket.socket) -> None:
        """Write small frames as one message, as far as that goes without waiting; with the condition's lock."""
        pieces = self._take()
        rest = send_some(connected, bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces))
        if rest:
            self._pending.append(rest)
            self._pending_bytes = len(rest)

    def _take(self) -> list[bytes | pa.Buffer]:
        pieces = list(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._is_urgent = False
        self._sent_s = self._clock.monotonic_s()
        return pieces

    def _wait_s(self) -> float:
        """How long small frames wait for others."""
        if self._is_urgent:
            return 0.0
        return self._sent_s + _SPACING_S - self._clock.monotonic_s()

    # --- replies ---------------------------------------------------------------------------------------------

    def _read_replies(self, connected: socket.socket) -> None:
        reason = "it was closed there"
        try:
            reader = FrameReader(connected, _REPLY_BYTES_MAX)
            while True:
                reader.await_some()
                frame = reader.read()
                if frame is None:
                    break
                replies = read_replies(frame[0])
                if self.memory is not None and replies.freed:
                    # Before the credits, which may bring the next batches.
                    self.memory.free(replies.freed)
                for reply in replies.channels:
                    channel = self._channels.get(reply.channel_number)
                    if channel is not None:
                        channel.replied(reply)
        except (OSError, HandshakeError) as error:
            reason = _reason(error)
        finally:
            self._fail(reason)
            connected.close()


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class RemoteChannel:
    """The sending end of one channel. Frames wait in the link until :meth:`flush`, and then for the connection."""

    def __init__(
        self, link: PeerLink, number: int, channel: ChannelId, gate: CreditGate, message_bytes_max: int
    ) -> None:
        """Called by :meth:`PeerLink.open`."""
        self.gate = gate
        self.is_remote = True
        self.batch_bytes_max: int | None = message_bytes_max
        self.number = number
        self.channel = channel
        self._link = link
        self._encoder = FrameEncoder(number)
        self._accepted = threading.Event()
        self._ended = False

    def wait_accepted(self) -> None:
        """Block until the consumer's side took the handshake; called once, by the deploying thread.

        Raises:
            ConnectionLostError: it does not answer.
            HandshakeError: it refused.
        """
        if not self._accepted.wait(ACCEPT_TIMEOUT_S):
            self.close()
            raise ConnectionLostError(
                f"task manager {self._link.address} did not accept channel {self.channel} within {ACCEPT_TIMEOUT_S:g} s"
            )
        self.gate.check()

    def replied(self, reply: data_pb2.ChannelReply) -> None:
        """The consumer's side has accepted, refused or finished something; called by the link's thread."""
        if reply.refusal:
            self.fail(
                HandshakeError(
                    f"task manager {self._link.address} refused channel {self.channel}: {reply.refusal}"
                )
            )
        elif reply.released_batches:
            self.gate.release(reply.released_batches, reply.busy_percent / 100)
        self._accepted.set()

    def fail(self, error: WeirError) -> None:
        """The channel is of no use any more."""
        self.gate.fail(error)
        self._accepted.set()

    @property
    def shares_memory(self) -> bool:
        """Return whether rows go through shared memory."""
        return self._link.memory is not None

    def send(self, element: Element, size_bytes: int | None = None) -> None:
        """Send one element; see ``channels.Channel``."""
        if isinstance(element, pa.RecordBatch):
            size_bytes = batch_bytes(element) if size_bytes is None else size_bytes
            self.gate.take(element.num_rows, size_bytes)
        else:
            self.gate.check()
            self._ended = isinstance(element, EndOfStream)
        frame = self._encoder.encode(element, size_bytes or 0, self._link.memory)
        self._link.put(frame, is_urgent=(size_bytes or 0) >= LARGE_BYTES)

    def room_for_texts(self, rows: pa.RecordBatch, place: int, size_bytes: int) -> TextRoom | None:
        """Room in the memory that both ends share; see ``channels.Channel``."""
        memory = self._link.memory
        return None if memory is None else self._encoder.room_for_texts(rows, place, size_bytes, memory)

    def flush(self) -> None:
        """Let what was sent go; see ``channels.Channel``."""
        self._link.flush()

    def close(self) -> None:
        """Free the channel; without an end of the stream, the consumer's side learns that nothing more comes."""
        self._link.forget(self.number)
        if not self._ended:
            self._link.put(closed_frame(self.number))
        self._link.flush()
