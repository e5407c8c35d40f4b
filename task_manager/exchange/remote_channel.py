"""Channels to another task manager: all of them in one long-lived gRPC stream, Arrow IPC down and credits up.

A message costs both sides about 0.2 ms, whatever is in it, and a stream several threads. So the channels to one task
manager share a *link*: what its subtasks send within a moment goes as one message.
"""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Iterator

import grpc
import pyarrow as pa

from task_manager.exchange.credits import CreditGate
from task_manager.exchange.frames import FrameEncoder, closed_frame, handshake_frame
from task_manager.exchange.gathering import Gathering
from weir.clock import Clock
from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.records import Element, EndOfStream, batch_bytes
from weir.rpc import data_pb2
from weir.rpc.wire import JobIdentity, check_same_job, parse_address
from weir.types import ChannelId

#: How long a consumer's task manager may take to accept a channel.
ACCEPT_TIMEOUT_S = 15.0

#: From the beginning of one small message to that of the next: what is sent meanwhile goes with the next one.
_SPACING_S = 0.0005
#: A frame of this many bytes does not wait, and nothing more is added to a message of so many.
_LARGE_BYTES = 64 << 10
#: Stands for no frame; no frame is empty.
_NOTHING = b""

#: How often a thread that waits in grpcio looks without need; not a part of its interface.
_GRPC_WAIT_MODULE, _GRPC_WAIT, _GRPC_WAIT_S = "grpc._common", "MAXIMUM_WAIT_TIMEOUT", 5.0

_OPEN_LINK_PATH = f"/{data_pb2.DESCRIPTOR.services_by_name['Exchange'].full_name}/OpenLink"


class PeerLink:
    """The sending end of all channels to one task manager. Any thread opens channels and sends."""

    def __init__(
        self,
        connection: grpc.Channel,
        address: str,
        identity: JobIdentity,
        clock: Clock,
        gathering: Gathering | None = None,
    ) -> None:
        """The stream begins with the first channel.

        Args:
            connection: leads to the task manager at ``address``.
            address: ``host:port``, for messages.
            identity: of the job.
            clock: spaces messages.
            gathering: how long frames wait for others while the process is busy; None: no longer than usual.
        """
        self.address = address
        self._clock = clock
        self._gathering = gathering
        self.identity = identity
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: By number; those that were closed are gone.
        self._channels: dict[int, RemoteChannel] = {}
        self._next_number = 1
        self._error: grpc.RpcError | None = None
        # Not the generated stub: messages are bytes already.
        open_link = connection.stream_stream(_OPEN_LINK_PATH, None, data_pb2.LinkReply.FromString)
        self._call = open_link(self._messages())
        threading.Thread(target=self._read_replies, name=f"credits {address}", daemon=True).start()

    @property
    def is_broken(self) -> bool:
        """Whether the stream has ended: channels need another link."""
        return self._error is not None

    def open(self, channel: ChannelId, gate: CreditGate, message_bytes_max: int) -> RemoteChannel:
        """A channel whose handshake is on its way; :meth:`RemoteChannel.wait_accepted` tells whether it is taken."""
        with self._lock:
            opened = RemoteChannel(self, self._next_number, channel, gate, message_bytes_max)
            self._next_number += 1
            self._channels[opened.number] = opened
            error = self._error
        if error is not None:
            opened.fail(self.explain(error, channel))
        self._frames.put(handshake_frame(self.identity, channel, opened.number))
        return opened

    def put(self, frame: bytes) -> None:
        """Send a frame after all earlier ones; never waits. The channels' credits bound what waits here."""
        self._frames.put(frame)

    def forget(self, number: int) -> None:
        """A channel was closed: replies for it are of no use any more."""
        with self._lock:
            self._channels.pop(number, None)

    def close(self) -> None:
        """End the stream at once; called when the job has ended here."""
        self._frames.put(None)
        self._call.cancel()

    def explain(self, error: grpc.RpcError, channel: ChannelId) -> WeirError:
        """What the sender on a channel of a broken link is told."""
        code, details = error.code(), error.details()
        return ConnectionLostError(
            f"channel {channel} to task manager {self.address} broke: {code.name.lower()}: {details}"
        )

    def _messages(self) -> Iterator[bytes]:
        """What gRPC sends, in a thread of its own: each message has all frames that waited, up to a size."""
        sent_s = 0.0
        frame = self._frames.get()
        while frame is not None:
            wait_s = sent_s + self._spacing_s() - self._clock.monotonic_s()
            if wait_s > 0 and len(frame) < _LARGE_BYTES:
                time.sleep(wait_s)
            message, following = self._gather(frame)
            sent_s = self._clock.monotonic_s()
            yield message
            frame = following if following is not _NOTHING else self._frames.get()

    def _spacing_s(self) -> float:
        if self._gathering is None:
            return _SPACING_S
        # Half of what all subtasks wait: a message has frames for several.
        return max(_SPACING_S, self._gathering.common_s / 2)

    def _gather(self, first: bytes) -> tuple[bytes, bytes | None]:
        """A message of a frame and the small ones that wait, and what was found after them.

        That is the end (None), a large frame, or ``_NOTHING``.
        """
        parts, size_bytes = [first], len(first)
        while size_bytes < _LARGE_BYTES and not self._frames.empty():
            following = self._frames.get()
            if following is None or len(following) >= _LARGE_BYTES:
                return b"".join(parts), following
            parts.append(following)
            size_bytes += len(following)
        return first if len(parts) == 1 else b"".join(parts), _NOTHING

    def _read_replies(self) -> None:
        try:
            for reply in self._call:
                for item in reply.channels:
                    channel = self._channels.get(item.channel_number)
                    if channel is not None:
                        channel.replied(item)
        except grpc.RpcError as error:
            with self._lock:
                self._error = error
                channels = list(self._channels.values())
            for channel in channels:
                channel.fail(self.explain(error, channel.channel))
            # The generator of messages must not wait for frames that nobody will take.
            self._frames.put(None)


class RemoteChannel:
    """The sending end of one channel. Frames wait in the link's queue until gRPC takes them."""

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

    def send(self, element: Element, size_bytes: int | None = None) -> None:
        """Send one element; see ``channels.Channel``."""
        if isinstance(element, pa.RecordBatch):
            self.gate.take(element.num_rows, batch_bytes(element) if size_bytes is None else size_bytes)
        else:
            self.gate.check()
            self._ended = isinstance(element, EndOfStream)
        self._link.put(self._encoder.encode(element))

    def close(self) -> None:
        """Free the channel; without an end of the stream, the consumer's side learns that nothing more comes."""
        self._link.forget(self.number)
        if not self._ended:
            self._link.put(closed_frame(self.number))


def let_grpc_sleep() -> None:
    """Let threads that wait for a message sleep until it comes; called once, before the first call.

    grpcio wakes each of them ten times a second, for signal handlers of Python 2: 0.015 cores with thirty channels on
    which nothing happens, 0.001 without. There is no public setting: a release of grpcio that has moved or changed this
    one stays as it is, and costs that much.
    """
    try:
        common = importlib.import_module(_GRPC_WAIT_MODULE)
    except ImportError:
        return
    if isinstance(getattr(common, _GRPC_WAIT, None), int | float):
        setattr(common, _GRPC_WAIT, _GRPC_WAIT_S)


def connect(address: str, options: list[tuple[str, int]]) -> grpc.Channel:
    """A connection to another task manager, shared by all calls to it.

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
