"""Questions for one key over HTTP, without a task: the same bytes as through the application, which does the rest."""

import asyncio
import contextlib

import orjson
import pytest
import uvicorn
from starlette.responses import JSONResponse

from weir.questions.guard import Admission, GuardMiddleware, own_hosts
from weir.questions.joined_writes import JoiningProtocol
from weir.questions.pages import StatePages

QUESTION = b"GET /state/count/words/bel%2Fgium HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER = (200, {"key": "bel/gium", "value": 3})
#: The quick way has it as it is sent.
QUICK_ANSWER = (200, orjson.dumps(ANSWER[1]))


class Asked:
    """Notes what is asked, and which way; answers without a task when it is told to."""

    def __init__(self, is_quick=True):
        self.is_quick, self.quick, self.slow, self.taken_back = is_quick, [], [], 0

    def begin(self, question, done):
        if not self.is_quick:
            return None
        self.quick.append((question, done))

        def take_back():
            self.taken_back += 1

        return take_back

    async def ask(self, question):
        self.slow.append(question)
        return ANSWER

    def note_malformed(self):
        raise AssertionError("none is")


def run(work, asked):
    """``work(reader, writer, server)`` of a connection to a server of the pages."""

    async def others(scope, receive, send):
        await JSONResponse({"error": "no page"}, 404)(scope, receive, send)

    async def go():
        admitted = Admission(own_hosts("localhost"))
        pages = StatePages(asked, admitted)
        app = GuardMiddleware(pages.before(others), admitted)
        config = uvicorn.Config(app, port=0, lifespan="off", access_log=False, log_level="critical")
        config.http = lambda *args, **given: JoiningProtocol(*args, begin=pages.begin, **given)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext
        serving = asyncio.create_task(server.serve())
        async with asyncio.timeout(30):
            while not server.started:
                await asyncio.sleep(0.001)
            reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
            await work(reader, writer, server)
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(go())


async def read(reader):
    """Head without the date, and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in head if line.startswith(b"content-length"))
    return sorted(line for line in head if not line.startswith(b"date")), await reader.readexactly(length)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def both_ways(request):
    """What is answered by each way."""
    found = []
    for is_quick in (True, False):
        asked = Asked(is_quick)

        async def work(reader, writer, server, asked=asked):
            writer.write(request)
            if asked.is_quick:
                await until(lambda: asked.quick)
                asked.quick[0][1](QUICK_ANSWER)
            found.append(await read(reader))

        run(work, asked)
        assert (len(asked.quick), len(asked.slow)) == ((1, 0) if is_quick else (0, 1))
        question = asked.quick[0][0] if is_quick else asked.slow[0]
        assert (question.step, question.state, question.key) == ("count", "words", "bel/gium")
    return found


def test_the_answer_is_the_same_by_both_ways():
    quick, slow = both_ways(QUESTION)
    assert quick == slow
    assert quick[1] == b'{"key":"bel/gium","value":3}'


def test_questions_on_one_connection_are_answered_in_their_order():
    asked = Asked()

    async def work(reader, writer, server):
        writer.write(QUESTION * 3)
        for number in range(3):
            await until(lambda number=number: len(asked.quick) == number + 1)
            asked.quick[number][1]((503, b'{"error":"%d"}' % number))
            head, body = await read(reader)
            assert body == b'{"error":"%d"}' % number
            assert b"retry-after: 1" in head

    run(work, asked)


def test_what_the_quick_way_cannot_answer_goes_the_long_way():
    asked = Asked()

    async def work(reader, writer, server):
        writer.write(QUESTION)
        await until(lambda: asked.quick)
        asked.quick[0][1](None)
        assert (await read(reader))[1] == b'{"key":"bel/gium","value":3}'

    run(work, asked)
    assert len(asked.slow) == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (QUESTION.replace(b"localhost", b"evil.example"), b"403"),
        (QUESTION.replace(b"Host", b"Host: evil.example\r\nHost"), b"403"),
        (QUESTION.replace(b"\r\n\r\n", b"\r\nHost: evil.example\r\n\r\n"), b"200"),
        (QUESTION.replace(b"\r\n\r\n", b"\r\nOrigin: http://evil.example\r\n\r\n"), b"403"),
        (QUESTION.replace(b"HTTP/1.1", b"HTTP/1.0"), b"200"),
        (QUESTION.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"200"),
        (QUESTION.replace(b"%2Fgium", b"?consistency=checkpoint"), b"200"),
        (b"GET /state/count/words HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        (b"GET /state/count//a HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (QUESTION.replace(b"GET", b"PUT"), b"405"),
    ],
)
def test_everything_else_goes_to_the_application(request_bytes, status):
    asked = Asked()

    async def work(reader, writer, server):
        writer.write(request_bytes)
        head, _ = await read(reader)
        assert any(status in line for line in head if line.startswith(b"HTTP"))

    run(work, asked)
    assert not asked.quick


def test_a_caller_that_goes_takes_its_question_back():
    asked = Asked()

    async def work(reader, writer, server):
        writer.write(QUESTION)
        await until(lambda: asked.quick)
        writer.close()
        await until(lambda: asked.taken_back)

    run(work, asked)


def test_a_server_that_ends_answers_what_it_was_asked():
    asked = Asked()

    async def work(reader, writer, server):
        writer.write(QUESTION)
        await until(lambda: asked.quick)
        server.should_exit = True
        await until(lambda: not server.servers[0].is_serving())
        await asyncio.sleep(0)
        await until(lambda: all(not each.cycle.keep_alive for each in server.server_state.connections))
        asked.quick[0][1](QUICK_ANSWER)
        head, _ = await read(reader)
        assert b"connection: close" in head
        assert await reader.read() == b""

    run(work, asked)
