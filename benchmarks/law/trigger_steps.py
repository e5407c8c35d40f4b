"""Windows that go by rows, and triggers, and what they must say, a row at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.steps import Result, Step
from benchmarks.law.window_steps import build, build_all

ROWS, SLIDE, WAIT_MS = 5, 2, 3_000


def _value(rows: list[Seen]) -> tuple[Any, ...]:
    return len(rows), sum(row.v for row in rows)


def _result(
    key: tuple[Any, ...], rows: list[Seen], shown: list[Seen], not_before_ms: int = -END_MS
) -> Result:
    """Of rows in the order in which they came; ``shown``: those of the values."""
    first_ms, last_ms = min(row.at for row in rows), max(row.at for row in rows)
    return (*key, first_ms, last_ms + 1, *_value(shown), max(last_ms, not_before_ms))


# --- windows without an end ---


@dataclass
class Global:
    """The only window of each key."""

    #: Whether it is told after a row, given how many have come since it was told.
    tells: Callable[[Seen, int], bool]
    results: str = "accumulating"
    key: Callable[[Seen], tuple[Any, ...]] = lambda row: (row.k,)

    def run(self, rows: list[Seen]) -> list[Result]:
        """All that they say; what is left is told at the end."""
        said: list[Result] = []
        kept: dict[Any, list[Seen]] = defaultdict(list)
        told: dict[Any, int] = defaultdict(int)
        for row in rows:
            key = self.key(row)
            kept[key].append(row)
            if self.tells(row, len(kept[key]) - told[key]):
                said += self._tell(key, kept[key], told)
        for key, of_key in kept.items():
            if len(of_key) > told[key]:
                said += self._tell(key, of_key, told)
        return said

    def _tell(self, key: Any, rows: list[Seen], told: dict[Any, int]) -> Iterator[Result]:
        before, told[key] = told[key], len(rows)
        if self.results == "discarding":
            yield _result(key, rows[before:], rows[before:])
            return
        result = _result(key, rows, rows)
        if self.results == "accumulating":
            yield result
            return
        if before:
            old = _result(key, rows[:before], rows[:before])
            yield (*old[:-1], "update_before", old[-1])
        yield (*result[:-1], "update_after" if before else "insert", result[-1])


def _third(row: Seen, more: int) -> bool:
    return more >= 3


def _flushes(row: Seen, more: int) -> bool:
    return row.v % 5 == 0


def _global() -> Iterator[Step]:
    ways: tuple[tuple[str, Any, Callable[[Seen, int], bool]], ...] = (
        ("each third row", weir.every(rows=3), _third),
        ("certain rows", weir.every(where=pl.col("v") % 5 == 0), _flushes),
    )
    for name, early, tells in ways:
        for results in ("accumulating", "changelog", "discarding"):
            several: Any = "folded" if results == "changelog" else None

            def told(streams: list[list[Seen]], tells: Any = tells, results: str = results) -> list[Result]:
                return Global(tells, results).run(streams[0])

            made = build(weir.global_window(), early=early, results=results)
            yield Step(f"all rows after {name}, {results}", made, told, several=several)

    def of_all(streams: list[list[Seen]]) -> list[Result]:
        return Global(_flushes, key=lambda row: ()).run(streams[0])

    made = build_all(weir.global_window(), early=ways[1][1])
    yield Step("all rows without a key after certain rows", made, of_all, several=None, keys=0)


# --- windows of so many rows ---


def _build_counted(rows: int, slide: int) -> Any:
    return lambda streams, parallelism: (
        streams[0]
        .key_by("k")
        .count_window(rows, slide)
        .aggregate("out", n=weir.count(), total=weir.sum("v"), parallelism=parallelism)
    )


def _counted(rows: int, slide: int) -> Callable[[list[list[Seen]]], list[Result]]:
    def told(streams: list[list[Seen]]) -> Iterator[Result]:
        kept: dict[int, list[Seen]] = defaultdict(list)
        for row in streams[0]:
            of_key = kept[row.k]
            of_key.append(row)
            if len(of_key) % slide == 0:
                yield _result((row.k,), of_key[-rows:], of_key[-rows:])

    return lambda streams: list(told(streams))


# --- triggers as code ---


class Baskets(weir.WindowTrigger):
    """Tells and empties after certain rows, or so long after the first one; tells after others."""

    deadline = weir.ValueState(pl.Int64, default=0)

    def on_rows(self, batch: pa.RecordBatch, context: Any) -> Any:
        """See :class:`weir.WindowTrigger`."""
        keys, found = context.keys(batch), []
        deadlines = self.deadline.get(keys.distinct).to_list()
        rows = zip(keys.inverse, batch["v"].to_pylist(), batch["_event_time_ms"].to_pylist(), strict=True)
        due: dict[int, list[int]] = defaultdict(list)
        for index, v, at in rows:
            if v % 7 == 0:
                deadlines[index] = 0
                found.append(self.FIRE_AND_PURGE)
                continue
            if not deadlines[index]:
                deadlines[index] = at + WAIT_MS
                due[index].append(at + WAIT_MS)
            found.append(self.FIRE if v % 3 == 0 else self.CONTINUE)
        for index in context.visit(keys):
            for due_ms in due[index]:
                context.timers.register(due_ms)
        self.deadline.put(keys.distinct, deadlines)
        return found

    def on_event_time(self, batch: pa.RecordBatch, context: Any) -> Any:
        """See :class:`weir.WindowTrigger`; timers of baskets that are gone do nothing."""
        keys, found = context.keys(batch), []
        deadlines = self.deadline.get(keys.distinct).to_list()
        for index, at in zip(keys.inverse, batch["_event_time_ms"].to_pylist(), strict=True):
            is_due = deadlines[index] == at
            deadlines[index] = 0 if is_due else deadlines[index]
            found.append(self.FIRE_AND_PURGE if is_due else self.CONTINUE)
        self.deadline.put(keys.distinct, deadlines)
        return found


def _build_baskets(streams: list[Any], parallelism: int) -> Any:
    windows = streams[0].key_by("k").triggered_window(Baskets)
    return windows.aggregate("out", n=weir.count(), total=weir.sum("v"), parallelism=parallelism)


def _baskets(streams: list[list[Seen]]) -> list[Result]:
    said: list[Result] = []
    kept: dict[int, list[Seen]] = defaultdict(list)
    deadlines: dict[int, int] = {}

    def pass_by(mark: int) -> None:
        for due_ms, key in sorted((due_ms, key) for key, due_ms in deadlines.items()):
            if due_ms <= mark:
                del deadlines[key]
                rows = kept.pop(key)
                said.append(_result((key,), rows, rows, due_ms))

    for row in streams[0]:
        pass_by(row.mark)
        kept[row.k].append(row)
        if row.v % 7 == 0:
            deadlines.pop(row.k, None)
        else:
            deadlines.setdefault(row.k, row.at + WAIT_MS)
        if row.v % 7 == 0 or row.v % 3 == 0:
            said.append(_result((row.k,), kept[row.k], kept[row.k]))
        if row.v % 7 == 0:
            del kept[row.k]
        pass_by(row.mark)
    pass_by(END_MS)
    return said


STEPS = (
    *_global(),
    Step("last rows of a key", _build_counted(ROWS, SLIDE), _counted(ROWS, SLIDE), several=None),
    Step("so many rows", _build_counted(3, 3), _counted(3, 3), several=None),
    Step("baskets", _build_baskets, _baskets, several=None),
)
