"""The receiving end of one link: elements go into the inboxes of channels, credits back as consumers finish them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from task_manager.exchange.frames import FrameDecoder, read_head, reply_frame
from task_manager.exchange.inbox import Delivery, Inbox, no_release
from task_manager.exchange.shared_memory import ReceivedMemory
from task_manager.exchange.sockets import FrameReader, hang_up, send_all, send_some
from weir import threads
from weir.clock import Clock
from weir.errors import HandshakeError
from weir.rows.records import EndOfStream
from weir.rpc import data_pb2
from weir.rpc.wire import JobIdentity, channel_from_proto, handshake_from_proto
from weir.types import ChannelId

#: Credits are gathered for so long before they are sent: every reply wakes a thread at the other end.
_CREDIT_DELAY_S = 0.01
#: And for so long while they are fewer than these batches of a channel and these bytes, and their consumer mostly
#: waits: a sender holds rows back at twice as many (``channels.IDLE_BATCHES``).
_FEW_DELAY_S, _FEW_BATCHES, _FEW_BYTES, _FEW_BUSY_SHARE = 0.08, 8, 16 << 10, 0.5
#: So many of one link, or of so many bytes, go at once: the sender may wait for them.
_CREDITS_MAX, _CREDIT_BYTES_MAX = 16, 1 << 20
#: A consumer that has not looked at a link for so long has something else to do; nobody else waits for what comes.
_LENT_S = 0.2
#: Heads of batches that a link remembers: one for each channel.
_PLAIN_HEADS_MAX = 1 << 16


@dataclass(slots=True)
class _Receiving:
    """A channel that is open."""

    channel: ChannelId
    inbox: Inbox
    decoder: FrameDecoder = field(default_factory=FrameDecoder)


class ReceivingLink:
    """A link that one thread receives on; consumers give credits back, or another thread where that has to wait."""

    def __init__(
        self,
        connected: socket.socket,
        find_inbox: Callable[[JobIdentity, ChannelId], Inbox],
        clock: Clock,
        memory: ReceivedMemory | None = None,
    ) -> None:
        """Receives nothing yet.

        Args:
            connected: where the other end is.
            find_inbox: returns the inbox in which a channel ends, or raises HandshakeError.
            clock: gathers credits.
            memory: where the other end puts large batches; None: it shares none.
        """
        self._connected = connected
        self._memory = memory
        self._find_inbox = find_inbox
        self._clock = clock
        self._channels: dict[int, _Receiving] = {}
        #: Where all channels end; None: in several, or none was opened yet.
        self._only_inbox: Inbox | None = None
        #: Heads of batches whose schema is known, and the numbers of their channels: most frames have one of these.
        self._plain_heads: dict[bytes, int] = {}
        #: Guards all that follows; tells the thread that replies that there is something to do.
        self._guard = threading.Lock()
        self._condition = threading.Condition(self._guard)
        #: Finished batches by channel number that were not told yet, together, and their bytes.
        self._released: dict[int, int] = {}
        self._released_count = self._released_bytes = 0
        self._replied_s = 0.0
        #: How long they may wait.
        self._delay_s = _FEW_DELAY_S
        #: What could not be written at once, after what the other thread writes.
        self._rest = b""
        self._is_writing, self._is_closed = False, False
        #: The thread that replies sleeps until it is woken, or for longer than more than a few credits may wait.
        self._is_parked, self._sleeps_long = False, False

    def serve(self, reader: FrameReader) -> None:
        """Receive until either end hangs up.

        Raises:
            OSError: the connection is broken; the other end reports why.
            HandshakeError: what came is not a frame.
        """
        threads.works_on_rows()
        threading.Thread(target=self._reply, name="credits to a task manager", daemon=True).start()
        lending = _Lending(reader, self._take_frame)
        try:
            while (frame := reader.read()) is not None:
                self._take_frame(*frame)
                inbox = self._only_inbox
                if inbox is not None and inbox.borrows and reader.is_empty:
                    lending.lend(inbox, len(self._channels))
        finally:
            with self._condition:
                self._is_closed = True
                self._condition.notify()
            hang_up(self._connected)

    # --- elements --------------------------------------------------------------------------------------------

    def _take_frame(self, head: bytes, body: pa.Buffer | None) -> None:
        number = self._plain_heads.get(head)
        receiving = None if number is None else self._channels.get(number)
        if number is None or receiving is None:
            self._take(head, body)
            return
        try:
            self._put_batch(number, receiving, receiving.decoder.decode_batch(body), body)
        except HandshakeError as error:
            self._refuse(number, error)

    def _take(self, head: bytes, body: pa.Buffer | None) -> None:
        frame = read_head(head)
        number, is_batch = frame.channel_number, frame.HasField("batch")
        is_shared = is_batch and frame.batch.HasField("shared")
        if is_shared:
            # Also of a channel that is not taken any more: the part is free again when the buffer is gone.
            body = self._shared_part(frame.batch.shared)
        elif is_batch and not frame.batch.arrow_schema and len(self._plain_heads) < _PLAIN_HEADS_MAX:
            # All heads of batches of this channel whose schema is known are the same bytes.
            self._plain_heads[head] = number
        try:
            receiving = self._channels.get(number)
            if frame.HasField("handshake"):
                self._open(number, frame.handshake)
            elif is_batch and receiving is not None:
                batch = receiving.decoder.decode_batch(body, frame.batch.arrow_schema, is_shared=is_shared)
                self._put_batch(number, receiving, batch, body)
            elif receiving is not None:
                self._deliver(number, receiving, frame)
        except HandshakeError as error:
            self._refuse(number, error)

    def _shared_part(self, part: data_pb2.SharedPart) -> pa.Buffer:
        if self._memory is None:
            raise HandshakeError("a batch is said to be in memory that is not shared")
        return self._memory.part(part.at, part.size_bytes)

    def _refuse(self, number: int, error: HandshakeError) -> None:
        """Take nothing more of this channel; the others go on."""
        self._channels.pop(number, None)
        self._tell(data_pb2.ChannelReply(channel_number=number, refusal=str(error)))

    def _open(self, number: int, handshake: data_pb2.ChannelHandshake) -> None:
        if number in self._channels:
            raise HandshakeError(f"the channel number {number} is in use in this link")
        identity = handshake_from_proto(handshake.handshake)
        channel = channel_from_proto(handshake.channel)
        inbox = self._find_inbox(identity, channel)
        is_only = all(receiving.inbox is inbox for receiving in self._channels.values())
        self._only_inbox = inbox if is_only else None
        self._channels[number] = _Receiving(channel, inbox)
        self._tell(data_pb2.ChannelReply(channel_number=number))

    def _deliver(self, number: int, receiving: _Receiving, frame: data_pb2.ChannelFrame) -> None:
        if frame.HasField("closed"):
            del self._channels[number]
            return
        element = receiving.decoder.decode(frame)
        release = no_release
        if isinstance(element, EndOfStream):
            # Known until the consumer has come so far, so that all credits get back.
            def release() -> None:
                self._channels.pop(number, None)

        receiving.inbox.put(Delivery(receiving.channel, element, release))

    def _put_batch(
        self, number: int, receiving: _Receiving, batch: pa.RecordBatch, body: pa.Buffer | None
    ) -> None:
        # As good as the sum over its buffers, which takes 8 µs in the midst of other work.
        size_bytes = 0 if body is None else body.size
        release = partial(self._release, number, size_bytes)
        receiving.inbox.put(Delivery(receiving.channel, batch, release, size_bytes))

    # --- replies ---------------------------------------------------------------------------------------------

    def _tell(self, reply: data_pb2.ChannelReply) -> None:
        """Accept or refuse a channel, at once; called by the thread that receives."""
        with self._condition:
            self._write(reply_frame([reply]))

    def _release(self, number: int, size_bytes: int) -> None:
        """A consumer has finished a batch; called by its thread."""
        with self._guard:
            batches = self._released[number] = self._released.get(number, 0) + 1
            self._released_count += 1
            self._released_bytes += size_bytes
            if batches >= _FEW_BATCHES or self._released_bytes >= _FEW_BYTES or self._is_busy(number):
                self._delay_s = _CREDIT_DELAY_S
            is_much = self._released_count >= _CREDITS_MAX or self._released_bytes >= _CREDIT_BYTES_MAX
            if is_much or self._clock.monotonic_s() - self._replied_s >= self._delay_s:
                self._write_credits()
            elif self._is_parked or (self._sleeps_long and self._delay_s < _FEW_DELAY_S):
                self._condition.notify()

    def _is_busy(self, number: int) -> bool:
        """Return whether the consumer of a channel may soon be waited for."""
        receiving = self._channels.get(number)
        return receiving is not None and receiving.inbox.busy_share >= _FEW_BUSY_SHARE

    def _reply(self) -> None:
        """Tell what was left over; in a thread of its own, which sleeps while consumers tell everything themselves."""
        try:
            while (rest := self._next_rest()) is not None:
                send_all(self._connected, [rest])
        except OSError:
            # The thread that receives sees it too.
            hang_up(self._connected)

    def _next_rest(self) -> bytes | None:
        with self._condition:
            self._is_writing = False
            while not self._is_closed:
                if self._rest:
                    rest, self._rest = self._rest, b""
                    self._is_writing = True
                    return rest
                # Twice the delay: as long as batches come, their consumers are there first.
                wait_s = self._replied_s + 2 * self._delay_s - self._clock.monotonic_s()
                if self._released and wait_s <= 0:
                    self._write_credits()
                    continue
                # To be woken for every credit would cost more than to look now and then while some come.
                self._is_parked = not self._released and wait_s <= 0
                self._sleeps_long = self._delay_s > _CREDIT_DELAY_S
                self._condition.wait(None if self._is_parked else wait_s)
                self._is_parked = self._sleeps_long = False
            return None

    def _write_credits(self) -> None:
        replies = [self._credit(number, batches) for number, batches in self._released.items()]
        self._released.clear()
        self._released_count = self._released_bytes = 0
        self._replied_s, self._delay_s = self._clock.monotonic_s(), _FEW_DELAY_S
        memory = self._memory
        # Small batches do not lie in it.
        freed = memory.take_freed() if memory is not None and memory.freed else []
        self._write(reply_frame(replies, freed))

    def _write(self, frame: bytes) -> None:
        """Write as far as that goes without waiting; with the condition's lock."""
        if self._rest or self._is_writing:
            self._rest += frame
            return
        try:
            self._rest = send_some(self._connected, frame)
        except OSError:
            hang_up(self._connected)
        if self._rest:
            self._condition.notify()

    def _credit(self, number: int, batches: int) -> data_pb2.ChannelReply:
        receiving = self._channels.get(number)
        busy_share = 1.0 if receiving is None else receiving.inbox.busy_share
        return data_pb2.ChannelReply(
            channel_number=number, released_batches=batches, busy_percent=round(100 * busy_share)
        )


class _Lending:
    """Lends the reader of a link to the only subtask that reads from it, which then needs nobody to wake it.

    A thread that reads a message of ten rows and hands it over costs about as much as the rows do. A consumer that
    knows when rows come (``Pace.round_s``) reads them itself, with what it gets from subtasks of its own process.
    Meanwhile the link's thread sleeps. It goes on as soon as the consumer waits otherwise, or has not looked for a
    while. The link's thread calls :meth:`lend`, a consumer's thread all else.
    """

    def __init__(self, reader: FrameReader, take: Callable[[bytes, pa.Buffer | None], None]) -> None:
        """``take`` is called with each frame, by the thread that reads it."""
        self._reader = reader
        self._take = take
        #: Guards the reader while it is lent, and all that follows; wakes the link's thread.
        self._condition = threading.Condition(threading.Lock())
        self._is_lent, self._was_used = False, False
        #: What ended the reading of the consumer; told by the link's thread.
        self._error: Exception | None = None
        #: How many channels lead to the consumer.
        self.channels = 0

    def lend(self, inbox: Inbox, channels: int) -> None:
        """Let the consumer of an inbox read until it gives the reader back, or forgets it; called after whole frames.

        Raises:
            OSError: the connection is broken.
            HandshakeError: what came is not a frame.
        """
        with self._condition:
            self._is_lent, self.channels = True, channels
            if inbox.lend(self):
                self._was_used = True
                while self._is_lent and self._was_used:
                    self._was_used = False
                    self._condition.wait(_LENT_S)
            self._is_lent = False
            inbox.take_back(self)
        if self._error is not None:
            raise self._error

    def read(self, wait_s: float) -> None:
        """Take the frames that are here, or come in so many seconds; nothing if it is not lent any more."""
        with self._condition:
            if not self._is_lent:
                return
            self._was_used = True
            try:
                if self._reader.read_some(wait_s):
                    while (frame := self._reader.take_whole()) is not None:
                        self._take(*frame)
            except (OSError, HandshakeError) as error:
                self._error = error
            # The rest of a large frame may take long.
            if self._error is not None or self._reader.has_ended or not self._reader.is_empty:
                self._end()

    def give_back(self) -> None:
        """Let the link's thread read again."""
        with self._condition:
            self._end()

    def _end(self) -> None:
        self._is_lent = False
        self._condition.notify()
