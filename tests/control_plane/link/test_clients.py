"""Calls to a task manager over a real connection that is closed meanwhile."""

import asyncio

import grpc
import pytest

from control_plane.link.clients import TaskManagerClient
from weir.errors import ConnectionLostError
from weir.rpc import control_pb2, control_pb2_grpc


def test_a_call_whose_connection_is_closed_fails_and_ends_no_task():
    """gRPC cancels it: whoever waits for it would seem to have been told to end, and go without a word."""

    async def run():
        asked = asyncio.Event()

        class Silent(control_pb2_grpc.TaskManagerServicer):
            async def Status(self, request, context):
                asked.set()
                await asyncio.Event().wait()

        server = grpc.aio.server()
        control_pb2_grpc.add_TaskManagerServicer_to_server(Silent(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = TaskManagerClient(f"127.0.0.1:{port}")
        waiting = asyncio.create_task(client.status())
        await asked.wait()
        await client.close()
        with pytest.raises(ConnectionLostError, match="it has left or is lost"):
            await waiting
        assert not await client.is_gone()
        with pytest.raises(ConnectionLostError, match="it has left or is lost"):
            await client.cancel(control_pb2.CancelRequest())

        other = TaskManagerClient(f"127.0.0.1:{port}")
        ending = asyncio.create_task(other.status())
        asked.clear()
        await asked.wait()
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        await other.close()
        await server.stop(0)

    asyncio.run(run())


def test_nothing_listens():
    async def run():
        client = TaskManagerClient("127.0.0.1:1")
        assert await client.is_gone()
        with pytest.raises(ConnectionLostError, match=r"127\.0\.0\.1:1 does not answer"):
            await client.status()
        await client.close()

    asyncio.run(run())
