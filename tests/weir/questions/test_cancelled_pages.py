"""A caller that goes ends its question."""

import asyncio

from weir.questions.guard import Admission
from weir.questions.pages import StatePages


class Unanswered:
    """Takes questions and never answers; notes that one was cancelled."""

    def __init__(self):
        self.was_cancelled = False

    async def ask(self, question):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


def test_a_question_is_cancelled_when_its_caller_goes():
    asking, sent = Unanswered(), []
    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/state/count/words/belgium",
        "query_string": b"",
        "headers": [],
    }

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def run():
        async with asyncio.timeout(30):
            await StatePages(asking, Admission(frozenset())).before(None)(scope, receive, send)

    asyncio.run(run())
    assert asking.was_cancelled
    assert sent[0]["status"] == 499
