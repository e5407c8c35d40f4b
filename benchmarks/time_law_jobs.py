"""Steps that look at time, random rows for them, and what each step must say of these: a row at a time, in Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

import weir

#: Rows with the columns ``k``, ``at`` and ``v``; the event time is ``at``.
Row = dict[str, int]
BOUND_MS, GAP_MS, TTL_MS, LIST_TTL_MS, SIZE_MS, SLIDE_MS = 2_000, 5_000, 5_000, 10_000, 5_000, 1_000
SCHEMA = {"k": int, "at": int, "v": int}
_START_MS = 10**9
_END_MS = 10**15


def random_rows(seed: int, count: int = 300) -> list[Row]:
    """Rows of one split: dense or sparse, of few or many keys, in order or not, some later than the bound."""
    rng = random.Random(seed)
    step_ms, keys = rng.choice([1, 50, 1_000, 60_000, 3_600_000]), rng.choice([1, 3, 20])
    jitter_ms = rng.choice([0, step_ms, 2_500, 6_000])
    return [
        {
            "k": rng.randrange(keys),
            "at": _START_MS + number * step_ms + rng.randint(-jitter_ms, jitter_ms),
            "v": number,
        }
        for number in range(count)
    ]


class Pieces(weir.Source):
    """One split, in pieces of random or given lengths."""

    def __init__(self, rows: list[Row], cut: int | None, seed: int = 0) -> None:
        """``cut``: rows of a piece; None: random numbers of them."""
        self._rows, self._cut, self._seed = rows, cut, seed

    def read(self, split: Any, position: Any) -> Iterator[tuple[list[Row], int]]:
        """See :class:`weir.Source`."""
        at, rng = position or 0, random.Random(self._seed)
        while at < len(self._rows):
            stop = at + (self._cut or rng.choice([1, 2, 7, 30, 100]))
            yield self._rows[at:stop], stop
            at = stop


# --- what authors write ---


class Sessions(weir.KeyedProcess):
    """Sessions by timers."""

    n = weir.ValueState(pl.Int64, default=0)
    due = weir.ValueState(pl.Int64)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Move the end of the session."""
        if self.due.value is not None:
            context.timers.delete(self.due.value)
        self.n.value += 1
        self.due.value = context.event_time_ms + GAP_MS
        context.timers.register(self.due.value)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it."""
        yield {"k": key[0], "n": self.n.value, "at": time_ms}
        self.n.clear()
        self.due.clear()


class Expiring(weir.KeyedProcess):
    """State that expires, of each kind."""

    n = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl(f"{TTL_MS}ms"))
    text = weir.ValueState(str, default="", ttl=weir.Ttl(f"{TTL_MS}ms"))
    lately = weir.ListState(pl.Int64, ttl=weir.Ttl(f"{LIST_TTL_MS}ms"))
    items = weir.MapState(str, pl.Int64, ttl=weir.Ttl(f"{LIST_TTL_MS}ms"))

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """Tell what is there."""
        self.n.value += 1
        self.text.value = self.text.value[-3:] + str(row["v"] % 10)
        self.lately.append(row["v"])
        self.items[str(row["v"] % 4)] = row["v"]
        total = sum(value for _, value in self.items.items())
        yield {
            "k": key[0],
            "n": self.n.value,
            "text": self.text.value,
            "lately": len(self.lately),
            "items": total,
        }


class ExpiringBatches(weir.KeyedProcess):
    """The first two of :class:`Expiring`, for whole batches."""

    n = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl(f"{TTL_MS}ms"))
    text = weir.ValueState(str, default="", ttl=weir.Ttl(f"{TTL_MS}ms"))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """Tell what is there."""
        keys = context.keys(batch)
        counts, texts = self.n.get(keys.distinct).to_list(), self.text.get(keys.distinct).to_list()
        told: tuple[list[int], list[str]] = ([], [])
        for position, value in zip(keys.inverse, batch["v"].to_pylist(), strict=True):
            counts[position] += 1
            texts[position] = texts[position][-3:] + str(value % 10)
            told[0].append(counts[position])
            told[1].append(texts[position])
        self.n.put(keys.distinct, counts)
        self.text.put(keys.distinct, texts)
        yield pa.record_batch({"k": batch["k"], "n": pa.array(told[0]), "text": pa.array(told[1])})


# --- what they must say ---


def _as_of(rows: list[Row]) -> Iterator[tuple[Row, int]]:
    """Each row with the watermark as of it."""
    highest_ms = -_END_MS
    for row in rows:
        highest_ms = max(highest_ms, row["at"])
        yield row, highest_ms - BOUND_MS


def expected_sessions(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Of :class:`Sessions`."""
    sessions: dict[int, tuple[int, int]] = {}
    told: list[tuple[Any, ...]] = []

    def fire(watermark_ms: int) -> None:
        for due_ms, key in sorted((due_ms, key) for key, (_, due_ms) in sessions.items()):
            if due_ms <= watermark_ms:
                told.append((key, sessions.pop(key)[0], due_ms))

    for row, watermark_ms in _as_of(rows):
        fire(watermark_ms)
        sessions[row["k"]] = (sessions.get(row["k"], (0, 0))[0] + 1, row["at"] + GAP_MS)
        fire(watermark_ms)
    fire(_END_MS)
    return told


def expected_expiring(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Of :class:`Expiring`; pruned by hand."""
    counts: dict[int, tuple[int, int, str]] = {}
    lists: dict[int, list[int]] = {}
    maps: dict[int, dict[int, tuple[int, int]]] = {}
    told: list[tuple[Any, ...]] = []
    for row, watermark_ms in _as_of(rows):
        now_ms, key = max(row["at"], watermark_ms), row["k"]
        written_ms, n, text = counts.get(key, (-_END_MS, 0, ""))
        if written_ms + TTL_MS <= now_ms:
            n, text = 0, ""
        counts[key] = now_ms, n + 1, text[-3:] + str(row["v"] % 10)
        lists[key] = [at for at in lists.get(key, []) if at + LIST_TTL_MS > now_ms] + [now_ms]
        maps.setdefault(key, {})[row["v"] % 4] = (now_ms, row["v"])
        total = sum(value for at, value in maps[key].values() if at + LIST_TTL_MS > now_ms)
        told.append((key, *counts[key][1:], len(lists[key]), total))
    return told


def expected_windows(rows: list[Row], size_ms: int, slide_ms: int) -> list[tuple[Any, ...]]:
    """Numbers of rows by key and window; a row of which the last window is over as of it does not count."""
    counts: dict[tuple[int, int], int] = {}
    for row, watermark_ms in _as_of(rows):
        first_ms = row["at"] // slide_ms * slide_ms
        if first_ms + size_ms <= watermark_ms:
            continue
        for start_ms in range(first_ms, row["at"] - size_ms, -slide_ms):
            counts[row["k"], start_ms] = counts.get((row["k"], start_ms), 0) + 1
    # A late row is not in those of its windows that have left.
    return [(key, start_ms, start_ms + size_ms, n) for (key, start_ms), n in counts.items()]


@dataclass(frozen=True)
class Step:
    """One step over rows by key."""

    name: str
    #: Adds the step "out" to a keyed stream.
    add: Callable[[Any], Any]
    #: What it must say; None: the same for each cut, which is compared with rows that come one by one.
    expected: Callable[[list[Row]], list[tuple[Any, ...]]] | None = None


def _window(window: Any, **settings: Any) -> Callable[[Any], Any]:
    return lambda keyed: keyed.window(window, **settings).aggregate("out", n=weir.count())


_EXPIRING = {"k": int, "n": int, "text": str, "lately": int, "items": int}
STEPS = (
    Step("tumbling", _window(weir.tumbling(SIZE_MS)), lambda rows: expected_windows(rows, SIZE_MS, SIZE_MS)),
    Step("sliding", _window(weir.sliding(SIZE_MS, SLIDE_MS))),
    Step("cumulative", _window(weir.cumulative(SIZE_MS, SLIDE_MS))),
    Step("session", _window(weir.session(3_000))),
    Step("late rows", _window(weir.tumbling(SIZE_MS), allowed_lateness=3_000)),
    Step("late changes", _window(weir.tumbling(SIZE_MS), allowed_lateness=3_000, results="changelog")),
    Step("early", _window(weir.tumbling(4 * SIZE_MS), early=weir.every("2s", time="event"))),
    Step("early sessions", _window(weir.session(3_000), early=weir.every("2s", time="event"))),
    Step(
        "timers",
        lambda keyed: keyed.process("out", Sessions, {"k": int, "n": int, "at": int}),
        expected_sessions,
    ),
    Step("ttl", lambda keyed: keyed.process("out", Expiring, _EXPIRING), expected_expiring),
    Step(
        "ttl of batches",
        lambda keyed: keyed.process("out", ExpiringBatches, {"k": int, "n": int, "text": str}),
        lambda rows: [told[:3] for told in expected_expiring(rows)],
    ),
    Step("deduplicate", lambda keyed: keyed.deduplicate("out", within="3s")),
    Step(
        "windows, then timers",
        lambda keyed: (
            keyed.window(weir.tumbling(SIZE_MS))
            .aggregate("counted", n=weir.count())
            .key_by("k")
            .process("out", Sessions, {"k": int, "n": int, "at": int})
        ),
    ),
)


def told(
    step: Step, rows: list[Row], cut: int | None, seed: int, parallelism: int = 1
) -> list[tuple[Any, ...]]:
    """What a step says in one process, in no order; ``cut`` as of :class:`Pieces`."""
    flow = weir.Dataflow("time_law")
    source = weir.UserSource(lambda: Pieces(rows, cut, seed), schema=SCHEMA)
    bound = weir.bounded_out_of_orderness(f"{BOUND_MS}ms")
    events = flow.source("events", source, event_time="at", watermark=bound)
    out = step.add(events.pass_through("spread", parallelism=parallelism).key_by("k"))
    return sorted(tuple(row.values()) for row in weir.run(out)["out"].to_dicts())
