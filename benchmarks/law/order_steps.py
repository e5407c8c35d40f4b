"""Timers over rows of several subtasks, splits and inputs, and what they must say: as if all came in the order of time.

Rows of one split, or of none that are as of the same time, come in one order alone. So what these steps say of rows as
of one time does not depend on which of them came first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.keyed_steps import COUNTED, GAP_MS, Buckets, PlainBuckets, PlainQuiet, Timed
from benchmarks.law.steps import Result, Step


class Pauses(weir.KeyedProcess):
    """Tells how many rows came before a pause, whichever of those of one time was first."""

    n = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Move the end."""
        self.n.value += 1
        end, before = context.event_time_ms + GAP_MS, self.ends.value
        if before is None or end > before:
            if before is not None:
                context.timers.delete(before)
            self.ends.value = end
            context.timers.register(end)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it."""
        yield {"k": key[0], "n": self.n.value, "at": time_ms}
        self.n.clear()
        self.ends.clear()


class PausesInBatches(weir.KeyedProcess):
    """As :class:`Pauses`, in batches."""

    n = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64, default=-END_MS)

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        """Move the ends."""
        keys = context.keys(batch)
        before = self.ends.get(keys.distinct).to_numpy()
        after = before.copy()
        np.maximum.at(after, keys.inverse, batch["_event_time_ms"].to_numpy() + GAP_MS)
        counts = np.bincount(keys.inverse, minlength=len(after))
        self.n.put(keys.distinct, self.n.get(keys.distinct).to_numpy() + counts)
        for index in context.visit(keys):
            if -END_MS < before[index] < after[index]:
                context.timers.delete(int(before[index]))
        self.ends.put(keys.distinct, after)
        context.timers.register(after, keys.distinct)

    def on_timers(self, batch: pa.RecordBatch, context: Any) -> Iterator[pa.RecordBatch]:
        """Tell them."""
        keys = context.keys(batch)
        yield pa.record_batch(
            {"k": batch["k"], "n": self.n.get(keys).to_arrow(), "at": batch["_event_time_ms"]}
        )
        nothing = np.full(len(keys.distinct), None)
        self.n.put(keys.distinct, pl.Series(nothing, dtype=pl.Int64))
        self.ends.put(keys.distinct, pl.Series(nothing, dtype=pl.Int64))


class PausesByRules(weir.BroadcastProcess):
    """As :class:`Pauses`, beside rules."""

    n = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def on_broadcast(self, row: Any, rules: dict[str, Any], context: Any) -> None:
        """Nothing goes by it."""
        rules["last"] = row["v"]

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Move the end."""
        Pauses.process(self, context.key, key, context)  # type: ignore[arg-type]

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it."""
        return Pauses.on_timer(self, key, time_ms, context)  # type: ignore[arg-type]


class PlainPauses(PlainQuiet):
    """The model of :class:`Pauses`."""

    def take(self, row: Seen) -> None:
        """See the base class."""
        if self._ends.get(row.k, -END_MS) >= row.at + GAP_MS:
            self._counts[row.k] += 1
        else:
            super().take(row)


def merged(streams: list[list[Seen]]) -> list[Seen]:
    """The rows of all splits in the order of their watermarks, each as of its own split."""
    rows = [replace(row, all_ms=row.mark) for stream in streams for row in stream]
    return sorted(rows, key=lambda row: row.mark)


def _model(kind: Any, streams_max: int | None = None) -> Any:
    def said(streams: list[list[Seen]]) -> list[Result]:
        plain: Timed = kind()
        return plain.run(merged(streams[:streams_max]))

    return said


def _by_another_key(kind: Any) -> Any:
    def made(streams: list[Any], parallelism: int) -> Any:
        counted = streams[0].key_by("v").count("counted", parallelism=parallelism)
        return counted.key_by("k").process("out", kind, COUNTED, parallelism=parallelism)

    return made


def _by_three_keys(streams: list[Any], parallelism: int) -> Any:
    counted = streams[0].key_by("v").count("counted", parallelism=parallelism)
    summed = counted.key_by("to").aggregate(
        "summed", total=weir.sum("v"), parallelism=max(1, parallelism - 1)
    )
    return summed.key_by("k").process("out", Pauses, COUNTED, parallelism=parallelism)


def _in_turn(streams: list[Any], parallelism: int) -> Any:
    spread = streams[0].rebalance().map("same", _same, parallelism=parallelism)
    return spread.key_by("k").process("out", Pauses, COUNTED, parallelism=parallelism)


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _of_one(kind: Any) -> Any:
    return lambda streams, parallelism: (
        streams[0].key_by("k").process("out", kind, COUNTED, parallelism=parallelism)
    )


def _after_a_filter(streams: list[Any], parallelism: int) -> Any:
    """The step stands behind another one by its key."""
    counted = streams[0].key_by("k").count("counted", parallelism=parallelism)
    return (
        counted.filter("some", pl.col("v") % 5 != 0)
        .key_by("k")
        .process("out", Pauses, COUNTED, parallelism=parallelism)
    )


def _after_a_filter_says(streams: list[list[Seen]]) -> list[Result]:
    return PlainPauses().run([row for row in merged(streams) if row.v % 5])


def _behind_a_join(streams: list[Any], parallelism: int) -> Any:
    """The step stands behind a join by its key, which takes rows as they come."""
    other = streams[1].rename("other", {"v": "w"}).key_by("k")
    pairs = streams[0].key_by("k").join("pairs", other, within=_WITHIN, parallelism=parallelism)
    return pairs.key_by("k").process("out", Pauses, COUNTED, parallelism=parallelism)


def _behind_a_join_says(streams: list[list[Seen]]) -> list[Result]:
    before_ms, after_ms = _WITHIN
    pairs = [
        replace(max(one, two, key=lambda row: row.at), mark=max(one.mark, two.mark))
        for one in merged(streams[:1])
        for two in merged(streams[1:])
        if one.k == two.k and before_ms <= two.at - one.at <= after_ms
    ]
    return PlainPauses().run(merged([pairs]))


def _together(streams: list[Any], parallelism: int) -> Any:
    both = streams[0].union("both", streams[1])
    return both.key_by("k").process("out", Pauses, COUNTED, parallelism=parallelism)


def _beside_rules(streams: list[Any], parallelism: int) -> Any:
    counted = streams[0].key_by("v").count("counted", parallelism=parallelism)
    return counted.key_by("k").connect_broadcast(
        "out", streams[1], PausesByRules, COUNTED, parallelism=parallelism
    )


def _twice(streams: list[Any], parallelism: int) -> Any:
    """What timers tell goes to other timers by another key."""
    first = streams[0].key_by("k").process("first", Pauses, COUNTED, parallelism=parallelism)
    by_count = first.map("by_count", _by_count, COUNTED)
    return by_count.key_by("k").process("out", Pauses, COUNTED, parallelism=parallelism)


def _by_count(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["n"] % 3, "n": row["k"], "at": row["at"]}


def _twice_says(streams: list[list[Seen]]) -> list[Result]:
    first = PlainPauses().run(merged(streams))
    # What a timer tells is as of the moment before its own time.
    rows = [Seen(n % 3, at, k, 0, at - 1, at - 1) for k, n, at, _ in first]
    return PlainPauses().run(sorted(rows, key=lambda row: row.mark))


#: Rows of the second stream that are joined with a row, by their times less its own, in ms.
_WITHIN = (-300, 200)
_IN_TIME: dict[str, Any] = {"in_time": True, "several": "order"}
STEPS = (
    Step("pauses of several splits", _of_one(Pauses), _model(PlainPauses), **_IN_TIME),
    Step("pauses of several splits in batches", _of_one(PausesInBatches), _model(PlainPauses), **_IN_TIME),
    Step("stretches of several splits", _of_one(Buckets), _model(PlainBuckets), several="rows"),
    Step("pauses by another key", _by_another_key(Pauses), _model(PlainPauses), **_IN_TIME),
    Step(
        "pauses by another key in batches", _by_another_key(PausesInBatches), _model(PlainPauses), **_IN_TIME
    ),
    Step("stretches by another key", _by_another_key(Buckets), _model(PlainBuckets), one="rows"),
    Step("pauses by a third key", _by_three_keys, _model(PlainPauses), **_IN_TIME),
    Step("pauses of rows in turn", _in_turn, _model(PlainPauses), **_IN_TIME),
    Step("pauses behind a step of their key", _after_a_filter, _after_a_filter_says, **_IN_TIME),
    Step("pauses behind a join of their key", _behind_a_join, _behind_a_join_says, streams=2, **_IN_TIME),
    Step("pauses of two inputs", _together, _model(PlainPauses), streams=2, **_IN_TIME),
    Step("pauses beside rules", _beside_rules, _model(PlainPauses, 1), streams=2, **_IN_TIME),
    Step("pauses of pauses", _twice, _twice_says, **_IN_TIME),
)
SURE = STEPS
