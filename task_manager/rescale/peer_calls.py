"""Calls of a rescale to other task managers by gRPC, and state that is sent with its groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import grpc

from task_manager.exchange.peer_network import PeerNetwork
from weir.clock import Clock
from weir.errors import ConnectionLostError, WeirError
from weir.protocol.rescale.relink import RelinkOffer
from weir.protocol.rescale.rescale_owner import HandoverReceived
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.wire import JobIdentity, handshake_to_proto, subtask_to_proto
from weir.state.api import StateBackend
from weir.state.placement.migration import ship_groups
from weir.types import SubtaskId

_HANDOVER_TIMEOUT_S = 30.0


class PeerCalls:
    """Implements ``ports.Peers``; each call waits for its answer."""

    def __init__(self, identity: JobIdentity, network: PeerNetwork) -> None:
        self._identity = identity
        self._network = network

    def hand_over(
        self,
        address: str,
        target: SubtaskId,
        handover: HandoverReceived,
        bytes_shipped: int,
        on_failure: Callable[[WeirError], None],
        offer: RelinkOffer | None = None,
    ) -> None:
        """Hand groups over to a peer, as ``ports.Peers`` says."""
        request = control_pb2.HandOverRequest(
            handshake=handshake_to_proto(self._identity),
            target=subtask_to_proto(target),
            routing_version=handover.version,
            groups=[
                control_pb2.OwnedGroup(key_group=group, owner_epoch=epoch)
                for group, epoch in handover.groups.items()
            ],
            state_location=str(handover.location),
            bytes_shipped=bytes_shipped,
            relink_checkpoint_id=0 if offer is None else offer.checkpoint_id,
            deleted_keys=() if offer is None else offer.deleted_keys,
        )
        try:
            stub = self._network.stub(address, control_pb2_grpc.TaskManagerStub)
            stub.HandOver(request, timeout=_HANDOVER_TIMEOUT_S)
        except (grpc.RpcError, ConnectionLostError, ValueError) as error:
            # A value error: the connection was closed between the two.
            reason = error.details() if isinstance(error, grpc.RpcError) else error
            lost = ConnectionLostError(f"task manager {address} did not take key groups over: {reason}")
            lost.__cause__ = error
            on_failure(lost)


class Shipper:
    """Implements ``ports.Shipping`` for strategy local."""

    def __init__(
        self, store: StateBackend, network: PeerNetwork, bytes_per_second: int, clock: Clock
    ) -> None:
        """``store``: where the state is; ``bytes_per_second``: rows of other groups are processed meanwhile."""
        self._store = store
        self._network = network
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._closed = False

    def ship(
        self,
        source: SubtaskId,
        address: str,
        groups: Mapping[int, int],
        state_ids: Sequence[int],
        on_group: Callable[[int, int], None],
    ) -> None:
        """Ship groups to a peer, as ``ports.Shipping`` says."""
        ship_groups(
            self._store,
            self._network.state_client(source.stage_index, address, groups),
            groups,
            state_ids,
            self._clock,
            on_group=on_group,
            cancelled=lambda: self._closed,
            bytes_per_second=self._bytes_per_second,
        )

    def close(self) -> None:
        """Stop at the next piece."""
        self._closed = True
