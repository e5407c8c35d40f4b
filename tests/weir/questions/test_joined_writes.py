"""Head and body of an answer leave as one write, and nothing stays behind."""

import asyncio

from weir.questions.joined_writes import JoinedWrites

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Transport:
    """Notes what is done to it."""

    def __init__(self):
        self.done = []

    def write(self, data):
        self.done.append(data)

    def close(self):
        self.done.append("closed")

    def is_closing(self):
        return "closed" in self.done


def done_after(steps):
    """What a transport sees of these steps, each at a turn of the loop of its own."""
    transport = Transport()

    async def run():
        joined = JoinedWrites(transport, asyncio.get_running_loop())
        for step in steps:
            step(joined)
            await asyncio.sleep(0)
        assert joined.is_closing() == transport.is_closing()

    asyncio.run(run())
    return transport.done


def answer(joined):
    joined.write(HEAD)
    joined.write(b"{}")


def test_head_and_body_are_one_write():
    assert done_after([answer, answer]) == [HEAD + b"{}"] * 2


def test_a_head_without_a_body_does_not_wait():
    assert done_after([lambda joined: joined.write(HEAD), lambda joined: joined.write(b"{}")]) == [
        HEAD,
        b"{}",
    ]


def test_what_was_written_leaves_before_the_connection_is_closed():
    def last(joined):
        joined.write(HEAD)
        joined.close()

    assert done_after([last]) == [HEAD, "closed"]
