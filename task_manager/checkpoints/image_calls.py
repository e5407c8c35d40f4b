"""Images of stores of other task managers, which have a part of the state of subtasks here; calls by gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import grpc
import orjson

from task_manager.connections import is_closed
from task_manager.exchange.peer_network import PeerNetwork
from weir.errors import ConnectionLostError
from weir.protocol.checkpoints.manifest import StoreImage, image_from_json
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.wire import JobIdentity, handshake_to_proto

_TAKE_TIMEOUT_S = 30.0
#: Publishing an image takes as long as the checkpoint store needs for its new files.
COLLECT_TIMEOUT_S = 600.0


class ImagePeers(Protocol):
    """The other task managers, as checkpoints see them; calls wait for the answer."""

    def take(self, address: str, checkpoint_id: int) -> str:
        """Note the store there as it is now; returns the image's id.

        Raises:
            ConnectionLostError: it gave none.
        """

    def collect(self, address: str, image_id: str) -> tuple[StoreImage, int]:
        """Wait until an image is published; returns it and the bytes that were written for it.

        Raises:
            ConnectionLostError: it could not be published.
        """


class ImageCalls:
    """Implements :class:`ImagePeers`."""

    def __init__(self, identity: JobIdentity, network: PeerNetwork) -> None:
        """``network`` leads to peers."""
        self._identity = identity
        self._network = network

    def take(self, address: str, checkpoint_id: int) -> str:
        """Ask a peer for an image, as :class:`ImagePeers` says."""
        request = control_pb2.TakeImageRequest(
            handshake=handshake_to_proto(self._identity), checkpoint_id=checkpoint_id
        )
        with _naming(address):
            reply: control_pb2.TakeImageReply = self._stub(address).TakeImage(
                request, timeout=_TAKE_TIMEOUT_S
            )
        return reply.image_id

    def collect(self, address: str, image_id: str) -> tuple[StoreImage, int]:
        """Fetch an image from a peer, as :class:`ImagePeers` says."""
        request = control_pb2.CollectImageRequest(
            handshake=handshake_to_proto(self._identity), image_id=image_id
        )
        with _naming(address):
            reply = self._stub(address).CollectImage(request, timeout=COLLECT_TIMEOUT_S)
        return image_from_json(orjson.loads(reply.image_json)), int(reply.new_bytes)

    def _stub(self, address: str) -> control_pb2_grpc.TaskManagerStub:
        return self._network.stub(address, control_pb2_grpc.TaskManagerStub)


@contextmanager
def _naming(address: str) -> Iterator[None]:
    """Turn a call's failure into an error that names the peer."""
    try:
        yield
    except grpc.RpcError as error:
        raise ConnectionLostError(
            f"task manager {address} gave no image of its store: {error.details()}"
        ) from error
    except ValueError as error:
        if not is_closed(error):
            raise
        raise ConnectionLostError(
            f"task manager {address} gave no image of its store: the connection was closed"
        ) from error
