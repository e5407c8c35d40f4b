"""Asks running jobs from Python: ``weir.connect("localhost:9008").state("count", "words").get("belgium")``.

Called by users' programs, not by jobs. One connection, which is kept; not for several threads at a time.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

from weir.clock import SystemClock
from weir.errors import ConnectionLostError, WeirError
from weir.questions.https import is_encrypted, open_connection, token_headers

if TYPE_CHECKING:
    from typing import Self

    import polars as pl

_PORT = 9008
_PAUSE_S = 0.05
_ARROW = "application/vnd.apache.arrow.stream"
#: Of a page.
_ARROW_ROWS = 100_000


class AskError(WeirError):
    """A question was refused; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection:
    """A connection to the control plane of a job, or any of its task managers; :func:`connect` makes it."""

    def __init__(self, address: str, *, timeout_s: float = 10.0, patience_s: float = 10.0) -> None:
        """Connect; :func:`connect` has the arguments."""
        host, port = place_of(address)
        self._address = f"{host}:{port}"
        self._connection = open_connection(host, port, timeout_s)
        self._token = token_headers()
        self._patience_s = patience_s
        self._clock = SystemClock()

    def state(self, step: str, state: str) -> StateQuestions:
        """Return a state of a step: the name that it was declared with, of aggregates that of their column."""
        return StateQuestions(self, step, state)

    def states(self) -> list[tuple[str, str]]:
        """Steps and states that can be asked.

        Raises:
            AskError: the job does not run.
            ConnectionLostError: the control plane does not answer.
        """
        _, answer = self.ask("/state", {})
        return [(found["step"], found["state"]) for found in answer["states"]]

    def ask(self, path: str, parameters: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Status (200 or 404) and answer of a page; asks again while the answer is "try again".

        Raises:
            AskError: it was refused, or there was no answer in time.
            ConnectionLostError: the control plane does not answer.
        """
        status, answer, _ = self._ask(path, parameters, {})
        return status, answer

    def ask_arrow(self, path: str, parameters: Mapping[str, str]) -> tuple[dict[str, Any], bytes]:
        """Ask for a page of rows, which come as a stream of Arrow beside the rest of the answer.

        Raises:
            AskError: it was refused, or there was no answer in time.
            ConnectionLostError: the control plane does not answer.
        """
        status, answer, rows = self._ask(path, parameters, {"Accept": _ARROW})
        if status == 404:
            raise AskError(404, f"{self._address}: {answer.get('error', answer)}")
        return answer, rows

    def _ask(
        self, path: str, parameters: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any], bytes]:
        deadline_s = self._clock.monotonic_s() + self._patience_s
        while True:
            target = f"{path}?{urlencode(parameters)}" if parameters else path
            status, answer, rows = self._get(target, headers)
            if status in (200, 404):
                return status, answer, rows
            if status not in (429, 503) or self._clock.monotonic_s() > deadline_s:
                raise AskError(status, f"{self._address}: {answer.get('error', answer)}")
            time.sleep(_PAUSE_S)

    def _get(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, Any], bytes]:
        for is_last in (False, True):
            try:
                self._connection.request("GET", target, headers={**self._token, **headers})
                reply = self._connection.getresponse()
                body = reply.read()
            except TimeoutError as error:
                self._connection.close()
                raise ConnectionLostError(f"{self._address} does not answer: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                # The other side may have closed a connection that was idle.
                self._connection.close()
                if is_last:
                    raise ConnectionLostError(f"{self._address} does not answer: {error}") from error
                continue
            try:
                if reply.headers.get_content_type() == _ARROW:
                    return reply.status, json.loads(reply.headers["Weir-Answer"]), body
                return reply.status, json.loads(body), b""
            except (ValueError, TypeError) as error:
                raise AskError(reply.status, f"{self._address} is no process of Weir") from error
        raise AssertionError("one of two attempts returns or raises")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StateQuestions:
    """Questions to one state; made by :meth:`Connection.state`."""

    def __init__(self, connection: Connection, step: str, state: str) -> None:
        self._connection = connection
        self._path = f"/state/{quote(step, safe='')}/{quote(state, safe='')}"

    def get(
        self,
        key: Any,
        *,
        as_of: int | None = None,
        first: Any = None,
        last: Any = None,
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        consistency: Literal["latest", "checkpoint"] = "latest",
        min_checkpoint: int | None = None,
        default: Any = None,
    ) -> Any:
        """What the state has for a key; ``default`` if nothing.

        Args:
            key: the value of the key column; a tuple of several.
            as_of: of a versioned state: what was in force then, ms since the epoch.
            first: of maps, windows, sessions and versions: from this map key or time on, inclusive.
            last: up to this one, inclusive.
            prefix: of maps whose keys are text.
            reverse: the last one first.
            limit: the first so many elements below the key, or the last ones with ``reverse``; None: all of them, and
                an error if there are more than 1,000.
            consistency: "latest": what the owner has now; "checkpoint": what the last checkpoint has.
            min_checkpoint: as of this checkpoint or later; waited for, ``patience_s`` at most.
            default: what is returned if there is nothing.

        Raises:
            AskError: the question was refused; the message says why.
            ConnectionLostError: the control plane does not answer.
        """
        given = {
            "as_of": as_of,
            "from": first,
            "to": last,
            "prefix": prefix,
            "limit": limit,
            "min_checkpoint": min_checkpoint,
        }
        parameters = _texts(given) | {"consistency": consistency} | ({"reverse": "true"} if reverse else {})
        status, answer = self._connection.ask(f"{self._path}/{quote(key_text(key), safe='')}", parameters)
        if status == 404 and "key" not in answer:
            raise AskError(404, str(answer.get("error", answer)))
        return default if status == 404 else answer["value"]

    def pages(
        self,
        first: Any = None,
        last: Any = None,
        *,
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        as_of: int | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
        consistency: Literal["latest", "checkpoint"] = "checkpoint",
        min_checkpoint: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Answers of a range over keys, page by page, ``limit`` keys each. As :meth:`range`."""
        given = _range_texts(
            first, last, prefix, reverse, limit, as_of, time_from, time_to, consistency, min_checkpoint
        )
        while True:
            status, answer = self._connection.ask(self._path, given)
            if status == 404:
                raise AskError(404, str(answer.get("error", answer)))
            yield answer
            if not answer["continuation"]:
                return
            given["continuation"] = answer["continuation"]

    def range(
        self,
        first: Any = None,
        last: Any = None,
        *,
        prefix: str | None = None,
        reverse: bool = False,
        as_of: int | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
        consistency: Literal["latest", "checkpoint"] = "checkpoint",
        min_checkpoint: int | None = None,
    ) -> pl.DataFrame:
        """Keys and values from ``first`` to ``last``, both inclusive; None: all.

        Args:
            first: from this key on.
            last: up to this one.
            prefix: instead of both: of keys that are text.
            reverse: the last one first.
            as_of: of a versioned state: what was in force then, ms since the epoch.
            time_from: of versions, windows and sessions: those from this time on (ms); of windows their starts.
            time_to: up to this time, inclusive.
            consistency: "checkpoint": all as the last checkpoint has them; "latest": each page as the owners have it
                when it is read.
            min_checkpoint: as of this checkpoint or later; waited for, ``patience_s`` at most.

        Returns:
            Columns ``key`` and ``value``, in the order of keys; of states with several entries of a key a list of them.
            Values that have no type in common, as those of a broadcast state may, are JSON, as text.

        Raises:
            AskError: the question was refused; the message says why.
            ConnectionLostError: the control plane does not answer.
        """
        given = _range_texts(
            first, last, prefix, reverse, _ARROW_ROWS, as_of, time_from, time_to, consistency, min_checkpoint
        )
        streams: list[bytes] = []
        while True:
            answer, stream = self._connection.ask_arrow(self._path, given)
            streams.append(stream)
            if not answer["continuation"]:
                return _frame(streams)
            given["continuation"] = answer["continuation"]

    def count(
        self,
        *,
        consistency: Literal["latest", "checkpoint"] = "checkpoint",
        min_checkpoint: int | None = None,
    ) -> int:
        """How many keys the last checkpoint has, or the owners have now; reads all of them. Raises as :meth:`range`."""
        given = {"count": "true", "consistency": consistency, "min_checkpoint": min_checkpoint}
        status, answer = self._connection.ask(self._path, _texts(given))
        if status == 404:
            raise AskError(404, str(answer.get("error", answer)))
        return int(answer["count"])


def connect(address: str, *, timeout_s: float = 10.0, patience_s: float = 10.0) -> Connection:
    """A connection to the control plane of a job, or any of its task managers; nothing is sent yet.

    Args:
        address: host and HTTP port (`/status` has those of task managers), such as "localhost:9008".
        timeout_s: for one answer.
        patience_s: how long a question is asked again while the answer is "try again".

    Raises:
        AskError: the address is none.
    """
    return Connection(address, timeout_s=timeout_s, patience_s=patience_s)


def place_of(address: str) -> tuple[str, int]:
    """Host and port of an address, which may be written as browsers have it; port 9008 unless it says another one.

    Raises:
        AskError: 400: it is none.
    """
    place = address.removeprefix("https://" if is_encrypted() else "http://").removesuffix("/")
    host, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = place, str(_PORT)
    is_host = host and not any(sign in host for sign in "/?# ") and (":" not in host or host.startswith("["))
    if not is_host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise AskError(400, f"address {address!r} must be HOST:PORT, as in localhost:{_PORT}")
    return host, int(port)


def _frame(streams: list[bytes]) -> pl.DataFrame:
    """Pages of Arrow, one after the other."""
    # Both take longer to import than all else here, and questions for single keys take neither.
    import polars as pl
    import pyarrow as pa

    from weir.questions.json_values import alike, is_json_type

    pages = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    # Of values without a declared type, a page may have found another one than the page before.
    keys, values = (alike([page.column(name) for page in pages]) for name in ("key", "value"))
    if is_json_type(values.type):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], pa.string())
    found = pl.from_arrow(pa.table({"key": keys, "value": values}))
    assert isinstance(found, pl.DataFrame)
    return found


def key_text(key: Any) -> str:
    """A key as questions write it."""
    if isinstance(key, tuple):
        return json.dumps(
            [part if part is None or isinstance(part, str | int) else _text(part) for part in key]
        )
    if key is None:
        raise AskError(400, "null is no key that can be asked for alone: ask for a range, or all keys")
    return _text(key)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        from weir.questions.json_values import text_of_bytes

        return text_of_bytes(value)
    if isinstance(value, dt.timedelta):
        return str(value.total_seconds())
    return value.isoformat() if isinstance(value, dt.date | dt.datetime | dt.time) else str(value)


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    # A key of a map may have several parts, too.
    return {
        name: key_text(value) if isinstance(value, tuple) else _text(value)
        for name, value in given.items()
        if value is not None
    }


def _range_texts(
    first: Any,
    last: Any,
    prefix: str | None,
    reverse: bool,
    limit: int | None,
    as_of: int | None,
    time_from: int | None,
    time_to: int | None,
    consistency: str,
    min_checkpoint: int | None,
) -> dict[str, str]:
    given = {
        "from": first,
        "to": last,
        "prefix": prefix,
        "reverse": True if reverse else None,
        "limit": limit,
        "as_of": as_of,
        "time_from": time_from,
        "time_to": time_to,
        "consistency": consistency,
        "min_checkpoint": min_checkpoint,
    }
    return _texts(given)
