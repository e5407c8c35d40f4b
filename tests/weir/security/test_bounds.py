"""Numbers and amounts that callers choose have bounds."""

import asyncio
import contextlib

import pytest

from weir.errors import HandshakeError
from weir.questions.link import HEADER, AnsweringProtocol, FrameBudget, new_greeting
from weir.rpc import common_pb2
from weir.rpc.wire import PROTOCOL_VERSION, handshake_from_proto


@pytest.mark.parametrize("generation", [2**64 - 1, (1 << 40) + 1])
def test_a_generation_that_would_fence_all_others_is_refused(generation):
    with pytest.raises(HandshakeError, match="cannot be"):
        handshake_from_proto(common_pb2.Handshake(protocol_version=PROTOCOL_VERSION, generation=generation))


def test_frames_that_have_begun_are_bounded_over_all_connections():
    """Twenty connections that each begin a frame of 60 MiB keep what the budget allows, and no more."""
    greeting, budget = new_greeting(), FrameBudget(8 << 20)
    piece = b"x" * (1 << 20)
    taken = []

    def asked(content, answer):
        taken.append(content)
        answer(b"done")

    async def run():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: AnsweringProtocol({greeting: asked}, budget), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(greeting + HEADER.pack(60 << 20, 1))
            writers.append(writer)
        for _ in range(4):
            for writer in writers:
                with contextlib.suppress(OSError):
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), 5)
            assert budget.used_bytes <= (8 << 20) + (1 << 20)
        for writer in writers:
            writer.close()
        while budget.used_bytes:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(greeting + HEADER.pack(2, 1) + b"ab")
        await asyncio.wait_for(reader.readexactly(HEADER.size + 4), 5)
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 30))
    assert taken == [b"ab"]
