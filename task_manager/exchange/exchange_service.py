"""Where links of other task managers arrive: who may call this process over gRPC is told where to connect, and how."""

from __future__ import annotations

import hmac
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial

import grpc

from task_manager.exchange.inbox import Inbox
from task_manager.exchange.receiving_link import ReceivingLink
from task_manager.exchange.shared_memory import ReceivedMemory
from task_manager.exchange.sockets import (
    FrameReader,
    hang_up,
    listen,
    listen_locally,
    new_greeting,
    receive_greeting,
    send_at_once,
)
from task_manager.exchange.tunnels import server_tunnel
from weir.clock import Clock
from weir.errors import HandshakeError
from weir.process.newcomers import Newcomers
from weir.rpc import data_pb2, data_pb2_grpc
from weir.rpc.wire import MESSAGE_OVERHEAD_BYTES_MAX, JobIdentity, check_protocol_version
from weir.types import ChannelId

log = logging.getLogger(__name__)

#: Each part of a connection's beginning must come within this time, and so many may be about to begin: of more, the
#: oldest is hung up on, for nobody else may hold threads, nor keep task managers out.
_GREETING_TIMEOUT_S = 5.0
_STRANGERS_MAX = 64
#: After a connection could not be taken, as when the process has too many files open.
_ACCEPT_PAUSE_S = 0.1


class ExchangeService(data_pb2_grpc.ExchangeServicer):
    """Serves the links that other task managers open to this one, each in a thread of its own."""

    def __init__(
        self,
        find_inbox: Callable[[JobIdentity, ChannelId], Inbox],
        message_bytes_max: int,
        clock: Clock,
    ) -> None:
        """Does not listen yet.

        Args:
            find_inbox: returns the inbox in which a channel ends, or raises HandshakeError.
            message_bytes_max: bytes that one batch may have; see ``taskManager.message_bytes_max``.
            clock: gathers credits.
        """
        self._find_inbox = find_inbox
        self._frame_bytes_max = message_bytes_max + MESSAGE_OVERHEAD_BYTES_MAX
        self._clock = clock
        self._greeting = new_greeting()
        self._listening: list[socket.socket] = []
        self._is_closed = False
        self._port = 0
        #: Of the socket for task managers of this machine; empty: there is none.
        self._local_name = ""
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._newcomers = Newcomers(_STRANGERS_MAX, clock)

    def add_to(self, server: grpc.Server) -> None:
        """Answer on ``server``; called before it starts."""
        data_pb2_grpc.add_ExchangeServicer_to_server(self, server)

    def listen(self, host: str, port: int = 0, *, is_local: bool = True) -> None:
        """Take connections from now on; called once, before the gRPC server starts. ``port`` 0: any free one.

        ``is_local``: also by a Unix socket, of task managers of this machine.

        Raises:
            AddressInUseError: the port is taken.
        """
        listening = listen(host, port)
        self._port = listening.getsockname()[1]
        self._listening.append(listening)
        if is_local and (local := listen_locally()) is not None:
            self._listening.append(local[0])
            self._local_name = local[1]
        for each in self._listening:
            threading.Thread(
                target=self._accept, args=(each,), name="links of task managers", daemon=True
            ).start()

    def close(self) -> None:
        """Take no more connections and end those that there are."""
        with self._lock:
            self._is_closed = True
            listening = self._listening
            connections = list(self._connections)
        for each in listening:
            hang_up(each)
        for connected in connections:
            hang_up(connected)

    def OpenLink(
        self, request: data_pb2.OpenLinkRequest, context: grpc.ServicerContext
    ) -> data_pb2.OpenLinkReply:
        """Tell another task manager where to connect, and how to begin."""
        try:
            check_protocol_version(request.protocol_version)
        except HandshakeError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return data_pb2.OpenLinkReply(port=self._port, greeting=self._greeting, local_name=self._local_name)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connected, _ = listening.accept()
            except OSError as error:
                if self._is_closed:
                    listening.close()
                    return
                log.warning("cannot take a connection of another task manager: %s", error)
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            with self._lock:
                is_welcome = not self._is_closed
                if is_welcome:
                    self._connections.add(connected)
            if is_welcome:
                self._newcomers.came(connected)
                threading.Thread(
                    target=self._serve, args=(connected,), name="rows of a task manager", daemon=True
                ).start()
            else:
                connected.close()

    def _serve(self, connected: socket.socket) -> None:
        """One link, until either end hangs up."""
        descriptor = connected.fileno()
        try:
            connected.settimeout(_GREETING_TIMEOUT_S)
            # Before a tunnel hides what leads to the other machine.
            send_at_once(connected)
            connected = self._encrypted(connected)
            is_known, memory = self._greeted(connected)
            if is_known:
                self._newcomers.proved(descriptor)
                reader = FrameReader(connected, self._frame_bytes_max)
                ReceivingLink(connected, self._find_inbox, self._clock, memory).serve(reader)
        except ssl.SSLError as error:
            log.warning("refused a connection for rows: %s", error)
        except (OSError, HandshakeError) as error:
            # Its own side reports why.
            log.debug("a link of another task manager has ended: %s", error)
        finally:
            with self._lock:
                self._connections.discard(connected)
            connected.close()

    def _encrypted(self, connected: socket.socket) -> socket.socket:
        """The connection that is read from now on: the same one, or the end of a tunnel."""
        found = server_tunnel(connected, begun=partial(self._newcomers.is_now, connected.fileno()))
        if found is not connected:
            with self._lock:
                self._connections.discard(connected)
                self._connections.add(found)
        return found

    def _greeted(self, connected: socket.socket) -> tuple[bool, ReceivedMemory | None]:
        """Whether the connection began as it must, and the memory that the other end shares."""
        greeting, descriptor = receive_greeting(connected)
        connected.settimeout(None)
        is_known = hmac.compare_digest(greeting, self._greeting)
        if descriptor is None:
            return is_known, None
        try:
            return is_known, ReceivedMemory(descriptor) if is_known else None
        finally:
            os.close(descriptor)
