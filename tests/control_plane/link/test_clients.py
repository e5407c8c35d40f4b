"""Calls to a task manager over a real connection that is closed meanwhile."""

import asyncio

import grpc
import pytest

from control_plane.link.clients import TaskManagerClient
from weir.errors import ConnectionLostError
from weir.questions.link import AnsweringProtocol, new_greeting
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.frequent_calls import FrequentCall, answer_to
from weir.rpc.wire import PROTOCOL_VERSION


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


@pytest.mark.parametrize("refuses", [False, True])
def test_the_end_of_a_checkpoint_goes_without_grpc_and_over_grpc_when_it_is_refused(refuses):
    async def run():
        failure = control_pb2.DeliveryFailure(cause="full")
        over_grpc, taken, greeting = [], [], new_greeting()

        def end(content):
            taken.append(control_pb2.EndCheckpointRequest.FromString(content))
            if refuses:
                raise ConnectionLostError("no")
            return control_pb2.EndCheckpointReply(failures=[failure])

        def take(frame, answer):
            answer(answer_to(frame, {FrequentCall.END_CHECKPOINT: end}))

        loop = asyncio.get_running_loop()
        calls = await loop.create_server(lambda: AnsweringProtocol({greeting: take}), "127.0.0.1", 0)
        status = control_pb2.StatusReply(
            protocol_version=PROTOCOL_VERSION,
            question_port=calls.sockets[0].getsockname()[1],
            frequent_calls_greeting=greeting,
        )

        class Service(control_pb2_grpc.TaskManagerServicer):
            async def Status(self, request, context):
                return status

            async def EndCheckpoint(self, request, context):
                over_grpc.append(request)
                return control_pb2.EndCheckpointReply(failures=[failure])

        server = grpc.aio.server()
        control_pb2_grpc.add_TaskManagerServicer_to_server(Service(), server)
        client = TaskManagerClient(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        await client.status()
        request = control_pb2.EndCheckpointRequest(checkpoint_id=7)
        for number in (1, 2):
            assert list((await client.end_checkpoint(request)).failures) == [failure]
            assert (len(taken), len(over_grpc)) == (number, number if refuses else 0)
        # Nobody takes them there any more.
        calls.close()
        client._calls.close()
        await asyncio.sleep(0)
        assert list((await client.end_checkpoint(request)).failures) == [failure]
        assert len(over_grpc) == (3 if refuses else 1)
        await client.close()
        await server.stop(0)

    asyncio.run(run())
