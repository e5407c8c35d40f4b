"""Tokens of HTTP, and who is written down for what."""

import asyncio
import json

import pytest

from weir.clock import SystemClock
from weir.questions.access import AccessMiddleware, Audit, right_of
from weir.questions.https import token_headers
from weir.security.private_files import write_private
from weir.security.tokens import Right, Tokens


@pytest.fixture
def directory(tmp_path):
    for name in ("look", "operate"):
        write_private(tmp_path / f"{name}.token", name.encode() * 8)
    return tmp_path


@pytest.fixture
def ask(directory):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    access = AccessMiddleware(app, Tokens(directory, SystemClock()), Audit(str(directory / "audit")))

    def asks(method, path, body=b"", **headers):
        """The status of an answer."""
        sent = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            sent.append(message)

        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": pairs}
        asyncio.run(access(scope, receive, send))
        return sent[0]["status"]

    return asks


def test_a_cookie_is_found_beside_those_of_others(ask):
    assert ask("GET", "/status", cookie='other={"x": [1, 2]}; weir_token=' + "look" * 8) == 200
    assert ask("GET", "/status", cookie='other={"x": [1, 2]}; weir_token=look') == 401


def test_strangers_write_nothing_into_the_audit_file(ask, directory, caplog):
    caplog.set_level("INFO", "weir.audit")
    assert ask("POST", "/checkpoints") == 401
    assert ask("POST", "/login", b"token=wrong") == 401
    assert ask("POST", "/checkpoints", authorization="Bearer " + "look" * 8) == 403
    assert ask("POST", "/checkpoints", authorization="Bearer " + "operate" * 8) == 200
    entries = [json.loads(line) for line in (directory / "audit").read_text().splitlines()]
    assert [(each["who"], each["status"]) for each in entries] == [
        ("token look", 403),
        ("token operate", 200),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO", "INFO"]


def test_a_token_ends_with_its_file_and_one_that_is_half_written_does_not(directory):
    class Time:
        now_s = 0.0

        def monotonic_s(self):
            return self.now_s

    time = Time()
    tokens = Tokens(directory, time)
    (directory / "operate.token").write_bytes(b"half")
    time.now_s += 2
    assert tokens.right_of("operate" * 8) is Right.OPERATE
    (directory / "operate.token").unlink()
    time.now_s += 2
    assert tokens.right_of("operate" * 8) is Right.NONE
    assert tokens.right_of("look" * 8) is Right.LOOK
    write_private(directory / "operate.token", b"another-token-of-32-bytes")
    time.now_s += 2
    assert tokens.right_of("another-token-of-32-bytes") is Right.OPERATE


def test_who_may_look_sees_logs_and_profiles_and_asks_for_none(ask):
    look, operate = ("Bearer " + name * 8 for name in ("look", "operate"))
    for path in ("/logs", "/profile"):
        assert ask("GET", path) == 401
        assert ask("GET", path, authorization=look) == 200
    assert ask("POST", "/profile", authorization=look) == 403
    assert ask("POST", "/profile", authorization=operate) == 200


@pytest.mark.parametrize(
    ("has_tokens", "token", "right"),
    [(True, "look", Right.LOOK), (True, "operate", Right.OPERATE), (False, "", Right.OPERATE)],
)
def test_a_page_learns_what_its_caller_may_do(directory, has_tokens, token, right):
    seen = []

    async def app(scope, receive, send):
        seen.append(right_of(scope))

    tokens = Tokens(directory, SystemClock()) if has_tokens else None
    headers = [(b"authorization", f"Bearer {token * 8}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/logs", "headers": headers}
    asyncio.run(AccessMiddleware(app, tokens, Audit())(scope, None, None))
    assert seen == [right]
    assert right_of({}) is Right.NONE


def test_a_token_is_not_sent_in_plain(directory, monkeypatch):
    monkeypatch.setenv("WEIR_TOKEN", "t" * 20)
    monkeypatch.delenv("WEIR_SECURITY_DIRECTORY", raising=False)
    assert token_headers() == {}
    monkeypatch.setenv("WEIR_SECURITY_DIRECTORY", str(directory))
    assert token_headers() == {"Authorization": "Bearer " + "t" * 20}
