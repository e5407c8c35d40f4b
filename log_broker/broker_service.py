"""What others call at a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from log_broker.broker import Broker
from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.peers import Controllers
from log_broker.producing import ProducerStream
from log_broker.reading import ReaderStream
from log_broker.replication import follow
from log_broker.views import name_from_proto
from log_broker.waiting import EOF
from weir.rpc import log_pb2, log_pb2_grpc
from weir.rpc.log_wire import LOG_SERVICE, as_it_is

_CONTROLLER_TIMEOUT_S = 10.0
#: Of what is asked again and again.
_STATUS_TIMEOUT_S = 2.0
#: A client waits for who leads for half a second.
_METADATA_TIMEOUT_S = 0.3
#: A controller that does not answer is asked again for so long, and so often.
_CONTROLLER_PATIENCE_S, _AGAIN_S = 3.0, 0.1
_BEGINS_ANEW = "this replica begins anew; another one will lead"


def add_to(server: grpc.aio.Server, service: BrokerService) -> None:
    """Let a server answer for the broker. Calls with megabytes are read by hand."""
    large = {
        "Produce": grpc.stream_stream_rpc_method_handler(
            service.Produce, as_it_is, log_pb2.ProduceReply.SerializeToString
        ),
        "Replicate": grpc.stream_stream_rpc_method_handler(
            service.Replicate, as_it_is, log_pb2.ReplicateReply.SerializeToString
        ),
    }
    log_pb2_grpc.add_LogBrokerServicer_to_server(service, server)
    server.add_registered_method_handlers(LOG_SERVICE, large)  # type: ignore[attr-defined]  # not in the stubs


def _of_topic(view: log_pb2.ClusterView, topic: str) -> list[log_pb2.PartitionView]:
    return [each for each in view.partitions if each.name.topic == topic]


class BrokerService(log_pb2_grpc.LogBrokerServicer):
    """Called by gRPC, in the broker's event loop."""

    def __init__(self, broker: Broker, controllers: Controllers) -> None:
        """``controllers``: says which one leads."""
        self._broker = broker
        self._controllers = controllers

    async def Produce(self, _: Any, context: Any) -> None:
        """Serve one producer and partition; messages come as bytes."""
        message = await context.read()
        if message is EOF:
            return
        request = log_pb2.ProduceRequest.FromString(message)
        name = name_from_proto(request.open.name)
        replica = self._broker.leads(name)
        if replica is None:
            opened = log_pb2.ProduceOpened(leader_address=self._broker.leader_address(name))
            await context.write(log_pb2.ProduceReply(opened=opened))
            return
        try:
            await ProducerStream(replica, request.open, context).run()
        except LogDamagedError as error:
            replica.damaged(error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, _BEGINS_ANEW)
        except LogWriteError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def Read(self, _: Any, context: Any) -> None:
        """Serve one reader and partition."""
        request = await context.read()
        if request is EOF:
            return
        name = name_from_proto(request.open.name)
        replica = self._broker.leads(name)
        if replica is None:
            await context.write(log_pb2.ReadReply(leader_address=self._broker.leader_address(name)))
            return
        try:
            await ReaderStream(replica, request.open, context).run(request.credit_bytes)
        except LogDamagedError as error:
            replica.damaged(error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, _BEGINS_ANEW)
        except LogWriteError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def Replicate(self, _: Any, context: Any) -> None:
        """Serve the leader of a partition; messages come as bytes."""
        message = await context.read()
        if message is EOF:
            return
        request = log_pb2.ReplicateRequest.FromString(message)
        replica = self._broker.replicas.get(name_from_proto(request.open.name))
        if replica is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this broker has not heard of the partition yet")
            return
        try:
            await follow(replica, request.open, context)
        except LogWriteError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def Metadata(self, request: log_pb2.MetadataRequest, context: Any) -> log_pb2.MetadataReply:
        """Say who leads the partitions of a topic."""
        found = _of_topic(self._broker.view, request.topic)
        if found:
            return log_pb2.MetadataReply(partitions=found, brokers=self._broker.view.brokers)
        # Created a moment ago, or while this broker was cut off: only the controller knows that there is none.
        stub = self._broker.peers.controller(self._controllers.current)
        try:
            reply = await stub.Status(log_pb2.StatusRequest(), timeout=_METADATA_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return log_pb2.MetadataReply()
        return log_pb2.MetadataReply(
            partitions=_of_topic(reply.view, request.topic), brokers=reply.view.brokers
        )

    async def CreateTopic(
        self, request: log_pb2.CreateTopicRequest, context: Any
    ) -> log_pb2.CreateTopicReply:
        """Ask the controller."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _CONTROLLER_PATIENCE_S
        while True:
            stub = self._broker.peers.controller(self._controllers.current)
            try:
                reply: log_pb2.CreateTopicReply = await stub.CreateTopic(
                    request, timeout=_CONTROLLER_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                # It is being started, or another one is about to lead; what was created by then is no error.
                if error.code() is not grpc.StatusCode.UNAVAILABLE or loop.time() > until_s:
                    return log_pb2.CreateTopicReply(error=self._no_controller(error), is_away=True)
                await asyncio.sleep(_AGAIN_S)
            else:
                return reply

    async def Rearrange(self, request: log_pb2.RearrangeRequest, context: Any) -> log_pb2.RearrangeReply:
        """Ask the controller."""
        stub = self._broker.peers.controller(self._controllers.current)
        try:
            reply: log_pb2.RearrangeReply = await stub.Rearrange(request, timeout=_CONTROLLER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return log_pb2.RearrangeReply(error=self._no_controller(error), is_away=True)
        return reply

    async def AcceptLoss(self, request: log_pb2.AcceptLossRequest, context: Any) -> log_pb2.AcceptLossReply:
        """Ask the controller."""
        stub = self._broker.peers.controller(self._controllers.current)
        try:
            reply: log_pb2.AcceptLossReply = await stub.AcceptLoss(request, timeout=_CONTROLLER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return log_pb2.AcceptLossReply(error=self._no_controller(error), is_away=True)
        return reply

    async def Status(self, request: log_pb2.StatusRequest, context: Any) -> log_pb2.StatusReply:
        """Ask the controller; without it, say what is known here."""
        stub = self._broker.peers.controller(self._controllers.current)
        try:
            reply: log_pb2.StatusReply = await stub.Status(request, timeout=_STATUS_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return log_pb2.StatusReply(
                view=self._broker.view, replicas=self._broker.reports(), error=self._no_controller(error)
            )
        return reply

    def _no_controller(self, error: grpc.aio.AioRpcError) -> str:
        return f"the controller at {self._controllers.current} does not answer: {error.details()}; start it again"
