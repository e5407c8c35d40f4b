"""The pages that answer questions: what they show of answers and refusals."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from control_plane.web import state_pages
from control_plane.web.http import _add_guard
from weir.config import ControlPlaneConfig
from weir.protocol.queries import QueryError, continuation, parse_question
from weir.questions.access import Audit
from weir.questions.guard import Admission, own_hosts


class Asked:
    """Answers as it is told to."""

    def __init__(self, directory, observe):
        directory._control_plane.asked, self.observe = self, observe
        self.questions, self.answer = [], (200, {"key": "a", "value": 1})

    async def ask(self, question):
        self.questions.append(question)
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def listed(self, step):
        if step not in (None, "count"):
            raise QueryError(404, f"the job has no step {step!r}")
        return [{"step": "count", "state": "words"}]

    def note_malformed(self):
        self.observe("", "", "", 400, 0.0)


def make(monkeypatch):
    monkeypatch.setattr(state_pages, "Asking", Asked)
    app, control_plane = FastAPI(), SimpleNamespace()
    state_pages.add_state_pages(app, control_plane, CollectorRegistry(), Admission(frozenset()))
    return Client(app), control_plane.asked


class Client:
    """Asks an application in this process."""

    def __init__(self, app):
        self._app = app

    def get(self, path, headers=None):
        return self.ask("GET", path, headers)

    def ask(self, method, path, headers=None):
        async def ask():
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, headers=headers)

        return asyncio.run(ask())


def test_answers_and_refusals(monkeypatch):
    client, asked = make(monkeypatch)
    reply = client.get("/state/count/words/be%2Flux?consistency=checkpoint")
    assert (reply.status_code, reply.json()) == (200, {"key": "a", "value": 1})
    assert asked.questions[-1].key == "be/lux"
    client.get("/state/count/words?from=a&to=b&limit=5")
    assert (asked.questions[-1].key, asked.questions[-1].first, asked.questions[-1].limit) == (None, "a", 5)
    # Not the key that its bytes would be with what cannot be read replaced.
    reply = client.get("/state/count/words/%FF%FE")
    assert (reply.status_code, reply.json()["error"][:28]) == (400, "the path is no text in UTF-8")
    reply = client.get("/state/count/words?from=%FF")
    assert (reply.status_code, reply.json()["error"][:34]) == (400, "the parameters are no text in UTF-")
    reply = client.get("/state/count/words?from=a&to=c&from=b")
    assert (reply.status_code, reply.json()["error"]) == (400, "'from' is there more than once; give it once")
    reply = client.get("/state/count/words?form=a")
    assert reply.status_code == 400
    assert reply.json()["error"].startswith("'form' is no parameter")
    asked.answer = QueryError(503, "the job is RESTARTING: try again")
    reply = client.get("/state/count/words/a")
    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
    assert reply.json() == {"error": "the job is RESTARTING: try again"}


def test_what_can_be_asked_is_listed(monkeypatch):
    client, _ = make(monkeypatch)
    for path in ("/state", "/state/", "/state/count", "/state/count/"):
        reply = client.get(path)
        assert (reply.status_code, reply.json()) == (
            200,
            {"states": [{"step": "count", "state": "words"}]},
        ), path
    assert client.get("/state/cuont").status_code == 404
    assert client.get("/state?from=a").status_code == 400
    assert client.get("/openapi.json").json()["paths"]["/state"]["get"]["responses"]["200"]


def test_the_openapi_document_says_what_is_answered(monkeypatch):
    client, _ = make(monkeypatch)
    for path in ("/state/{step}/{state}", "/state/{step}/{state}/{key}"):
        operation = client.get("/openapi.json").json()["paths"][path]["get"]
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]
        names = {item["name"] for item in operation["parameters"]} - {"step", "state", "key"}
        with pytest.raises(QueryError) as told:
            parse_question("s", "s", None, {"other": "1"})
        assert str(told.value).endswith(f"there are {', '.join(sorted(names))}")
        assert {"400", "404", "409", "410", "413", "429", "503", "504"} <= operation["responses"].keys()


def test_rows_in_arrow_come_with_the_rest_of_the_answer_in_a_header(monkeypatch):
    client, asked = make(monkeypatch)
    asked.answer = (200, {"rows": b"arrow", "continuation": "more"})
    reply = client.get("/state/count/words?limit=100000", {"Accept": "application/vnd.apache.arrow.stream"})
    assert (reply.content, reply.headers["weir-answer"]) == (b"arrow", '{"continuation":"more"}')
    assert asked.questions[-1].arrow
    assert client.get("/state/count/words?limit=100000").status_code == 400


def test_the_paths_of_a_state_store_have_a_bound_on_bytes(monkeypatch):
    client, asked = make(monkeypatch)

    async def named(step, state):
        return "count", "words"

    asked.named = named
    # A page is full because of its bytes: one value of 4 MiB, and more to come.
    asked.answer = (200, {"rows": [{"key": "a", "value": 1}], "continuation": continuation(1, "61")})
    reply = client.get("/all")
    assert reply.status_code == 413
    assert reply.json()["error"].endswith("or 64 MiB: ask /state/count/words, page by page")
    assert len(asked.questions) == 16
    asked.answer = (200, {"rows": [{"key": "a", "value": 1}], "continuation": None})
    assert client.get("/all").json() == [{"key": "a", "value": 1}]


def test_head_is_get_without_the_body_and_changes_nothing():
    app, scaled = FastAPI(), []
    app.get("/status")(lambda: {"state": "RUNNING"})
    app.get("/scale")(lambda: scaled.append(1))
    _add_guard(app, ControlPlaneConfig(), Admission(own_hosts("localhost")), None, Audit())
    client = Client(app)
    reply = client.ask("HEAD", "/status")
    assert (reply.status_code, reply.content, reply.headers["content-length"]) == (200, b"", "19")
    assert client.ask("HEAD", "/scale").status_code == 405
    assert not scaled
