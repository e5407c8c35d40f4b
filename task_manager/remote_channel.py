"""Channels to another task manager: one long-lived gRPC stream each, Arrow IPC down and credits up."""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa

from task_manager.channels import Delivery, Inbox, no_release
from task_manager.credits import CreditGate
from task_manager.frames import FrameDecoder, FrameEncoder
from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.records import Element, EndOfStream, batch_bytes
from weir.rpc import data_pb2, data_pb2_grpc
from weir.rpc.wire import (
    JobIdentity,
    channel_from_proto,
    channel_to_proto,
    check_same_job,
    handshake_from_proto,
    handshake_to_proto,
    parse_address,
)
from weir.types import ChannelId

if TYPE_CHECKING:
    from collections.abc import Callable

#: Credits are gathered for so long before they are sent.
_CREDIT_DELAY_S = 0.01
#: Towards the reply side: batches released, an error that refuses the rest, or None for the end.
_Credits = queue.SimpleQueue[int | WeirError | None]

#: How long a consumer's task manager may take to accept a channel.
ACCEPT_TIMEOUT_S = 15.0

#: How often a thread that waits in grpcio looks without need; not a part of its interface.
_GRPC_WAIT, _GRPC_WAIT_S = "MAXIMUM_WAIT_TIMEOUT", 5.0

_OPEN_CHANNEL_PATH = f"/{data_pb2.DESCRIPTOR.services_by_name['Exchange'].full_name}/OpenChannel"


class RemoteChannel:
    """The sending end. Frames wait in a queue that the credits bound until gRPC takes them."""

    def __init__(
        self,
        connection: grpc.Channel,
        address: str,
        identity: JobIdentity,
        channel: ChannelId,
        gate: CreditGate,
        message_bytes_max: int,
    ) -> None:
        self.gate = gate
        self.is_remote = True
        self.batch_bytes_max: int | None = message_bytes_max
        self._address = address
        self._channel = channel
        self._encoder = FrameEncoder()
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._accepted = threading.Event()
        self._ended = False
        handshake = data_pb2.ChannelHandshake(
            handshake=handshake_to_proto(identity), channel=channel_to_proto(channel)
        )
        self._frames.put(data_pb2.ChannelFrame(handshake=handshake).SerializeToString())
        # Not the generated stub: frames are bytes already.
        open_channel = connection.stream_stream(_OPEN_CHANNEL_PATH, None, data_pb2.ChannelReply.FromString)
        self._call = open_channel(iter(self._frames.get, None))
        self._replies = threading.Thread(target=self._read_replies, name=f"credits {channel}", daemon=True)
        self._replies.start()

    def wait_accepted(self) -> None:
        """Block until the consumer's side took the handshake; called once, by the deploying thread.

        Raises:
            ConnectionLostError: it does not answer.
            HandshakeError: it refused.
        """
        if not self._accepted.wait(ACCEPT_TIMEOUT_S):
            self._call.cancel()
            raise ConnectionLostError(
                f"task manager {self._address} did not accept channel {self._channel} within {ACCEPT_TIMEOUT_S:g} s"
            )
        self.gate.check()

    def send(self, element: Element, size_bytes: int | None = None) -> None:
        """Send one element; see ``channels.Channel``."""
        if isinstance(element, pa.RecordBatch):
            self.gate.take(element.num_rows, batch_bytes(element) if size_bytes is None else size_bytes)
        else:
            self.gate.check()
            self._ended = isinstance(element, EndOfStream)
        self._frames.put(self._encoder.encode(element))

    def close(self) -> None:
        """End the stream: in order after the end of stream, at once otherwise."""
        self._frames.put(None)
        if not self._ended:
            self._call.cancel()

    def _read_replies(self) -> None:
        try:
            for reply in self._call:
                self._accepted.set()
                if reply.released_batches:
                    self.gate.release(reply.released_batches, reply.busy_percent / 100)
        except grpc.RpcError as error:
            self.gate.fail(self._explain(error))
            # The request iterator must not wait for frames that nobody will take.
            self._frames.put(None)
        finally:
            self._accepted.set()

    def _explain(self, error: grpc.RpcError) -> WeirError:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return HandshakeError(f"task manager {self._address} refused channel {self._channel}: {details}")
        return ConnectionLostError(
            f"channel {self._channel} to task manager {self._address} broke: {code.name.lower()}: {details}"
        )


class ExchangeService(data_pb2_grpc.ExchangeServicer):
    """The receiving end: puts elements into inboxes and sends credits back as the consumer finishes them."""

    def __init__(self, find_inbox: Callable[[JobIdentity, ChannelId], Inbox]) -> None:
        """``find_inbox`` gives the inbox in which a channel ends, or raises HandshakeError."""
        self._find_inbox = find_inbox

    def add_to(self, server: grpc.Server) -> None:
        """Serve channels on ``server``; called before it starts."""
        data_pb2_grpc.add_ExchangeServicer_to_server(self, server)

    def OpenChannel(
        self, request_iterator: Iterator[data_pb2.ChannelFrame], context: grpc.ServicerContext
    ) -> Iterator[data_pb2.ChannelReply]:
        """One channel, from handshake to end of stream; runs in a thread of the gRPC server."""
        try:
            inbox, channel = self._accept(next(request_iterator))
        except HandshakeError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        credits: _Credits = queue.SimpleQueue()
        # A consumer that was stopped releases nothing any more; this thread must not wait for it, or the process
        # could not end.
        context.add_callback(lambda: credits.put(None))
        threading.Thread(
            target=_receive,
            args=(request_iterator, inbox, channel, credits),
            name=f"receive {channel}",
            daemon=True,
        ).start()
        yield data_pb2.ChannelReply()
        yield from _replies(credits, context, inbox)

    def _accept(self, first: data_pb2.ChannelFrame) -> tuple[Inbox, ChannelId]:
        if first.WhichOneof("element") != "handshake":
            raise HandshakeError("the first frame of a channel must be its handshake")
        identity = handshake_from_proto(first.handshake.handshake)
        channel = channel_from_proto(first.handshake.channel)
        return self._find_inbox(identity, channel), channel


def _replies(
    credits: _Credits, context: grpc.ServicerContext, inbox: Inbox
) -> Iterator[data_pb2.ChannelReply]:
    """One reply for all credits that wait; ends with None, fails with an error."""
    while True:
        released = 0
        item = credits.get()
        if isinstance(item, int):
            # Gather: every reply wakes several threads on both sides.
            time.sleep(_CREDIT_DELAY_S)
        while isinstance(item, int):
            released += item
            if credits.empty():
                break
            item = credits.get()
        if released:
            yield data_pb2.ChannelReply(released_batches=released, busy_percent=round(100 * inbox.busy_share))
        if isinstance(item, WeirError):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(item))
        if item is None:
            return


def _receive(
    frames: Iterator[data_pb2.ChannelFrame], inbox: Inbox, channel: ChannelId, credits: _Credits
) -> None:
    """Read frames until the end of the stream; the last thing put into ``credits`` ends the reply side."""
    decoder = FrameDecoder()

    def release_one() -> None:
        credits.put(1)

    try:
        for frame in frames:
            element = decoder.decode(frame)
            if isinstance(element, EndOfStream):
                # The stream stays open until the consumer has come so far, so that all credits get back.
                inbox.put(Delivery(channel, element, lambda: credits.put(None)))
                return
            if isinstance(element, pa.RecordBatch):
                inbox.put(Delivery(channel, element, release_one, element.get_total_buffer_size()))
            else:
                inbox.put(Delivery(channel, element, no_release))
    except HandshakeError as error:
        credits.put(error)
    except grpc.RpcError:
        # The producer is gone; its own side reports why. Nothing more can be received.
        credits.put(None)
    else:
        credits.put(None)


def let_grpc_sleep() -> None:
    """Let threads that wait for a message sleep until it comes; called once, before the first call.

    grpcio wakes each of them ten times a second, for signal handlers of Python 2: 0.015 cores with thirty channels on
    which nothing happens, 0.001 without. A release of grpcio that has no such setting stays as it is.
    """
    common = importlib.import_module("grpc._common")
    if hasattr(common, _GRPC_WAIT):
        setattr(common, _GRPC_WAIT, _GRPC_WAIT_S)


def connect(address: str, options: list[tuple[str, int]]) -> grpc.Channel:
    """A connection to another task manager, shared by all channels to it.

    Addresses come in messages: gRPC would also take paths of sockets, or the name of a resolver.

    Raises:
        HandshakeError: the address has another form than ``host:port``.
    """
    return grpc.insecure_channel(
        str(parse_address(address)),
        options=[
            *options,
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_http_proxy", 0),
        ],
    )


def check_channel_job(ours: JobIdentity | None, theirs: JobIdentity) -> None:
    """Refuse a channel of a job that is not deployed here.

    Raises:
        HandshakeError: nothing is deployed, or something else is.
    """
    if ours is None:
        raise HandshakeError(f"job {theirs.job_id} is not deployed here")
    check_same_job(ours, theirs)
