"""The receiving end of links: elements of all channels go into inboxes, credits back as consumers finish them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc
import pyarrow as pa

from task_manager.exchange.channels import Delivery, Inbox, no_release
from task_manager.exchange.frames import FrameDecoder
from weir.errors import HandshakeError
from weir.records import EndOfStream
from weir.rpc import data_pb2, data_pb2_grpc
from weir.rpc.wire import JobIdentity, channel_from_proto, handshake_from_proto
from weir.types import ChannelId

#: Credits are gathered for so long before they are sent: every reply wakes several threads on both sides.
_CREDIT_DELAY_S = 0.01
#: Towards the reply side: what one channel is to be told; None ends the link.
_Replies = queue.SimpleQueue[data_pb2.ChannelReply | int | None]


@dataclass(frozen=True, slots=True)
class _Receiving:
    """One open channel."""

    channel: ChannelId
    inbox: Inbox
    decoder: FrameDecoder = field(default_factory=FrameDecoder)


class ExchangeService(data_pb2_grpc.ExchangeServicer):
    """Serves the links that other task managers open to this one."""

    def __init__(self, find_inbox: Callable[[JobIdentity, ChannelId], Inbox]) -> None:
        """``find_inbox`` returns the inbox in which a channel ends, or raises HandshakeError."""
        self._find_inbox = find_inbox

    def add_to(self, server: grpc.Server) -> None:
        """Serve links on ``server``; called before it starts."""
        data_pb2_grpc.add_ExchangeServicer_to_server(self, server)

    def OpenLink(
        self, request_iterator: Iterator[data_pb2.LinkMessage], context: grpc.ServicerContext
    ) -> Iterator[data_pb2.LinkReply]:
        """One link, until its other end closes it; runs in a thread of the gRPC server."""
        link = _Link(self._find_inbox)
        # A consumer that was stopped releases nothing any more; this thread must not wait for it, or the process
        # could not end.
        context.add_callback(link.end)
        threading.Thread(
            target=link.receive, args=(request_iterator,), name="receive from a task manager", daemon=True
        ).start()
        yield from link.replies()


class _Link:
    """The channels of one link: one thread receives, another one replies."""

    def __init__(self, find_inbox: Callable[[JobIdentity, ChannelId], Inbox]) -> None:
        self._find_inbox = find_inbox
        self._channels: dict[int, _Receiving] = {}
        self._replies: _Replies = queue.SimpleQueue()

    def end(self) -> None:
        """Let :meth:`replies` return."""
        self._replies.put(None)

    def receive(self, messages: Iterator[data_pb2.LinkMessage]) -> None:
        """Read until the other end closes the link, or is gone; then its own side reports why."""
        try:
            for message in messages:
                for frame in message.frames:
                    self._take(frame)
        except grpc.RpcError:
            pass
        finally:
            self.end()

    def _take(self, frame: data_pb2.ChannelFrame) -> None:
        number = frame.channel_number
        try:
            if frame.WhichOneof("element") == "handshake":
                self._open(number, frame.handshake)
            elif number in self._channels:
                self._deliver(number, self._channels[number], frame)
        except HandshakeError as error:
            # Of this channel nothing more is taken; the others go on.
            self._channels.pop(number, None)
            self._replies.put(data_pb2.ChannelReply(channel_number=number, refusal=str(error)))

    def _open(self, number: int, handshake: data_pb2.ChannelHandshake) -> None:
        if number in self._channels:
            raise HandshakeError(f"the channel number {number} is in use in this link")
        identity = handshake_from_proto(handshake.handshake)
        channel = channel_from_proto(handshake.channel)
        self._channels[number] = _Receiving(channel, self._find_inbox(identity, channel))
        self._replies.put(data_pb2.ChannelReply(channel_number=number))

    def _deliver(self, number: int, receiving: _Receiving, frame: data_pb2.ChannelFrame) -> None:
        if frame.WhichOneof("element") == "closed":
            del self._channels[number]
            return
        element = receiving.decoder.decode(frame)
        release, size_bytes = no_release, 0
        if isinstance(element, pa.RecordBatch):
            size_bytes = element.get_total_buffer_size()

            def release() -> None:
                self._replies.put(number)

        elif isinstance(element, EndOfStream):
            # Known until the consumer has come so far, so that all credits get back.
            def release() -> None:
                self._channels.pop(number, None)

        receiving.inbox.put(Delivery(receiving.channel, element, release, size_bytes))

    def replies(self) -> Iterator[data_pb2.LinkReply]:
        """One reply for all that waits to be told; what accepts or refuses a channel does not wait."""
        while True:
            item = self._replies.get()
            released: dict[int, int] = {}
            told: list[data_pb2.ChannelReply] = []
            if isinstance(item, int):
                time.sleep(_CREDIT_DELAY_S)
            while item is not None:
                if isinstance(item, int):
                    released[item] = released.get(item, 0) + 1
                else:
                    told.append(item)
                if self._replies.empty():
                    break
                item = self._replies.get()
            told += [self._credit(number, batches) for number, batches in released.items()]
            if told:
                yield data_pb2.LinkReply(channels=told)
            if item is None:
                return

    def _credit(self, number: int, batches: int) -> data_pb2.ChannelReply:
        receiving = self._channels.get(number)
        busy_share = 1.0 if receiving is None else receiving.inbox.busy_share
        return data_pb2.ChannelReply(
            channel_number=number, released_batches=batches, busy_percent=round(100 * busy_share)
        )
