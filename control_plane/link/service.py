"""The gRPC face of the control plane: task managers register and renew their leases here. Decides nothing."""

from __future__ import annotations

from typing import Any

import grpc
import orjson

from control_plane.composition import ControlPlane
from control_plane.directory import directory_json
from weir.config import ControlPlaneConfig
from weir.errors import AddressInUseError, FencedError, WeirError
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.access import SERVER_OPTIONS, Gate, add_port, async_gates
from weir.rpc.wire import CONTROL_MESSAGE_BYTES_MAX, message_size_options
from weir.types import join_address

#: grpc.aio's context is generic in the messages, which says nothing here.
Context = grpc.aio.ServicerContext[Any, Any]


class ControlPlaneService(control_pb2_grpc.ControlPlaneServicer):
    """Hands requests to the parts of the control plane, in the event loop's thread."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane

    async def Register(
        self, request: control_pb2.RegisterRequest, context: Context
    ) -> control_pb2.RegisterReply:
        """A task manager announces itself; refused if its Status does not answer or does not fit."""
        try:
            return await self._control_plane.reception.register(request)
        except FencedError as error:
            # It comes again under another name.
            await context.abort(grpc.StatusCode.ABORTED, str(error))
            raise
        except WeirError as error:
            refused = grpc.StatusCode.UNAVAILABLE if error.retryable else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(refused, str(error))
            raise

    async def Heartbeat(
        self, request: control_pb2.HeartbeatRequest, context: Context
    ) -> control_pb2.HeartbeatReply:
        """Renews a lease."""
        return self._control_plane.reception.heartbeat(request)

    async def Locate(self, request: control_pb2.LocateRequest, context: Context) -> control_pb2.LocateReply:
        """Where the state of key groups is."""
        return control_pb2.LocateReply(
            addresses=self._control_plane.job.locations.locate(request.stage_index, request.key_groups)
        )

    async def Directory(
        self, request: control_pb2.DirectoryRequest, context: Context
    ) -> control_pb2.DirectoryReply:
        """What a task manager needs to take questions."""
        return control_pb2.DirectoryReply(directory_json=orjson.dumps(directory_json(self._control_plane)))

    async def AcknowledgeCheckpoint(
        self, request: control_pb2.AcknowledgeCheckpointRequest, context: Context
    ) -> control_pb2.AcknowledgeCheckpointReply:
        """A part of a checkpoint."""
        try:
            return self._control_plane.checkpointer.acknowledged(request)
        except WeirError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise

    async def Drain(self, request: control_pb2.DrainRequest, context: Context) -> control_pb2.DrainReply:
        """A task manager wants to be emptied before it leaves."""
        return self._control_plane.reception.drain(request)

    async def Deregister(
        self, request: control_pb2.DeregisterRequest, context: Context
    ) -> control_pb2.DeregisterReply:
        """A task manager leaves."""
        self._control_plane.leases.deregister(request)
        return control_pb2.DeregisterReply()


async def serve_grpc(control_plane: ControlPlane, config: ControlPlaneConfig) -> tuple[grpc.aio.Server, int]:
    """Start the gRPC server; returns it and its port.

    Raises:
        AddressInUseError: the port is taken.
    """
    gate = Gate()
    server = grpc.aio.server(
        interceptors=async_gates(gate),
        options=[*SERVER_OPTIONS, *message_size_options(CONTROL_MESSAGE_BYTES_MAX)],
    )
    control_pb2_grpc.add_ControlPlaneServicer_to_server(ControlPlaneService(control_plane), server)
    address = join_address(config.host, config.cp_grpc_port)
    try:
        port = add_port(server, address, gate)
    except RuntimeError as error:
        raise AddressInUseError(
            f"cannot listen on {address}: the port is in use or the address is not this "
            "machine's; choose another with --port"
        ) from error
    await server.start()
    return server, port
