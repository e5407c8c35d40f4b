"""Keyed functions with timers, deduplication and rules, and what they must say, a row at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step

GAP_MS, BUCKET_MS, DELAY_MS, WITHIN_MS, ECHOES = 5_000, 5_000, 1_000, 3_000, 3
COUNTED: dict[str, Any] = {"k": int, "n": int, "at": int}


class Timed:
    """The model of a keyed process with timers by event time."""

    def __init__(self) -> None:
        #: Times and keys of timers.
        self.due: set[tuple[int, int]] = set()
        self.said: list[Result] = []
        #: The watermark, and that as of the row before.
        self.mark = self.before = -END_MS

    def run(self, rows: list[Seen]) -> list[Result]:
        """All that it says."""
        for row in rows:
            self.fire(row.all_ms)
            self.take(row)
            # What was registered too late.
            self.fire(row.all_ms)
        self.fire(END_MS)
        return self.said

    def fire(self, until_ms: int) -> None:
        """The watermark comes."""
        self.before, self.mark = self.mark, max(self.mark, until_ms)
        while self.due and min(self.due)[0] <= until_ms:
            first = min(self.due)
            self.due.discard(first)
            self.ring(first[1], first[0])

    def take(self, row: Seen) -> None:
        """A row comes."""
        raise NotImplementedError

    def ring(self, key: int, at: int) -> None:
        """A timer fires."""
        raise NotImplementedError


def model(kind: Callable[[], Timed]) -> Callable[[list[list[Seen]]], list[Result]]:
    """Of the rows of the first stream."""
    return lambda streams: kind().run(streams[0])


def process(kind: Any, schema: dict[str, Any], **settings: Any) -> Build:
    """The step of a :class:`weir.KeyedProcess`."""
    return lambda streams, parallelism: (
        streams[0].key_by("k").process("out", kind, schema, parallelism=parallelism, **settings)
    )


# --- one timer of each key, which each row moves ---


class Quiet(weir.KeyedProcess):
    """Tells how many rows came before a pause."""

    n = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Move the end."""
        if self.ends.value is not None:
            context.timers.delete(self.ends.value)
        self.n.value += 1
        self.ends.value = context.event_time_ms + GAP_MS
        context.timers.register(self.ends.value)
        context.timers.register(self.ends.value)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it."""
        yield {"k": key[0], "n": self.n.value, "at": time_ms}
        self.n.clear()
        self.ends.clear()


class QuietBatches(weir.KeyedProcess):
    """As :class:`Quiet`, in batches."""

    n = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        """Move the ends."""
        keys = context.keys(batch)
        before = self.ends.get(keys.distinct).to_list()
        ends = batch["_event_time_ms"].to_numpy() + GAP_MS
        last = {int(position): int(at) for position, at in zip(keys.inverse, ends, strict=True)}
        self.n.put(
            keys.distinct,
            self.n.get(keys.distinct).to_numpy() + np.bincount(keys.inverse, minlength=len(last)),
        )
        for index in context.visit(keys):
            if before[index] is not None:
                context.timers.delete(before[index])
        after = np.array([last[position] for position in range(len(last))])
        self.ends.put(keys.distinct, after)
        context.timers.register(after, keys.distinct)

    def on_timers(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """Tell them."""
        keys = context.keys(batch)
        counts = self.n.get(keys).to_arrow()
        yield pa.record_batch({"k": batch["k"], "n": counts, "at": batch["_event_time_ms"]})
        nothing = np.full(len(keys.distinct), None)
        self.n.put(keys.distinct, pl.Series(nothing, dtype=pl.Int64))
        self.ends.put(keys.distinct, pl.Series(nothing, dtype=pl.Int64))


class PlainQuiet(Timed):
    """The model of :class:`Quiet`."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[int] = Counter()
        self._ends: dict[int, int] = {}

    def take(self, row: Seen) -> None:
        """See the base class."""
        self.due.discard((self._ends.get(row.k, -1), row.k))
        self._counts[row.k] += 1
        self._ends[row.k] = row.at + GAP_MS
        self.due.add((self._ends[row.k], row.k))

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        self.said.append((key, self._counts.pop(key), at, at))
        del self._ends[key]


# --- a timer for each stretch of time ---


class Buckets(weir.KeyedProcess):
    """Counts rows by stretches of time."""

    n = weir.MapState(pl.Int64, pl.Int64)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Count it."""
        end = context.event_time_ms // BUCKET_MS * BUCKET_MS + BUCKET_MS
        self.n[end] = self.n.get(end, 0) + 1
        context.timers.register(end)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell the number."""
        yield {"k": key[0], "n": self.n.pop(time_ms), "at": time_ms}


class PlainBuckets(Timed):
    """The model of :class:`Buckets`."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[int, int]] = Counter()

    def take(self, row: Seen) -> None:
        """See the base class."""
        end = row.at // BUCKET_MS * BUCKET_MS + BUCKET_MS
        self._counts[row.k, end] += 1
        self.due.add((end, row.k))

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        self.said.append((key, self._counts.pop((key, at)), at, at))


# --- timers that register timers ---


class Rings(weir.KeyedProcess):
    """Rows ring once, later, and some of these ring again."""

    rung = weir.ValueState(pl.Int64, default=0)
    dropped = weir.ListState(pl.Int64)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Register it, and one that is deleted."""
        context.timers.register(context.event_time_ms + DELAY_MS)
        context.timers.register(context.event_time_ms + 2 * GAP_MS + 1)
        context.timers.delete(context.event_time_ms + 2 * GAP_MS + 1)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it, and ring again."""
        self.rung.value += 1
        yield {"k": key[0], "n": self.rung.value, "at": time_ms}
        if self.rung.value % 3:
            context.timers.register(time_ms + 700)
        if self.rung.value % 5 == 0:
            context.timers.register(time_ms)
        if self.rung.value % 4 == 0:
            context.timers.delete(time_ms + 700)


class PlainRings(Timed):
    """The model of :class:`Rings`."""

    def __init__(self) -> None:
        super().__init__()
        self._rung: Counter[int] = Counter()

    def take(self, row: Seen) -> None:
        """See the base class."""
        self.due.add((row.at + DELAY_MS, row.k))

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        self._rung[key] += 1
        self.said.append((key, self._rung[key], at, at))
        if self._rung[key] % 3:
            self.due.add((at + 700, key))
        if self._rung[key] % 5 == 0:
            self.due.add((at, key))
        if self._rung[key] % 4 == 0:
            self.due.discard((at + 700, key))


# --- timers that register earlier ones, and delete later ones ---


class Echoes(weir.KeyedProcess):
    """A timer registers earlier and later ones, so many times, and deletes one."""

    left = weir.ValueState(pl.Int64, default=0)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Begin anew."""
        self.left.value = ECHOES
        context.timers.register(context.event_time_ms + DELAY_MS)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it, and echo."""
        yield {"k": key[0], "n": self.left.value, "at": time_ms}
        if self.left.value:
            self.left.value -= 1
            context.timers.register(time_ms - 500 if self.left.value % 2 else time_ms + 1_500)
            context.timers.register(time_ms + 100 * self.left.value)
            context.timers.delete(time_ms + 1_600)


class EchoesInBatches(weir.KeyedProcess):
    """As :class:`Echoes`, in batches."""

    left = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        """Begin anew."""
        keys = context.keys(batch)
        self.left.put(keys.distinct, np.full(len(keys.distinct), ECHOES))
        context.timers.register(batch["_event_time_ms"].to_numpy() + DELAY_MS, keys)

    def on_timers(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """Tell them, and echo."""
        left, times_ms = self.left.get(context.keys(batch)).to_numpy(), batch["_event_time_ms"].to_numpy()
        yield pa.record_batch({"k": batch["k"], "n": pa.array(left), "at": pa.array(times_ms)})
        some, times_ms, left = batch.filter(pa.array(left > 0)), times_ms[left > 0], left[left > 0] - 1
        keys = context.keys(some)
        self.left.put(keys, left)
        context.timers.register(np.where(left % 2, times_ms - 500, times_ms + 1_500), keys)
        context.timers.register(times_ms + 100 * left, keys)
        context.timers.delete(times_ms + 1_600, keys)


class PlainEchoes(Timed):
    """The model of :class:`Echoes`; what they say is in ``rows``, too."""

    def __init__(self) -> None:
        super().__init__()
        self._left: Counter[int] = Counter()
        #: Of what an earlier or later timer registered, the time as of which it did.
        self._behind: dict[tuple[int, int], int] = {}
        self.rows: list[Seen] = []

    def take(self, row: Seen) -> None:
        """See the base class."""
        self._left[row.k] = ECHOES
        self._register(row.k, row.at + DELAY_MS, -END_MS)

    def _register(self, key: int, at: int, reached: int) -> None:
        if (at, key) not in self.due:
            self.due.add((at, key))
            self._behind[at, key] = reached

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        left, reached = self._left[key], max(at, self._behind[at, key])
        mark = max(self.before, reached - 1) if reached > at else self.before
        self.said.append((key, left, at, at))
        self.rows.append(Seen(key, at, left, 0, mark, max(at - 1, mark)))
        if left:
            self._left[key] = left - 1
            self._register(key, at - 500 if (left - 1) % 2 else at + 1_500, reached)
            self._register(key, at + 100 * (left - 1), reached)
            self.due.discard((at + 1_600, key))


# --- a timer at the time of its row, and what the watermark is ---


class OwnTime(weir.KeyedProcess):
    """Each row rings at its own time; both tell what the watermark is. Late rows leave by the side."""

    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key: Any, row: Any, context: Any) -> Iterator[Any]:
        """Register it."""
        self.n.value += 1
        context.timers.register(context.event_time_ms)
        if context.event_time_ms < context.timers.watermark_ms:
            yield weir.side("late", {"k": key[0], "n": row["v"]})
        yield {"k": key[0], "n": self.n.value, "mark": context.timers.watermark_ms}

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it."""
        yield {"k": key[0], "n": -self.n.value, "mark": context.timers.watermark_ms}


class PlainOwnTime(Timed):
    """The model of :class:`OwnTime`."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[int] = Counter()
        self.late: list[Result] = []

    def take(self, row: Seen) -> None:
        """See the base class."""
        self._counts[row.k] += 1
        self.due.add((row.at, row.k))
        if row.late:
            self.late.append((row.k, row.v, row.at))
        self.said.append((row.k, self._counts[row.k], self.mark, row.at))

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        self.said.append((key, -self._counts[key], max(at, self.before), at))


def _late_rows(streams: list[list[Seen]]) -> list[Result]:
    plain = PlainOwnTime()
    plain.run(streams[0])
    return plain.late


def _build_late(streams: list[Any], parallelism: int) -> Any:
    sides = {"late": {"k": int, "n": int}}
    schema = {"k": int, "n": int, "mark": int}
    rung = (
        streams[0].key_by("k").process("rung", OwnTime, schema, side_outputs=sides, parallelism=parallelism)
    )
    rung.sink("rings", weir.Collect())
    return rung.side_output("late").pass_through("out")


# --- deduplication ---


def deduplicated(rows: list[Seen]) -> list[Seen]:
    """Rows that are so much later than the one of their key that was passed on; it is forgotten by then."""
    seen: dict[int, int] = {}
    passed = []
    for row in rows:
        if row.k not in seen or seen[row.k] + WITHIN_MS <= max(row.at, row.mark):
            seen[row.k] = row.at
            passed.append(row)
    return passed


def _deduplicated(streams: list[list[Seen]]) -> list[Result]:
    return [(row.k, row.at, row.v, row.to, row.at) for row in deduplicated(streams[0])]


def _build_deduplicated(streams: list[Any], parallelism: int) -> Any:
    return streams[0].key_by("k").deduplicate("out", within=f"{WITHIN_MS}ms", parallelism=parallelism)


# --- others by key: they do not look at the watermark, but at what came first ---


def _top(streams: list[list[Seen]]) -> list[Result]:
    by_key: dict[int, list[Seen]] = defaultdict(list)
    for row in streams[0]:
        by_key[row.k].append(row)
    return [
        (row.k, row.at, row.v, row.to, "insert", row.at)
        for rows in by_key.values()
        for row in sorted(rows, key=lambda row: -row.to)[:3]
    ]


def _last(streams: list[list[Seen]]) -> list[Result]:
    last: dict[int, Seen] = {}
    for row in streams[0]:
        if row.k not in last or row.at >= last[row.k].at:
            last[row.k] = row
    return [(row.k, row.at, row.v, row.to, "insert", row.at) for row in last.values()]


def _running(streams: list[list[Seen]]) -> list[Result]:
    counts, totals = Counter[int](), Counter[int]()
    said = []
    for row in streams[0]:
        counts[row.k] += 1
        totals[row.k] += row.v
        said.append((row.k, row.at, row.v, row.to, counts[row.k], totals[row.k], row.at))
    return said


STEPS = (
    Step("pauses by timers", process(Quiet, COUNTED), model(PlainQuiet), several=None),
    Step("pauses by timers in batches", process(QuietBatches, COUNTED), model(PlainQuiet), several=None),
    Step("stretches by timers", process(Buckets, COUNTED), model(PlainBuckets), several=None),
    Step("stretches by timers, in time", process(Buckets, COUNTED), model(PlainBuckets), in_time=True),
    Step(
        "timers by timers",
        process(Rings, COUNTED),
        model(PlainRings),
        several="order",
        own_keys=True,
    ),
    Step("earlier timers by timers", process(Echoes, COUNTED), model(PlainEchoes), several=None),
    Step(
        "earlier timers by timers in batches",
        process(EchoesInBatches, COUNTED),
        model(PlainEchoes),
        several=None,
    ),
    Step(
        "timers at the time of rows",
        process(OwnTime, {"k": int, "n": int, "mark": int}, side_outputs={"late": {"k": int, "n": int}}),
        model(PlainOwnTime),
        several=None,
    ),
    Step("late rows beside timers", _build_late, _late_rows, several=None),
    Step("deduplicated", _build_deduplicated, _deduplicated, several="order", own_keys=True, late_keys=True),
    Step(
        "top",
        lambda streams, parallelism: (
            streams[0].key_by("k").top("out", by="to", rows=3, parallelism=parallelism)
        ),
        _top,
        one="folded",
        several="folded",
        own_keys=True,
        late_keys=True,
    ),
    Step(
        "last rows",
        lambda streams, parallelism: (
            streams[0].key_by("k").deduplicate("out", keep="last", parallelism=parallelism)
        ),
        _last,
        one="folded",
        several="folded",
        own_keys=True,
        late_keys=True,
    ),
    Step(
        "running aggregates",
        lambda streams, parallelism: (
            streams[0]
            .key_by("k")
            .aggregate("out", n=weir.count(), total=weir.sum("v"), parallelism=parallelism)
        ),
        _running,
        several="order",
        own_keys=True,
        late_keys=True,
    ),
)
SURE = STEPS
