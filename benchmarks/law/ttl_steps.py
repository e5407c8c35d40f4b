"""State that expires, of each kind, and what it must say, a row at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import Seen
from benchmarks.law.keyed_steps import Timed, model, process
from benchmarks.law.steps import Result, Step

TTL_MS, LONG_MS = 5_000, 10_000
_SHORT, _LONG = (weir.Ttl(f"{duration}ms") for duration in (TTL_MS, LONG_MS))
_READ, _LONG_READ = (weir.Ttl(f"{duration}ms", refreshed_by="access") for duration in (TTL_MS, LONG_MS))


@dataclass
class Cell:
    """The model of one value of each key."""

    ttl_ms: int = TTL_MS
    is_refreshed: bool = False
    kept: dict[Any, tuple[int, Any]] = field(default_factory=dict)

    def get(self, key: Any, now: int, default: Any) -> Any:
        """What a row of this time sees."""
        at, value = self.kept.get(key, (-(10**18), default))
        if at + self.ttl_ms <= now:
            return default
        if self.is_refreshed:
            self.kept[key] = (max(at, now), value)
        return value

    def put(self, key: Any, now: int, value: Any) -> None:
        """What a row of this time writes."""
        self.kept[key] = (now, value)


def time_of(row: Seen) -> int:
    """The time of a row: a late one is as of the watermark of its split."""
    return max(row.at, row.mark)


# --- values ---

VALUES = {"k": int, "n": int, "text": str, "most": int, "total": int, "items": str}


class _Values(weir.KeyedProcess):
    """Rows read, or write, or do both."""

    n: Any
    text: Any
    most: Any
    total: Any
    items: Any

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """See the class."""
        kind = row["v"] % 5
        if kind == 1:
            self.n.value = self.n.value + 1
            self.text.value = self.text.value[-3:] + str(row["v"] % 10)
        if kind in (1, 2):
            self.most.add(row["to"])
            self.total.add(row["v"])
            self.items.value.append(row["v"])
        if kind == 3:
            self.n.value = row["v"]
            self.text.value = str(row["v"])
        if kind == 4 and row["v"] % 3 == 0:
            for state in (self.n, self.text, self.most, self.total, self.items):
                state.clear()
        if kind in (0, 2):
            yield {
                "k": key[0],
                "n": self.n.value,
                "text": self.text.value,
                "most": self.most.value or 0,
                "total": self.total.result(),
                "items": " ".join(map(str, self.items.value)),
            }


class Values(_Values):
    """Values that expire after they were written."""

    n = weir.ValueState(pl.Int64, default=0, ttl=_SHORT)
    text = weir.ValueState(str, default="", ttl=_SHORT)
    most = weir.ReducingState(pl.Int64, max, ttl=_SHORT)
    total = weir.AggregatingState(pl.Int64, 0, lambda total, v: total + v, ttl=_SHORT)
    items = weir.ValueState(pl.List(pl.Int64), default=[], ttl=_SHORT)


class ReadValues(_Values):
    """Values that expire after they were written or read."""

    n = weir.ValueState(pl.Int64, default=0, ttl=_READ)
    text = weir.ValueState(str, default="", ttl=_READ)
    most = weir.ReducingState(pl.Int64, max, ttl=_READ)
    total = weir.AggregatingState(pl.Int64, 0, lambda total, v: total + v, ttl=_READ)
    items = weir.ValueState(pl.List(pl.Int64), default=[], ttl=_READ)


def _values(*, is_refreshed: bool) -> Callable[[list[list[Seen]]], list[Result]]:
    def told(streams: list[list[Seen]]) -> list[Result]:
        n, text, most, total, items = cells = [Cell(is_refreshed=is_refreshed) for _ in range(5)]
        said = []
        for row in streams[0]:
            now, key, kind = time_of(row), row.k, row.v % 5
            if kind == 1:
                n.put(key, now, n.get(key, now, 0) + 1)
                text.put(key, now, text.get(key, now, "")[-3:] + str(row.v % 10))
            if kind in (1, 2):
                most.put(key, now, max(most.get(key, now, row.to), row.to))
                total.put(key, now, total.get(key, now, 0) + row.v)
                items.put(key, now, [*items.get(key, now, []), row.v])
            if kind == 3:
                n.put(key, now, row.v)
                text.put(key, now, str(row.v))
            if kind == 4 and row.v % 3 == 0:
                for cell in cells:
                    cell.kept.pop(key, None)
            if kind in (0, 2):
                found = [
                    cell.get(key, now, default)
                    for cell, default in zip(cells, (0, "", 0, 0, []), strict=True)
                ]
                said.append((key, *found[:-1], " ".join(map(str, found[-1])), row.at))
        return said

    return told


#: The model of :class:`Values`.
plain_values = _values(is_refreshed=False)


# --- lists and maps ---

ELEMENTS = {"k": int, "listed": str, "got": int, "items": str, "size": int}


class _Elements(weir.KeyedProcess):
    """Rows add to a list and a map, look at them, or take away."""

    lately: Any
    items: Any

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """See the class."""
        number, listed, got, items, size = row["v"], "", -1, "", -1
        if number % 2:
            self.lately.append(number)
        if number % 11 == 4:
            self.lately.appendleft(-number)
        if number % 7 == 3 and self.lately:
            self.lately.popleft()
        if number % 3 == 0:
            listed = " ".join(map(str, self.lately))
        if number % 5 < 3:
            self.items[str(number % 4)] = number
        if number % 13 == 2:
            self.items.delete(str(number % 3))
        if number % 2 == 0:
            got = self.items.get(str(number % 3), -2)
        if number % 4 == 1:
            items = " ".join(f"{name}={value}" for name, value in self.items.items())
        if number % 4 in (0, 1):
            size = len(self.items)
        yield {"k": key[0], "listed": listed, "got": got, "items": items, "size": size}


class Elements(_Elements):
    """They expire after they were written."""

    lately = weir.ListState(pl.Int64, ttl=_LONG)
    items = weir.MapState(str, pl.Int64, ttl=_LONG)


class ReadElements(_Elements):
    """They expire after they were written or read."""

    lately = weir.ListState(pl.Int64, ttl=_LONG_READ)
    items = weir.MapState(str, pl.Int64, ttl=_LONG_READ)


class _PlainElements:
    def __init__(self, *, is_refreshed: bool) -> None:
        self._is_refreshed = is_refreshed
        self._lists: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._maps: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)

    def take(self, row: Seen) -> Result:
        now, number = time_of(row), row.v
        listed, got, items, size = "", -1, "", -1
        kept, entries = self._lists[row.k], self._maps[row.k]
        if number % 2 or number % 11 == 4 or number % 7 == 3 or number % 3 == 0:
            # A list is in order of place: what the first row of such a time finds expired is gone.
            kept[:] = [(at, value) for at, value in kept if at + LONG_MS > now]
        if number % 2:
            kept.append((now, number))
        if number % 11 == 4:
            kept.insert(0, (now, -number))
        if number % 7 == 3 and kept:
            kept.pop(0)
        if number % 3 == 0:
            listed = " ".join(str(value) for _, value in kept)
            if self._is_refreshed:
                kept[:] = [(max(at, now), value) for at, value in kept]
        if number % 5 < 3:
            entries[str(number % 4)] = (now, number)
        if number % 13 == 2 and self._is_there(entries, str(number % 3), now):
            del entries[str(number % 3)]
        if number % 2 == 0:
            got = (
                self._read(entries, str(number % 3), now)
                if self._is_there(entries, str(number % 3), now)
                else -2
            )
        there = sorted(name for name in entries if self._is_there(entries, name, now))
        if number % 4 == 1:
            items = " ".join(f"{name}={self._read(entries, name, now)}" for name in there)
        if number % 4 in (0, 1):
            size = len(there)
        return (row.k, listed, got, items, size, row.at)

    @staticmethod
    def _is_there(entries: dict[str, tuple[int, int]], name: str, now: int) -> bool:
        return name in entries and entries[name][0] + LONG_MS > now

    def _read(self, entries: dict[str, tuple[int, int]], name: str, now: int) -> int:
        at, value = entries[name]
        if self._is_refreshed:
            entries[name] = (max(at, now), value)
        return value


def _elements(*, is_refreshed: bool) -> Callable[[list[list[Seen]]], list[Result]]:
    def told(streams: list[list[Seen]]) -> list[Result]:
        plain = _PlainElements(is_refreshed=is_refreshed)
        return [plain.take(row) for row in streams[0]]

    return told


# --- batches ---

BATCHES = {"k": int, "n": int, "text": str, "listed": int, "got": int}


class _Batches(weir.KeyedProcess):
    """Each row of a batch by itself."""

    n: Any
    text: Any
    lately: Any
    items: Any

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """Read all at once, and write all at once."""
        keys, numbers = context.keys(batch), batch["v"].to_pylist()
        counts, texts = self.n.get(keys.distinct).to_list(), self.text.get(keys.distinct).to_list()
        sizes = [len(listed) for listed in self.lately.get(keys.distinct)]
        names = [str(number % 4) for number in numbers]
        found = self.items.get(keys, names).to_list()
        put: dict[tuple[int, str], int] = {}
        columns: tuple[list[Any], ...] = ([], [], [], [])
        for row, (key, number) in enumerate(zip(keys.inverse.tolist(), numbers, strict=True)):
            counts[key] += 1
            texts[key] = texts[key][-3:] + str(number % 10)
            sizes[key] += 1
            before = put.get((key, names[row]), found[row])
            put[key, names[row]] = number
            for column, value in zip(
                columns, (counts[key], texts[key], sizes[key], -1 if before is None else before), strict=True
            ):
                column.append(value)
        self.n.put(keys.distinct, counts)
        self.text.put(keys.distinct, texts)
        self.lately.extend(keys, batch["v"])
        self.items.put(keys, names, batch["v"])
        made = dict(zip(BATCHES, (batch["k"], *map(pa.array, columns)), strict=True))
        yield pa.record_batch(made)


class Batches(_Batches):
    """They expire after they were written."""

    n = weir.ValueState(pl.Int64, default=0, ttl=_SHORT)
    text = weir.ValueState(str, default="", ttl=_SHORT)
    lately = weir.ListState(pl.Int64, ttl=_LONG)
    items = weir.MapState(str, pl.Int64, ttl=_LONG)


class ReadBatches(_Batches):
    """They expire after they were written or read."""

    n = weir.ValueState(pl.Int64, default=0, ttl=_READ)
    text = weir.ValueState(str, default="", ttl=_READ)
    lately = weir.ListState(pl.Int64, ttl=_LONG_READ)
    items = weir.MapState(str, pl.Int64, ttl=_LONG_READ)


def _batches(*, is_refreshed: bool) -> Callable[[list[list[Seen]]], list[Result]]:
    def told(streams: list[list[Seen]]) -> list[Result]:
        n, text, items = Cell(), Cell(), Cell(LONG_MS)
        lists: dict[int, list[int]] = defaultdict(list)
        said = []
        for row in streams[0]:
            now, name = time_of(row), (row.k, row.v % 4)
            count, letters = n.get(row.k, now, 0) + 1, text.get(row.k, now, "")[-3:] + str(row.v % 10)
            n.put(row.k, now, count)
            text.put(row.k, now, letters)
            kept = [at for at in lists[row.k] if at + LONG_MS > now]
            if is_refreshed:
                kept = [max(at, now) for at in kept]
            lists[row.k] = [*kept, now]
            got = items.get(name, now, -1)
            items.put(name, now, row.v)
            said.append((row.k, count, letters, len(lists[row.k]), got, row.at))
        return said

    return told


# --- timers ---


class Seen_(weir.KeyedProcess):
    """Timers look at what rows wrote, and write what rows look at."""

    last = weir.ValueState(pl.Int64, default=-1, ttl=_SHORT)
    text = weir.ValueState(str, default="", ttl=_SHORT)
    rung = weir.ValueState(pl.Int64, default=-1, ttl=_SHORT)

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """Write, and ring twice: before it expires, and when it does."""
        yield {"k": key[0], "last": self.last.value, "text": self.text.value, "rung": self.rung.value}
        self.last.value = row["v"]
        self.text.value = str(row["v"])
        context.timers.register(context.event_time_ms + TTL_MS)
        if row["v"] % 3 == 0:
            context.timers.register(context.event_time_ms + 2_000)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Look, and write."""
        yield {"k": key[0], "last": self.last.value, "text": self.text.value, "rung": self.rung.value}
        self.rung.value = time_ms


class SeenBatches(Seen_):
    """As :class:`Seen_`, with timers in batches."""

    def on_timers(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """Look, and write."""
        keys = context.keys(batch)
        yield pa.record_batch(
            {
                "k": batch["k"],
                "last": self.last.get(keys).to_arrow(),
                "text": self.text.get(keys).to_arrow().cast(pa.string()),
                "rung": self.rung.get(keys).to_arrow(),
            }
        )
        self.rung.put(keys, batch["_event_time_ms"], last=True)


class PlainSeen(Timed):
    """The model of :class:`Seen_`."""

    def __init__(self) -> None:
        super().__init__()
        self._last, self._text, self._rung = Cell(), Cell(), Cell()

    def take(self, row: Seen) -> None:
        """See the base class."""
        now = time_of(row)
        self._tell(row.k, now, row.at)
        self._last.put(row.k, now, row.v)
        self._text.put(row.k, now, str(row.v))
        self.due.add((row.at + TTL_MS, row.k))
        if row.v % 3 == 0:
            self.due.add((row.at + 2_000, row.k))

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        # It still finds what expires at its time. One that was registered too late is as of the row that did.
        self._tell(key, max(at - 1, self.before), at)
        self._rung.put(key, max(at, self.before), at)

    def _tell(self, key: int, now: int, at: int) -> None:
        found = self._last.get(key, now, -1), self._text.get(key, now, ""), self._rung.get(key, now, -1)
        self.said.append((key, *found, at))


_SEEN = {"k": int, "last": int, "text": str, "rung": int}
_CERTAIN: dict[str, Any] = {"several": "order", "own_keys": True, "late_keys": True}
STEPS = (
    Step("values that expire", process(Values, VALUES), _values(is_refreshed=False), **_CERTAIN),
    Step("values that reads keep", process(ReadValues, VALUES), _values(is_refreshed=True), **_CERTAIN),
    Step("elements that expire", process(Elements, ELEMENTS), _elements(is_refreshed=False), **_CERTAIN),
    Step(
        "elements that reads keep", process(ReadElements, ELEMENTS), _elements(is_refreshed=True), **_CERTAIN
    ),
    Step("batches that expire", process(Batches, BATCHES), _batches(is_refreshed=False), **_CERTAIN),
    Step("batches that reads keep", process(ReadBatches, BATCHES), _batches(is_refreshed=True), **_CERTAIN),
    Step("timers over what expires", process(Seen_, _SEEN), model(PlainSeen), several=None),
    Step("timers in batches over what expires", process(SeenBatches, _SEEN), model(PlainSeen), several=None),
)
SURE = STEPS
