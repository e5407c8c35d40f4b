"""Takes calls of task managers that come every second, without gRPC (``weir.rpc.frequent_calls``). Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from control_plane.composition import ControlPlane
from control_plane.link.reception import CallsPlace
from weir.config import ControlPlaneConfig
from weir.questions.http_server import listen
from weir.questions.link import new_greeting, serve_links
from weir.rpc import control_pb2
from weir.rpc.frequent_calls import FrequentCall, Handler, answer_to


async def serve_frequent_calls(
    control_plane: ControlPlane, config: ControlPlaneConfig
) -> tuple[asyncio.Server, CallsPlace]:
    """Start the server, in the event loop; returns it and where it listens, on any free port."""
    reception, checkpointer = control_plane.reception, control_plane.checkpointer
    heartbeat, acknowledge = control_pb2.HeartbeatRequest, control_pb2.AcknowledgeCheckpointRequest
    handlers: dict[FrequentCall, Handler] = {
        FrequentCall.HEARTBEAT: lambda content: reception.heartbeat(heartbeat.FromString(content)),
        FrequentCall.ACKNOWLEDGE_CHECKPOINT: lambda content: checkpointer.acknowledged(
            acknowledge.FromString(content)
        ),
    }

    def called(frame: bytes, answer: Callable[[bytes], None]) -> None:
        answer(answer_to(frame, handlers))

    greeting = new_greeting()
    host = config.host.removeprefix("[").removesuffix("]")
    entrance = listen(host, 0, or_any_port=False)
    server = await serve_links({greeting: called}, entrance)
    return server, CallsPlace(entrance.getsockname()[1], greeting)
