"""``GET /state/...`` as an ASGI application; the routing and validation of a framework would cost four times as much.

It comes before the pages of the control plane and of each task manager. ``/keyvalue/{key}``, ``/all`` and so on are the
paths of the demos of a state store of Kafka Streams, for those who come from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from weir.protocol.queries import PAGE_BYTES_MAX, PAGE_ROWS_MAX, QueryError, parse_question
from weir.questions.asking import Asking
from weir.questions.guard import Admission
from weir.questions.joined_writes import Done, Response
from weir.questions.methods import READING, wrong_method

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")
#: Until then nobody looks whether the caller is still there.
_PATIENCE_S = 0.1
ARROW_TYPE = b"application/vnd.apache.arrow.stream"
#: Of an answer in Arrow: all that is not rows, as JSON.
ANSWER_HEADER = b"weir-answer"
#: Pages of a state store, and into how many parts their paths fall.
_STORE_PATHS = {
    b"keyvalue": 2,
    b"all": 1,
    b"reverseAll": 1,
    b"range": 3,
    b"reverseRange": 3,
    b"prefixScan": 2,
    b"approximateNumEntries": 1,
}
#: What one answer of theirs has at most; a page is cut by rows or by bytes, so that these are 64 MiB.
_STORE_ROWS_MAX, _STORE_PAGES_MAX = 100_000, (64 << 20) // PAGE_BYTES_MAX
#: The number of entries of a store that is not counted, as there.
NOT_COUNTED = -1
_HOSTS_MAX = 64
_JSON_HEADER = (b"content-type", b"application/json")


def tells_state(path: str) -> bool:
    """Return whether what is at a path of HTTP has keys or values of a state."""
    first = path.split("/", 2)[1:2]
    return first == ["state"] or (bool(first) and first[0].encode() in _STORE_PATHS)


class StatePages:
    """Answers questions; everything else goes on."""

    def __init__(self, asking: Asking, admitted: Admission) -> None:
        """``admitted``: who may ask by :meth:`begin`; before others there is ``GuardMiddleware``."""
        self._asking = asking
        self._admitted = admitted
        #: Values of ``Host`` that are admitted, as they came.
        self._hosts: set[bytes] = set()

    def before(self, app: ASGIApp) -> ASGIApp:
        """An application that answers questions itself; everything else goes on to ``app``."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            parts = _asked_parts(scope) if scope["type"] == "http" else None
            if parts is None:
                await app(scope, receive, send)
            elif scope["method"] == "GET":
                await self._answer(scope, receive, send, parts)
            else:
                await _refuse_method(scope, send)

        return answer

    def begin(self, scope: Scope, done: Done) -> Callable[[], None] | None:
        """Answer a question for one key without a task of asyncio, if nothing stands against it.

        Args:
            scope: of the request.
            done: called once; None instead of an answer: it takes the application after all.

        Returns:
            What takes the question back, whereupon ``done`` is not called; None: it takes the application.
        """
        parts = scope["raw_path"].split(b"/", 4)
        is_one = len(parts) == 5 and parts[1] == b"state" and parts[3]
        if not is_one or scope["method"] != "GET" or scope["query_string"]:
            return None
        if not self._is_admitted(scope):
            return None
        try:
            step, state, key = _names(parts[2:])
            question = parse_question(step, state, key, {})
        except QueryError:
            return None

        def answered(found: tuple[int, bytes] | None) -> None:
            done(None if found is None else _response(*found, [_JSON_HEADER]))

        return self._asking.begin(question, answered)

    def _is_admitted(self, scope: Scope) -> bool:
        """Return whether nothing stands against an answer; the same headers come again and again."""
        headers = dict(scope["headers"])
        # Answers to pages of other origins have more headers; of several hosts the guard knows which one counts.
        if b"origin" in headers or len(headers) != len(scope["headers"]):
            return False
        host = headers.get(b"host", b"")
        if host not in self._hosts:
            if self._admitted.refusal("GET", scope["path"], Headers(scope=scope)):
                return False
            if len(self._hosts) < _HOSTS_MAX:
                self._hosts.add(host)
        return True

    async def _answer(self, scope: Scope, receive: Receive, send: Send, parts: Sequence[bytes]) -> None:
        status: int
        answer: Any
        try:
            names = _names(parts)
            given = _parameters(scope["query_string"])
            if names[0] == "state" and not (len(names) > 2 and names[2]):
                if given:
                    raise QueryError(
                        400, f"{min(given)!r} is no parameter here: this lists what can be asked"
                    )
                step = (names[1] or None) if len(names) > 1 else None
                status, answer = 200, {"states": await self._asking.listed(step)}
            elif names[0] == "state":
                key = names[3] if len(names) > 3 else None
                try:
                    question = parse_question(names[1], names[2], key, given, arrow=_wants_arrow(scope))
                except QueryError:
                    self._asking.note_malformed()
                    raise
                status, answer = await _while_wanted(self._asking.ask(question), receive)
            else:
                status, answer = await _while_wanted(self._of_store(names, given), receive)
        except QueryError as error:
            status, answer = error.status, {"error": str(error)}
        await _send_json(send, status, answer)

    async def _of_store(self, names: list[str], given: Mapping[str, str]) -> tuple[int, Any]:
        """What the paths of a state store answer: pairs of key and value, as one array."""
        unknown = sorted(given.keys() - {"step", "state"})
        if unknown:
            raise QueryError(400, f"{unknown[0]!r} is no parameter here; there are step and state")
        step, state = await self._asking.named(given.get("step"), given.get("state"))
        what, *texts = names
        if what == "keyvalue":
            status, answer = await self._asking.ask(parse_question(step, state, texts[0], {}))
            found = {"key": answer["key"], "value": answer["value"]} if status == 200 else answer
            return status, found
        if what == "approximateNumEntries":
            status, answer = await self._asking.ask(parse_question(step, state, None, {"count": "true"}))
            if status in (400, 504):
                # The question itself is right: the store does not count, or not in time.
                log.warning("approximateNumEntries is -1: %s", answer["error"])
                return 200, {"key": what, "value": NOT_COUNTED}
            return status, {"key": what, "value": answer["count"]} if status == 200 else answer
        asked = {"limit": str(PAGE_ROWS_MAX)}
        if what in ("range", "reverseRange"):
            asked |= {"from": texts[0], "to": texts[1]}
        elif what == "prefixScan":
            asked["prefix"] = texts[0]
        if what.startswith("reverse"):
            asked["reverse"] = "true"
        rows: list[dict[str, Any]] = []
        for _ in range(_STORE_PAGES_MAX):
            status, answer = await self._asking.ask(parse_question(step, state, None, asked))
            if status != 200:
                return status, answer
            rows += answer["rows"]
            if not answer["continuation"]:
                return 200, rows
            if len(rows) >= _STORE_ROWS_MAX:
                break
            asked["continuation"] = answer["continuation"]
        raise QueryError(
            413,
            f"there are more than {_STORE_ROWS_MAX:,} entries, or {_STORE_PAGES_MAX * PAGE_BYTES_MAX >> 20} MiB: ask "
            f"/state/{step}/{state}, page by page",
        )


def _asked_parts(scope: Scope) -> list[bytes] | None:
    """The parts of a path that is a question's; None: it is another one."""
    parts: list[bytes] = scope["raw_path"].split(b"?", 1)[0].split(b"/", 4)[1:]
    if parts[:1] == [b"state"]:
        # ``/state``, ``/state/STEP``: a list. With more there has to be a state.
        return parts if len(parts) < 4 or parts[2] else None
    return parts if parts and _STORE_PATHS.get(parts[0]) == len(parts) else None


def _names(parts: Sequence[bytes]) -> list[str]:
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise QueryError(400, "the path is no text in UTF-8; write a key of bytes as base64:...") from None


def _parameters(query: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise QueryError(400, "the parameters are no text in UTF-8; write bytes as base64:...") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        twice = next(name for name in given if sum(name == other for other, _ in pairs) > 1)
        raise QueryError(400, f"{twice!r} is there more than once; give it once")
    return given


def _wants_arrow(scope: Scope) -> bool:
    return any(name == b"accept" and ARROW_TYPE in value for name, value in scope["headers"])


async def _refuse_method(scope: Scope, send: Send) -> None:
    status, headers, body = _json_response(405, {"error": wrong_method(scope["path"], scope["method"])})
    headers.append((b"allow", READING))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: Send, status: int, answer: Any) -> None:
    status, headers, body = _json_response(status, answer)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _json_response(status: int, answer: Any) -> Response:
    rows = answer.get("rows") if isinstance(answer, dict) else None
    if isinstance(rows, bytes):
        # What is beside the rows in JSON is in a header.
        body = rows
        beside = {name: value for name, value in answer.items() if name != "rows"}
        headers = [(b"content-type", ARROW_TYPE), (ANSWER_HEADER, orjson.dumps(beside))]
    else:
        body, headers = orjson.dumps(answer), [_JSON_HEADER]
    return _response(status, body, headers)


def _response(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> Response:
    headers.append((b"content-length", b"%d" % len(body)))
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    return status, headers, body


async def _while_wanted(work: Coroutine[Any, Any, _Answer], receive: Receive) -> _Answer:
    """What the work returns; it is cancelled when the client goes."""
    task = asyncio.current_task()
    assert task is not None
    gone = _Gone(receive, task)
    # Most are answered before it is worth listening for the end of the connection.
    timer = asyncio.get_running_loop().call_later(_PATIENCE_S, gone.listen)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.has_gone or task.uncancel():
            raise
        raise QueryError(499, "the caller has gone") from None
    finally:
        timer.cancel()
        gone.close()


class _Gone:
    """Cancels a task when the client goes."""

    def __init__(self, receive: Receive, task: asyncio.Task[Any]) -> None:
        self._receive = receive
        self._task = task
        self._listening: asyncio.Task[None] | None = None
        self.has_gone = False

    def listen(self) -> None:
        """Listen from now on."""
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_gone = True
        self._task.cancel()

    def close(self) -> None:
        """Stop to listen: the question is answered."""
        if self._listening is not None:
            self._listening.cancel()
