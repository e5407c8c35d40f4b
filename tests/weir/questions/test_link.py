"""Questions and answers in frames: many at a time, taken back, and only from those who know the greeting."""

import asyncio

import pytest

from weir.errors import ConnectionLostError
from weir.questions.link import AnsweringProtocol, QuestionLink, new_greeting


def run(work, greeting=None):
    """``work(link, asked)``: ``asked`` has what came, as question and what answers it, and what was taken back."""

    async def go():
        loop, asked, known = asyncio.get_running_loop(), [], new_greeting()

        def take(question, answer):
            asked.append((question, answer))
            return lambda: asked.append((question, None))

        server = await loop.create_server(lambda: AnsweringProtocol(known, take), "127.0.0.1", 0)
        link = QuestionLink("127.0.0.1", server.sockets[0].getsockname()[1], greeting or known)
        try:
            await asyncio.wait_for(work(link, asked), 10)
        finally:
            link.close()
            server.close()

    asyncio.run(go())


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def test_answers_find_their_questions_in_any_order():
    async def work(link, asked):
        questions = [b"a", b"b" * 100_000, b"c"]
        tasks = [asyncio.create_task(link.ask(question, 5)) for question in questions]
        await until(lambda: len(asked) == 3)
        for question, answer in reversed(asked):
            answer(b"to " + question)
        assert await asyncio.gather(*tasks) == [b"to " + question for question in questions]

    run(work)


def test_a_question_is_taken_back_when_nobody_waits():
    async def work(link, asked):
        task = asyncio.create_task(link.ask(b"a", 5))
        await until(lambda: asked)
        task.cancel()
        await until(lambda: asked[-1] == (b"a", None))
        with pytest.raises(ConnectionLostError, match="did not answer within"):
            await link.ask(b"b", 0.01)
        await until(lambda: asked[-1] == (b"b", None))
        waiting = asyncio.create_task(link.ask(b"c", 5))
        await until(lambda: asked[-1][0] == b"c")
        link.close()
        with pytest.raises(ConnectionLostError):
            await waiting
        await until(lambda: asked[-1] == (b"c", None))

    run(work)


def test_who_does_not_know_the_greeting_is_not_heard():
    async def work(link, asked):
        with pytest.raises(ConnectionLostError):
            await link.ask(b"a", 5)
        assert not asked

    run(work, greeting=new_greeting())
