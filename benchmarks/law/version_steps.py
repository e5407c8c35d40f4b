"""Steps to which every version of a changelog counts: joins as of a time, windows and processes after such steps.

Two versions of a key may be in one batch, or each in its own. What plain Python says of them is said row by row.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

import weir
from benchmarks.law.cases import BOUND_MS, Seen
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step
from benchmarks.law.window_steps import SIZE_MS, tumbling

GROUPS, LEVELS = 3, 2
Streams = list[list[Seen]]


@dataclass(frozen=True)
class Change:
    """What one row changes: a row is added or taken away, because of a row that came at a time."""

    adds: bool
    #: The key by which the next step goes, and what it sees of the row.
    key: Any
    values: tuple[Any, ...]
    row: Seen


Told = Callable[[list[Seen]], Iterator[Change]]


# --- what steps tell of rows, one after the other ---


def _group(row: Seen) -> int:
    return row.v % GROUPS


def _last_rows(rows: list[Seen]) -> Iterator[Change]:
    last: dict[int, Seen] = {}
    for row in rows:
        old = last.get(row.k)
        if old is not None and row.at < old.at:
            continue
        if old is not None:
            yield Change(adds=False, key=old.k, values=(old.v,), row=row)
        last[row.k] = row
        yield Change(adds=True, key=row.k, values=(row.v,), row=row)


def _value(row: Seen) -> int:
    """Grows, and is the same for several rows."""
    return row.v // 2 * 7 % 50


def _highest(most: int, *, places: bool) -> Told:
    def told(rows: list[Seen]) -> Iterator[Change]:
        tops: dict[int, list[Seen]] = defaultdict(list)
        for row in rows:
            top = tops[row.k]
            before = list(top)
            top.append(row)
            top.sort(key=_value, reverse=True)
            del top[most:]
            if top == before:
                continue
            if not places:
                gone = [old for old in before if old not in top]
                for old in gone:
                    yield Change(adds=False, key=row.k, values=(_value(old), old.v), row=row)
                yield Change(adds=True, key=row.k, values=(_value(row), row.v), row=row)
                continue
            for place, new in enumerate(top, 1):
                old_one = before[place - 1] if place <= len(before) else None
                if old_one == new:
                    continue
                if old_one is not None:
                    values = (_value(old_one), old_one.v)
                    yield Change(adds=False, key=(row.k, place), values=values, row=row)
                yield Change(adds=True, key=(row.k, place), values=(_value(new), new.v), row=row)

    return told


def _aggregates(values: list[int]) -> tuple[Any, ...]:
    odd = sum(value % 2 for value in values)
    return len(values), odd, sum(values), sum(values) / len(values)


def _extremes(values: list[int]) -> tuple[Any, ...]:
    return len(values), min(values), max(values)


def _folded(of: Callable[[list[int]], tuple[Any, ...]]) -> Told:
    """Aggregates of the last rows, by another key."""

    def told(rows: list[Seen]) -> Iterator[Change]:
        groups: dict[int, list[int]] = defaultdict(list)
        for change in _last_rows(rows):
            (value,) = change.values
            group = value % GROUPS
            found = groups[group]
            before = of(found) if found else None
            if change.adds:
                found.append(value)
            else:
                found.remove(value)
            after = of(found) if found else None
            if before == after:
                continue
            if before is not None:
                yield Change(adds=False, key=group, values=before, row=change.row)
            if after is not None:
                yield Change(adds=True, key=group, values=after, row=change.row)

    return told


def _best_of_last(most: int, *, levels: int = 0) -> Told:
    """The highest of the last rows, by another key; of so many levels, of which the lowest values go first."""

    def order(value: int) -> tuple[int, int]:
        return (-(value // GROUPS % levels), value) if levels else (-value, 0)

    def told(rows: list[Seen]) -> Iterator[Change]:
        groups: dict[int, list[int]] = defaultdict(list)
        for change in _last_rows(rows):
            (value,) = change.values
            found = groups[value % GROUPS]
            before = sorted(found, key=order)[:most]
            if change.adds:
                found.append(value)
            else:
                found.remove(value)
            after = sorted(found, key=order)[:most]
            for old in before:
                if old not in after:
                    yield Change(adds=False, key=value % GROUPS, values=(old,), row=change.row)
            for new in after:
                if new not in before:
                    yield Change(adds=True, key=value % GROUPS, values=(new,), row=change.row)

    return told


def _running(rows: list[Seen]) -> Iterator[Change]:
    counts: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        counts[row.k].append(row.v)
        yield Change(adds=True, key=row.k, values=(len(counts[row.k]), sum(counts[row.k])), row=row)


# --- and how the steps are written down ---


def _last(stream: Any, parallelism: int) -> Any:
    last = stream.key_by("k").deduplicate("last", keep="last", parallelism=parallelism)
    return last.select("less", "k", "v", "_change").key_by("k")


def _grouped(stream: Any, parallelism: int) -> Any:
    last = stream.key_by("k").deduplicate("last", keep="last", parallelism=parallelism)
    return last.with_columns("grouped", x=pl.col("v") % GROUPS).key_by("x")


def _top(most: int, rank: str | None = None) -> Callable[[Any, int], Any]:
    def made(stream: Any, parallelism: int) -> Any:
        valued = stream.with_columns("valued", w=pl.col("v") // 2 * 7 % 50)
        top = valued.key_by("k").top("top", by="w", rows=most, rank=rank, parallelism=parallelism)
        ranks = [] if rank is None else [rank]
        return top.select("less", "k", "w", "v", *ranks, "_change").key_by("k", *ranks)

    return made


def _of_last(**aggregates: Any) -> Callable[[Any, int], Any]:
    def made(stream: Any, parallelism: int) -> Any:
        grouped = _grouped(stream, parallelism)
        return grouped.aggregate("folded", parallelism=parallelism, **aggregates).key_by("x")

    return made


def _top_of_last(most: int) -> Callable[[Any, int], Any]:
    def made(stream: Any, parallelism: int) -> Any:
        best = _grouped(stream, parallelism).top("best", by="v", rows=most, parallelism=parallelism)
        return best.select("less", "x", "v", "_change").key_by("x")

    return made


def _level_of_last(stream: Any, parallelism: int) -> Any:
    """The highest of rows of few levels: those of one level go by their other columns."""
    levelled = _grouped(stream, parallelism).with_columns("levelled", w=pl.col("v") // GROUPS % LEVELS)
    best = levelled.select("fewer", "x", "w", "v", "_change").key_by("x")
    best = best.top("best", by="w", rows=1, parallelism=parallelism)
    return best.select("less", "x", "v", "_change").key_by("x")


def _per_batch(stream: Any, parallelism: int) -> Any:
    counted = stream.key_by("k").aggregate(
        "counted", emit="per_batch", n=weir.count(), total=weir.sum("v"), parallelism=parallelism
    )
    return counted.select("less", "k", "n", "total").key_by("k")


_SUMS: dict[str, Any] = {
    "n": weir.count(),
    "odd": weir.count().where(pl.col("v") % 2 == 1),
    "total": weir.sum("v"),
    "mean": weir.mean("v"),
}
_EXTREMES: dict[str, Any] = {"n": weir.count(), "low": weir.min("v"), "high": weir.max("v")}
#: Name; how many columns it has; how it is made; what it tells; by which key of left rows it is joined.
_TABLES: tuple[tuple[str, int, Callable[[Any, int], Any], Told, str], ...] = (
    ("last rows", 1, _last, _last_rows, "k"),
    ("the highest rows", 2, _top(1), _highest(1, places=False), "k"),
    ("the two highest rows", 2, _top(2), _highest(2, places=False), "k"),
    ("places", 2, _top(3, "place"), _highest(3, places=True), "place"),
    ("sums", 4, _of_last(**_SUMS), _folded(_aggregates), "x"),
    ("extremes", 3, _of_last(**_EXTREMES), _folded(_extremes), "x"),
    ("the highest of last rows", 1, _top_of_last(1), _best_of_last(1), "x"),
    ("the two highest of last rows", 1, _top_of_last(2), _best_of_last(2), "x"),
    ("the highest of last rows of few levels", 1, _level_of_last, _best_of_last(1, levels=LEVELS), "x"),
    ("totals of batches", 2, _per_batch, _running, "k"),
)


# --- joins as of a time ---


def _key_of(row: Seen, by: str) -> Any:
    return {"k": row.k, "x": _group(row), "place": (row.k, row.v % 3 + 1)}[by]


def _join(how: str, table: Callable[[Any, int], Any], by: str) -> Build:
    def made(streams: list[Any], parallelism: int) -> Any:
        placed = streams[0].with_columns("placed", x=pl.col("v") % GROUPS, place=pl.col("v") % 3 + 1)
        kept = {"k": ("k",), "x": ("x",), "place": ("k", "place")}[by]
        left = placed.rename("named", {"v": "number"}).select("small", *kept, "number")
        return left.key_by(*kept).join_as_of(
            "out", table(streams[1], parallelism), how=how, parallelism=parallelism
        )

    return made


def in_turn(row: Seen) -> tuple[int, int]:
    """From when on a row counts, and its time: rows make versions in this order, wherever they come from."""
    return max(row.at, row.mark), row.at


def _as_of(how: str, told: Told, by: str, width: int) -> Callable[[Streams], list[Result]]:
    """Rows make versions in the order of their times, late ones as of the watermark of their split."""

    def model(streams: Streams) -> list[Result]:
        by_key: dict[Any, list[tuple[int, int, int, Change]]] = defaultdict(list)
        for number, change in enumerate(told(sorted(streams[1], key=in_turn))):
            row, (since, _) = change.row, in_turn(change.row)
            by_key[change.key].append((since, row.at, number, change))
        said: list[Result] = []
        for left in sorted((row for row in streams[0] if not row.late), key=lambda row: row.at):
            key = _key_of(left, by)
            found = [each for each in by_key.get(key, []) if each[0] <= left.at]
            latest = max(found, key=lambda each: each[1:3])[3] if found else None
            shown = key if isinstance(key, tuple) else (key,)
            if latest is not None and latest.adds:
                said.append((*shown, left.v, *latest.values, left.at))
            elif how == "left":
                said.append((*shown, left.v, *[None] * width, left.at))
        return said

    return model


# --- windows of what is there ---


def _windows(streams: list[Any], parallelism: int) -> Any:
    """By the time at which rows are, which may be taken away too late."""
    valued = streams[0].with_columns("valued", w=pl.col("v") // 2 * 7 % 50)
    top = valued.key_by("k").top("top", by="w", rows=1, parallelism=parallelism)
    timed = top.assign_event_time("timed", "at", watermark=weir.bounded_out_of_orderness(f"{BOUND_MS}ms"))
    return (
        timed.key_by("k")
        .window(weir.tumbling(SIZE_MS))
        .aggregate("out", n=weir.count(), total=weir.sum("v"), parallelism=parallelism)
    )


def _windowed(streams: Streams) -> list[Result]:
    """A change counts if its window has not left as of it: what is late stays as it was."""
    counts: dict[tuple[int, int, int], Counter[int]] = defaultdict(Counter)
    at = {row.v: row.at for row in streams[0]}
    mark = -(10**18)
    for change in _highest(1, places=True)(streams[0]):
        number = change.values[-1]
        mark = max(mark, at[number] - BOUND_MS)
        start, end = tumbling(at[number])[0]
        if end > mark:
            counts[change.row.k, start, end][number] += 1 if change.adds else -1
    said: list[Result] = []
    for (key, start, end), rows in counts.items():
        values = list(rows.elements())
        if values:
            said.append((key, start, end, len(values), sum(values), end - 1))
    return said


# --- processes ---


class Numbering(weir.KeyedProcess):
    """Numbers the changes of each key, which is in one column."""

    seen = weir.ValueState(int, default=0)

    def __init__(self, by: str) -> None:
        """``by``: its name."""
        self._by = by

    def process(self, key: Any, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        """Tell it with its number."""
        number = self.seen.value
        self.seen.value = number + 1
        adds = row["_change"] in ("insert", "update_after")
        yield {self._by: key[0], "number": number, "v": row["v"], "adds": adds}


def _numbered(table: Callable[[Any, int], Any], by: str) -> Build:
    columns = {by: int, "number": int, "v": int, "adds": bool}
    process = functools.partial(Numbering, by)
    return lambda streams, parallelism: table(streams[0], parallelism).process(
        "out", process, columns, parallelism=parallelism
    )


def _numbers(told: Told) -> Callable[[Streams], list[Result]]:
    def model(streams: Streams) -> list[Result]:
        seen: dict[Any, int] = defaultdict(int)
        said: list[Result] = []
        for change in told(streams[0]):
            number = seen[change.key]
            seen[change.key] += 1
            said.append((change.key, number, change.values[-1], change.adds, change.row.at))
        return said

    return model


_OWN: dict[str, Any] = {"own_keys": True, "own_times": True, "late_keys": True}
_BY_KEY = ("k", "place")
#: Rows of several keys come together: of those that are not in the order of time it is open which of several
#: subtasks comes first.
_OF_GROUPS: dict[str, Any] = {"several": None, "parallelism_max": 1}
STEPS = (
    *(
        Step(
            f"{how} join as of {name}",
            _join(how, table, by),
            _as_of(how, told, by, width),
            streams=2,
            one="rows",
            **({**_OWN, "several": "rows"} if by in _BY_KEY else _OF_GROUPS),
        )
        for name, width, table, told, by in _TABLES
        for how in ("left", "inner")
    ),
    Step("windows of what is there", _windows, _windowed, one="rows", **_OF_GROUPS),
    *(
        Step(
            f"process of {name}",
            _numbered(table, by),
            _numbers(told),
            **({**_OWN, "several": "order"} if by in _BY_KEY else _OF_GROUPS),
        )
        for name, _, table, told, by in _TABLES
        if name in ("last rows", "the highest rows", "the two highest rows", "the two highest of last rows")
    ),
)
SURE = STEPS
