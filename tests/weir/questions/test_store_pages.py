"""The paths of a state store of Kafka Streams."""

import asyncio
import json

import pytest

from weir.questions.guard import Admission
from weir.questions.pages import StatePages


class Answering:
    """One state, of which this is said."""

    def __init__(self, status, answer):
        self.said = status, answer

    async def named(self, step, state):
        return "seen", "count"

    async def ask(self, question):
        return self.said


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((200, {"count": 27}), (200, {"key": "approximateNumEntries", "value": 27})),
        # Rows of a database are not counted unless the configuration says so.
        ((400, {"error": "not counted"}), (200, {"key": "approximateNumEntries", "value": -1})),
        ((504, {"error": "longer than 5 s"}), (200, {"key": "approximateNumEntries", "value": -1})),
        ((503, {"error": "away"}), (503, {"error": "away"})),
    ],
)
def test_what_is_not_counted_is_minus_one(said, expected):
    sent, asked = [], asyncio.Event()
    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/approximateNumEntries",
        "query_string": b"",
        "headers": [(b"host", b"localhost:9008")],
    }

    async def receive():
        await asked.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def run():
        async with asyncio.timeout(30):
            await StatePages(Answering(*said), Admission(frozenset())).before(None)(scope, receive, send)

    asyncio.run(run())
    body = b"".join(message.get("body", b"") for message in sent)
    assert (sent[0]["status"], json.loads(body)) == expected
