"""Several steps in a row, functions before them, rules beside them, and what they must say, a row at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.keyed_steps import (
    COUNTED,
    GAP_MS,
    WITHIN_MS,
    Buckets,
    Echoes,
    EchoesInBatches,
    PlainBuckets,
    PlainEchoes,
    PlainQuiet,
    Quiet,
    Timed,
    deduplicated,
)
from benchmarks.law.steps import Result, Step
from benchmarks.law.ttl_steps import VALUES, Values, plain_values, time_of

SIZE_MS, TOTAL_MS, BOUND_MS, TTL_MS = 5_000, 20_000, 500, 5_000
_LATER_MS, _SHORT_MS = 10**12, 400


def windows(rows: list[Seen], size_ms: int) -> list[tuple[Seen, int]]:
    """Results of windows as rows, with the start of each; ``v`` is the sum of ``v``."""
    totals, made = Counter[tuple[int, int]](), list[tuple[Seen, int]]()
    mark = -END_MS

    def close(until_ms: int) -> None:
        nonlocal mark
        for end, key in sorted(window for window in totals if window[0] <= until_ms):
            # As of its own time: it leaves when the watermark comes to its end.
            made.append((Seen(key, end - 1, totals.pop((end, key)), 0, mark, end - 1), end - size_ms))
        mark = max(mark, until_ms)

    for row in rows:
        close(row.all_ms)
        end = row.at // size_ms * size_ms + size_ms
        if end > row.mark:
            totals[end, row.k] += row.v
    close(END_MS)
    return made


def _of_windows(rows: list[Seen], size_ms: int) -> list[Result]:
    return [(row.k, start, start + size_ms, row.v, row.at) for row, start in windows(rows, size_ms)]


def _counted(rows: list[Seen]) -> list[Seen]:
    return [replace(row, v=1) for row in rows]


class _Stretches(PlainBuckets):
    """Numbers of rows as rows; their sums where these are numbers themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Seen] = []

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        super().ring(key, at)
        self.rows.append(Seen(key, at, self.said[-1][1], 0, self.before, max(at - 1, self.before)))


def _stretches(rows: list[Seen]) -> list[Seen]:
    plain = _Stretches()
    plain.run(rows)
    return plain.rows


# --- several steps ---


def _windows_then_pauses(streams: list[Any], parallelism: int) -> Any:
    counts = streams[0].key_by("k").window(weir.tumbling(SIZE_MS))
    counted = counts.aggregate("counted", n=weir.count(), parallelism=parallelism)
    return counted.key_by("k").process("out", Quiet, COUNTED, parallelism=parallelism)


def _stretches_then_windows(streams: list[Any], parallelism: int) -> Any:
    counted = streams[0].key_by("k").process("counted", Buckets, COUNTED, parallelism=parallelism)
    return counted.key_by("k").window(weir.tumbling(TOTAL_MS)).aggregate("out", n=weir.sum("n"))


def _windows_stretches_windows(streams: list[Any], parallelism: int) -> Any:
    counts = streams[0].key_by("k").window(weir.tumbling(1_000))
    counted = counts.aggregate("counted", n=weir.count(), parallelism=parallelism)
    stretched = counted.key_by("k").process("stretched", Buckets, COUNTED)
    return stretched.key_by("k").window(weir.tumbling(TOTAL_MS)).aggregate("out", n=weir.sum("n"))


def _echoes(rows: list[Seen]) -> list[Seen]:
    plain = PlainEchoes()
    plain.run(rows)
    return plain.rows


def _echoes_then_windows(kind: Any) -> Any:
    def made(streams: list[Any], parallelism: int) -> Any:
        told = streams[0].key_by("k").process("told", kind, COUNTED, parallelism=parallelism)
        return told.key_by("k").window(weir.tumbling(_SHORT_MS)).aggregate("out", n=weir.sum("n"))

    return made


def _deduplicated_then_windows(streams: list[Any], parallelism: int) -> Any:
    first = streams[0].key_by("k").deduplicate("first", within=f"{WITHIN_MS}ms", parallelism=parallelism)
    return first.key_by("k").window(weir.tumbling(SIZE_MS)).aggregate("out", n=weir.count())


def _windows_then_others(streams: list[Any], parallelism: int) -> Any:
    """Windows of one subtask: their results come in the order of time."""
    counts = streams[0].key_by("k").window(weir.tumbling(1_000))
    counted = counts.aggregate("counted", n=weir.count(), parallelism=1)
    starts = weir.bounded_out_of_orderness("0s", idle_timeout="1000h")
    started = counted.assign_event_time("started", "window_start", watermark=starts)
    return (
        started.key_by("k")
        .window(weir.tumbling(SIZE_MS))
        .aggregate("out", n=weir.sum("n"), parallelism=parallelism)
    )


def _plain_windows_then_others(streams: list[list[Seen]]) -> list[Result]:
    started = [
        replace(row, at=start, mark=start, all_ms=start)
        for row, start in windows(_counted(streams[0]), 1_000)
    ]
    return _of_windows(started, SIZE_MS)


def _assigned_then_pauses(streams: list[Any], parallelism: int) -> Any:
    bound = weir.bounded_out_of_orderness(f"{BOUND_MS}ms", idle_timeout="1000h")
    assigned = streams[0].assign_event_time("assigned", "at", watermark=bound)
    return assigned.key_by("k").process("out", Quiet, COUNTED, parallelism=parallelism)


def _assigned(rows: list[Seen]) -> Iterator[Seen]:
    highest_ms = -END_MS
    for row in rows:
        highest_ms = max(highest_ms, row.at)
        yield replace(row, mark=highest_ms - BOUND_MS, all_ms=highest_ms - BOUND_MS)


# --- functions ---


def _twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for more in range(2):
        yield {**row, "v": 2 * row["v"] + more}


def _moved(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "v": row["v"] + 1}


def _without_some(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array([value % 7 != 0 for value in batch["v"].to_pylist()]))


_ROW = {"k": int, "at": int, "v": int, "to": int}


def _functions(stream: Any) -> Any:
    return (
        stream.flat_map("twice", _twice, _ROW)
        .map_batches("without_some", _without_some, _ROW)
        .map("moved", _moved, _ROW)
        .with_columns("same", to=pl.col("to") + 0)
    )


def _after_functions(rows: list[Seen]) -> list[Seen]:
    return [
        replace(row, v=value + 1) for row in rows for value in (2 * row.v, 2 * row.v + 1) if value % 7 != 0
    ]


def _functions_then_values(streams: list[Any], parallelism: int) -> Any:
    made = _functions(streams[0]).key_by("k")
    return made.process("out", Values, VALUES, parallelism=parallelism)


def _functions_then_pauses(streams: list[Any], parallelism: int) -> Any:
    return _functions(streams[0]).key_by("k").process("out", Quiet, COUNTED, parallelism=parallelism)


# --- rules ---

RULED = {"k": int, "n": int, "lately": int, "factor": int}


class Ruled(weir.BroadcastProcess):
    """Rows count as often as a rule says, for which they wait."""

    n = weir.ValueState(pl.Int64, default=0)
    lately = weir.ListState(pl.Int64, ttl=weir.Ttl(f"{TTL_MS}ms"))

    def on_broadcast(self, row: Any, rules: dict[str, Any], context: Any) -> None:
        """One row is the rule."""
        if row["v"] == 0:
            rules["factor"] = row["k"] + 2

    def process(self, row: Any, rules: Any, context: Any) -> Iterator[dict[str, Any]]:
        """Count it."""
        self.n.value += rules.get("factor", 1)
        self.lately.append(row["v"])
        yield {
            "k": context.key[0],
            "n": self.n.value,
            "lately": len(self.lately),
            "factor": rules.get("factor", 1),
        }


class RuledTimers(Ruled):
    """As :class:`Ruled`, with a timer."""

    ends = weir.ValueState(pl.Int64)

    def process(self, row: Any, rules: Any, context: Any) -> Iterator[dict[str, Any]]:
        """Count it, and move the end."""
        if self.ends.value is not None:
            context.timers.delete(self.ends.value)
        self.ends.value = context.event_time_ms + GAP_MS
        context.timers.register(self.ends.value)
        yield from super().process(row, rules, context)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it, and begin anew."""
        yield {
            "k": key[0],
            "n": -self.n.value,
            "lately": len(self.lately),
            "factor": context.rules.get("factor", 1),
        }
        self.n.clear()
        self.ends.clear()


class PlainRuled(Timed):
    """The model of :class:`RuledTimers`."""

    def __init__(self, factor: int, *, has_timers: bool) -> None:
        super().__init__()
        self._factor, self._has_timers = factor, has_timers
        self._totals = Counter[int]()
        self._lately: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, int] = {}

    def take(self, row: Seen) -> None:
        """See the base class."""
        now = time_of(row)
        if self._has_timers:
            self.due.discard((self._ends.get(row.k, -1), row.k))
            self._ends[row.k] = row.at + GAP_MS
            self.due.add((self._ends[row.k], row.k))
        self._totals[row.k] += self._factor
        self._lately[row.k] = [*self._live(row.k, now), now]
        self.said.append((row.k, self._totals[row.k], len(self._lately[row.k]), self._factor, row.at))

    def ring(self, key: int, at: int) -> None:
        """See the base class."""
        self._lately[key] = self._live(key, at - 1)
        self.said.append((key, -self._totals.pop(key), len(self._lately[key]), self._factor, at))
        del self._ends[key]

    def _live(self, key: int, now: int) -> list[int]:
        return [at for at in self._lately[key] if at + TTL_MS > now]


def _ruled(kind: Any) -> Any:
    def made(streams: list[Any], parallelism: int) -> Any:
        # The watermark of the rules is far ahead as soon as there is one.
        rules = streams[1].assign_event_time("later", pl.col("at") + _LATER_MS)
        return (
            streams[0]
            .key_by("k")
            .connect_broadcast("out", rules, kind, RULED, hold_until="first", parallelism=parallelism)
        )

    return made


def _plain_ruled(*, has_timers: bool) -> Any:
    def told(streams: list[list[Seen]]) -> list[Result]:
        factor = next((row.k + 2 for row in streams[1] if row.v == 0), 1)
        return PlainRuled(factor, has_timers=has_timers).run(streams[0])

    return told


_CERTAIN: dict[str, Any] = {"several": "order", "own_keys": True, "late_keys": True}
STEPS = (
    Step(
        "windows, then pauses by timers",
        _windows_then_pauses,
        lambda streams: PlainQuiet().run([row for row, _ in windows(_counted(streams[0]), SIZE_MS)]),
        several=None,
    ),
    Step(
        "stretches by timers, then windows",
        _stretches_then_windows,
        lambda streams: _of_windows(_stretches(streams[0]), TOTAL_MS),
        several=None,
    ),
    Step(
        "stretches by timers, then windows, in time",
        _stretches_then_windows,
        lambda streams: _of_windows(_stretches(streams[0]), TOTAL_MS),
        in_time=True,
    ),
    *(
        Step(
            f"earlier timers by timers{form}, then windows",
            _echoes_then_windows(kind),
            lambda streams: _of_windows(_echoes(streams[0]), _SHORT_MS),
            several=None,
        )
        for form, kind in (("", Echoes), (" in batches", EchoesInBatches))
    ),
    Step(
        "windows, stretches by timers, windows",
        _windows_stretches_windows,
        lambda streams: _of_windows(
            _stretches([row for row, _ in windows(_counted(streams[0]), 1_000)]), TOTAL_MS
        ),
    ),
    Step(
        "deduplicated, then windows",
        _deduplicated_then_windows,
        lambda streams: _of_windows(_counted(deduplicated(streams[0])), SIZE_MS),
        several="rows",
        own_keys=True,
        late_keys=True,
    ),
    Step("windows, then other times and windows", _windows_then_others, _plain_windows_then_others),
    Step(
        "other times, then pauses by timers",
        _assigned_then_pauses,
        lambda streams: PlainQuiet().run(list(_assigned(streams[0]))),
        several=None,
    ),
    Step(
        "functions, then values that expire",
        _functions_then_values,
        lambda streams: plain_values([_after_functions(streams[0])]),
        **_CERTAIN,
    ),
    Step(
        "functions, then pauses by timers",
        _functions_then_pauses,
        lambda streams: PlainQuiet().run(_after_functions(streams[0])),
        several=None,
    ),
    Step("rules", _ruled(Ruled), _plain_ruled(has_timers=False), streams=2, **_CERTAIN),
    Step("rules and timers", _ruled(RuledTimers), _plain_ruled(has_timers=True), streams=2, several=None),
)
SURE = STEPS
