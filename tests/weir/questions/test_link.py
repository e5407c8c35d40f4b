"""Questions and answers in frames: many at a time, taken back, and only from those who know the greeting."""

import asyncio
import contextlib
import socket

import pytest

from weir.errors import ConnectionLostError
from weir.process.newcomers import NEWCOMERS_MAX, Entrance
from weir.questions.link import AnsweringProtocol, QuestionLink, new_greeting, serve_links


def run(work, greeting=None):
    """``work(link, asked)``: ``asked`` has what came, as question and what answers it, and what was taken back."""

    async def go():
        loop, asked, known = asyncio.get_running_loop(), [], new_greeting()

        def take(question, answer):
            asked.append((question, answer))
            return lambda: asked.append((question, None))

        server = await loop.create_server(lambda: AnsweringProtocol({known: take}), "127.0.0.1", 0)
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


def test_the_greeting_says_who_takes_the_questions_of_a_connection():
    async def go():
        loop, takers = asyncio.get_running_loop(), {}
        for name in (b"one", b"two"):
            takers[new_greeting()] = lambda question, answer, name=name: answer(name + question)
        server = await loop.create_server(lambda: AnsweringProtocol(takers), "127.0.0.1", 0)
        port, answers = server.sockets[0].getsockname()[1], []
        for greeting in takers:
            link = QuestionLink("127.0.0.1", port, greeting)
            answers.append(await link.ask(b"!", 10))
            link.close()
        server.close()
        assert answers == [b"one!", b"two!"]

    asyncio.run(go())


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


def test_silent_connections_end_and_keep_nobody_out(monkeypatch):
    monkeypatch.setattr("weir.questions.link.PATIENCE_S", 0.3)

    async def go(stack):
        known = new_greeting()
        entrance = Entrance(socket.create_server(("127.0.0.1", 0), backlog=2_000))
        port = entrance.getsockname()[1]
        server = await serve_links({known: lambda question, answer: answer(b"to " + question)}, entrance)
        loop = asyncio.get_running_loop()
        silent = [stack.enter_context(socket.socket()) for _ in range(NEWCOMERS_MAX + 20)]
        for each in silent:
            each.setblocking(False)
            await loop.sock_connect(each, ("127.0.0.1", port))
        link = QuestionLink("127.0.0.1", port, known)
        assert await link.ask(b"a", 5) == b"to a"
        for each in silent:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(each, 1), 10) == b""
        assert await link.ask(b"b", 5) == b"to b", "who has greeted may be silent"
        link.close()
        server.close()

    with contextlib.ExitStack() as stack:
        asyncio.run(go(stack))


def test_a_question_without_a_task():
    async def work(link, asked):
        done = []
        assert link.begin(b"a", 5, done.append) is None, "there is no connection yet"
        first = asyncio.create_task(link.ask(b"first", 5))
        await until(lambda: asked)
        asked[0][1](b"there")
        assert await first == b"there"
        for question in (b"a", b"b", b"c"):
            take_back = link.begin(question, 5, done.append)
        await until(lambda: len(asked) == 4)
        asked[2][1](b"to b")
        await until(lambda: done)
        assert done == [b"to b"]
        take_back()
        await until(lambda: asked[-1] == (b"c", None))
        link.close()
        await until(lambda: len(done) == 2)
        assert isinstance(done[1], ConnectionLostError), "c was taken back: it is told nothing"
        assert link.begin(b"d", 5, done.append) is None

    run(work)


def test_a_question_without_a_task_that_is_not_answered_in_time_is_taken_back():
    async def work(link, asked):
        first = asyncio.create_task(link.ask(b"first", 5))
        await until(lambda: asked)
        asked[0][1](b"there")
        await first
        done = []
        link.begin(b"a", 0.01, done.append)
        await until(lambda: done)
        assert "did not answer within" in str(done[0])
        await until(lambda: asked[-1] == (b"a", None))

    run(work)


def test_each_question_has_its_own_time():
    async def work(link, asked):
        first = asyncio.create_task(link.ask(b"first", 5))
        await until(lambda: asked)
        asked[0][1](b"there")
        await first
        late = {b"long": [], b"short": [], b"middle": []}
        for question, timeout_s in ((b"long", 60), (b"short", 0.01), (b"middle", 0.03)):
            link.begin(question, timeout_s, late[question].append)
        await until(lambda: late[b"middle"])
        assert late[b"short"]
        assert not late[b"long"]
        await until(lambda: [each for each, answer in asked if answer is None] == [b"short", b"middle"])

    run(work)


def test_a_late_answer_does_not_end_the_connection_for_others():
    async def work(link, asked):
        slow = asyncio.create_task(link.ask(b"slow", 5))
        await until(lambda: asked)
        late = asyncio.create_task(link.ask(b"late", 0.2))
        quick = asyncio.create_task(link.ask(b"quick", 5))
        await until(lambda: len(asked) == 3)
        asked[2][1](b"to quick")
        assert await quick == b"to quick"
        with pytest.raises(ConnectionLostError, match="did not answer within"):
            await late
        assert link.is_connected
        asked[0][1](b"to slow")
        assert await slow == b"to slow"

    run(work)


def test_a_connection_on_which_nothing_comes_is_given_up(monkeypatch):
    monkeypatch.setattr("weir.questions.link._SILENT_S", 0.01)

    async def work(link, asked):
        other = asyncio.create_task(link.ask(b"other", 5))
        await until(lambda: asked)
        with pytest.raises(ConnectionLostError, match="did not answer within"):
            await link.ask(b"a", 0.02)
        assert not link.is_connected
        with pytest.raises(ConnectionLostError, match="was closed"):
            await other

    run(work)
