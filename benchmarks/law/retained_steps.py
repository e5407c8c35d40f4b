"""States with a retention (versions, windows, sessions), and what they must say, a row at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import Seen
from benchmarks.law.keyed_steps import Timed, model, process
from benchmarks.law.steps import Result, Step
from benchmarks.law.ttl_steps import time_of

RETENTION_MS, BUCKET_MS, DELAY_MS = 5_000, 1_000, 6_000
_RETENTION = f"{RETENTION_MS}ms"
_OPEN, _NOT_PUT = weir.VersionedState.OPEN, weir.VersionedState.NOT_PUT
_NONE = -1


def _put_ms(at: int, number: int) -> int:
    """What a row puts is of its time, or before, also before the retention, or ahead of it."""
    return at - (0, 0, 1_000, 2_500, 4_999, 5_000, 5_001, 7_000, -4_000)[number % 9]


def _start_ms(at: int, number: int) -> int:
    put_ms = _put_ms(at, number)
    return put_ms - put_ms % BUCKET_MS


def _session(at: int, number: int) -> tuple[int, int]:
    end_ms = _start_ms(at, number)
    return end_ms - number % 3 * BUCKET_MS, end_ms


class _Kept:
    """The model of one key: all that it was given, of which the past is not seen."""

    def __init__(self) -> None:
        self.versions: dict[int, int | None] = {}
        self.windows: dict[int, int] = {}
        self.doubles: dict[int, list[int]] = defaultdict(list)
        self.sessions: dict[tuple[int, int], int] = {}

    def put_version(self, now: int, at: int, value: int | None) -> int:
        if at < now - RETENTION_MS:
            return _NOT_PUT
        self.versions[at] = value
        return min((time for time in self.versions if time > at), default=_OPEN)

    def version(self, now: int, as_of: int | None) -> int:
        at = max((time for time in self.versions if as_of is None or time <= as_of), default=None)
        if at is None or (at != max(self.versions) and as_of is not None and as_of < now - RETENTION_MS):
            return _NONE
        value = self.versions[at]
        return _NONE if value is None else value

    def history(self, now: int) -> str:
        times = sorted(self.versions)
        ends: list[int | None] = [*times[1:], *([None] if times else [])]
        return " ".join(
            f"{at}={self.versions[at]}"
            for at, end in zip(times, ends, strict=True)
            if (end is None or end > now - RETENTION_MS) and self.versions[at] is not None
        )

    def put_window(self, now: int, start: int, value: int) -> bool:
        if start < now - RETENTION_MS:
            return False
        self.windows[start] = value
        self.doubles[start].append(value)
        return True

    def put_session(self, now: int, start: int, end: int, value: int) -> bool:
        if end < now - RETENTION_MS:
            return False
        self.sessions[start, end] = value
        return True

    def listed_windows(self, now: int) -> str:
        seen = sorted(item for item in self.windows.items() if item[0] >= now - RETENTION_MS)
        return " ".join(f"{start}={value}" for start, value in seen)

    def listed_doubles(self, now: int) -> str:
        seen = sorted(start for start in self.doubles if start >= now - RETENTION_MS)
        return " ".join(f"{start}={value}" for start in seen for value in self.doubles[start])

    def listed_sessions(self, now: int) -> str:
        seen = sorted((end, start, value) for (start, end), value in self.sessions.items())
        return " ".join(f"{start}-{end}={value}" for end, start, value in seen if end >= now - RETENTION_MS)


# --- a row at a time ---

KEPT = {"k": int, "ended": int, "then": int, "versions": str, "windows": str, "doubles": str, "sessions": str}


class _States(weir.KeyedProcess):
    prices = weir.VersionedState(pl.Int64, retention=_RETENTION)
    windows = weir.WindowState(pl.Int64, retention=_RETENTION)
    doubles = weir.WindowState(pl.Int64, retention=_RETENTION, duplicates=True)
    visits = weir.SessionState(pl.Int64, retention=_RETENTION)

    def _told(self, key: Any, ended: int, as_of: int | None) -> dict[str, Any]:
        return {
            "k": key[0],
            "ended": ended,
            "then": self.prices.get(as_of, _NONE),
            "versions": " ".join(f"{each.valid_from_ms}={each.value}" for each in self.prices.fetch()),
            "windows": " ".join(f"{start}={value}" for start, value in self.windows.fetch()),
            "doubles": " ".join(f"{start}={value}" for start, value in self.doubles.fetch()),
            "sessions": " ".join(
                f"{each.start_ms}-{each.end_ms}={each.value}" for each in self.visits.find()
            ),
        }


class Rows(_States):
    """Rows put, take away, and look."""

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """See the class."""
        yield self._took(key, context.event_time_ms, row["v"])

    def _took(self, key: Any, at: int, number: int) -> dict[str, Any]:
        ended = _NONE
        if number % 4:
            ended = self.prices.put(None if number % 7 == 3 else number, _put_ms(at, number))
            self.windows.put(number, _start_ms(at, number))
            self.doubles.put(number, _start_ms(at, number))
            self.visits.put(number, *_session(at, number))
        if number % 11 == 6:
            for state in (self.prices, self.windows, self.doubles, self.visits):
                state.clear()
        return self._told(key, ended, None if number % 5 == 0 else at - number % 8 * 1_000)


class Visits(Rows):
    """As :class:`Rows`, one key of a batch after the other."""

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """See the class."""
        keys, rows = context.keys(batch), batch.to_pylist()
        inverse = keys.inverse.tolist()
        told: dict[int, dict[str, Any]] = {}
        for position in context.visit(keys):
            for index in (index for index, key in enumerate(inverse) if key == position):
                row = rows[index]
                told[index] = self._took((row["k"],), row["_event_time_ms"], row["v"])
        made = {name: [told[index][name] for index in range(len(rows))] for name in KEPT}
        yield pa.record_batch(made)


def _put_all(kept: _Kept, now: int, at: int, number: int) -> int:
    ended = kept.put_version(now, _put_ms(at, number), None if number % 7 == 3 else number)
    kept.put_window(now, _start_ms(at, number), number)
    kept.put_session(now, *_session(at, number), number)
    return ended


def _told(key: int, kept: _Kept, now: int, ended: int, as_of: int | None, at: int) -> Result:
    listed = kept.history(now), kept.listed_windows(now), kept.listed_doubles(now), kept.listed_sessions(now)
    return (key, ended, kept.version(now, as_of), *listed, at)


def plain_rows(streams: list[list[Seen]]) -> list[Result]:
    """The model of :class:`Rows`."""
    every: dict[int, _Kept] = defaultdict(_Kept)
    said = []
    for row in streams[0]:
        kept, now, ended = every[row.k], time_of(row), _NONE
        if row.v % 4:
            ended = _put_all(kept, now, row.at, row.v)
        if row.v % 11 == 6:
            kept = every[row.k] = _Kept()
        as_of = None if row.v % 5 == 0 else row.at - row.v % 8 * 1_000
        said.append(_told(row.k, kept, now, ended, as_of, row.at))
    return said


# --- which rows count, whatever came first ---

TAKEN = {"k": int, "v": int, "took": bool, "took_window": bool, "took_session": bool}


class Taken(_States):
    """Tells which of its rows were taken; other splits have rows of its key."""

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """See the class."""
        at, number = context.event_time_ms, row["v"]
        yield {
            "k": key[0],
            "v": number,
            "took": self.prices.put(number, _put_ms(at, number)) != _NOT_PUT,
            "took_window": self.windows.put(number, _start_ms(at, number)),
            "took_session": self.visits.put(number, *_session(at, number)),
        }


def plain_taken(streams: list[list[Seen]]) -> list[Result]:
    """The model of :class:`Taken`."""
    kept, said = _Kept(), []
    for row in streams[0]:
        now, start, session = time_of(row), _start_ms(row.at, row.v), _session(row.at, row.v)
        took = kept.put_version(now, _put_ms(row.at, row.v), row.v) != _NOT_PUT
        windows = kept.put_window(now, start, row.v), kept.put_session(now, *session, row.v)
        said.append((row.k, row.v, took, *windows, row.at))
    return said


# --- batches ---

BATCHES = {"k": int, "ended": int, "window": int, "took": bool, "visit": int}


class Batches(_States):
    """Each row of a batch by itself."""

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """Read all at once, and write all at once."""
        keys, numbers = context.keys(batch), batch["v"].to_pylist()
        times = batch["_event_time_ms"].to_pylist()
        rows = list(zip(times, numbers, strict=True))
        starts, sessions = [_start_ms(*row) for row in rows], [_session(*row) for row in rows]
        bounds = [start for start, _ in sessions], [end for _, end in sessions]
        found = self.windows.get(keys, starts).to_list(), self.visits.get(keys, *bounds).to_list()
        ends = self.prices.put(keys, numbers, [_put_ms(*row) for row in rows])
        took = self.windows.put(keys, numbers, starts)
        took_visits = self.visits.put(keys, numbers, *bounds)
        put: dict[Any, int] = {}
        windows, visits = [], []
        # What a row of the batch put, a later one finds.
        for index, key in enumerate(keys.inverse.tolist()):
            window, visit = (key, starts[index]), (key, sessions[index])
            windows.append(put.get(window, found[0][index]))
            visits.append(put.get(visit, found[1][index]))
            if took[index]:
                put[window] = numbers[index]
            if took_visits[index]:
                put[visit] = numbers[index]
        columns = [[_NONE if value is None else value for value in column] for column in (windows, visits)]
        made = batch["k"], pa.array(ends), pa.array(columns[0]), pa.array(took), pa.array(columns[1])
        yield pa.record_batch(dict(zip(BATCHES, made, strict=True)))


def plain_batches(streams: list[list[Seen]]) -> list[Result]:
    """The model of :class:`Batches`."""
    every: dict[int, _Kept] = defaultdict(_Kept)
    said = []
    for row in streams[0]:
        kept, now = every[row.k], time_of(row)
        start, session = _start_ms(row.at, row.v), _session(row.at, row.v)
        cut_ms = now - RETENTION_MS
        window = kept.windows.get(start, _NONE) if start >= cut_ms else _NONE
        visit = kept.sessions.get(session, _NONE) if session[1] >= cut_ms else _NONE
        ended = kept.put_version(now, _put_ms(row.at, row.v), row.v)
        took = kept.put_window(now, start, row.v)
        kept.put_session(now, *session, row.v)
        said.append((row.k, ended, window, took, visit, row.at))
    return said


# --- timers ---


class Rung(Rows):
    """Timers look at what rows put, and put what rows look at."""

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """See :class:`Rows`; and ring, when some of it is gone."""
        yield from super().process(key, row, context)
        context.timers.register(context.event_time_ms + DELAY_MS)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Look, and put."""
        ended = self.prices.put(time_ms % 1_000, time_ms - time_ms % 6 * 1_000)
        yield self._told(key, ended, time_ms - DELAY_MS)


class PlainRung(Timed):
    """The model of :class:`Rung`."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, _Kept] = defaultdict(_Kept)

    def take(self, row: Seen) -> None:
        """See the base class."""
        now, ended = time_of(row), _NONE
        if row.v % 4:
            ended = _put_all(self._kept[row.k], now, row.at, row.v)
        if row.v % 11 == 6:
            self._kept[row.k] = _Kept()
        as_of = None if row.v % 5 == 0 else row.at - row.v % 8 * 1_000
        self.said.append(_told(row.k, self._kept[row.k], now, ended, as_of, row.at))
        self.due.add((row.at + DELAY_MS, row.k))

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        kept, now = self._kept[key], max(at - 1, self.before)
        ended = kept.put_version(now, at - at % 6 * 1_000, at % 1_000)
        self.said.append(_told(key, kept, now, ended, at - DELAY_MS, at))


_CERTAIN: dict[str, Any] = {"several": "order", "own_keys": True, "late_keys": True}
_RUNG: Callable[[list[list[Seen]]], list[Result]] = model(PlainRung)
STEPS = (
    Step("states with a retention", process(Rows, KEPT), plain_rows, **_CERTAIN),
    Step("visits of states with a retention", process(Visits, KEPT), plain_rows, **_CERTAIN),
    Step("what states with a retention take", process(Taken, TAKEN), plain_taken),
    Step("batches of states with a retention", process(Batches, BATCHES), plain_batches, **_CERTAIN),
    Step("timers over states with a retention", process(Rung, KEPT), _RUNG, several=None),
)
SURE = STEPS
