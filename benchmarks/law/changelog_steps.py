"""Steps over changelogs: aggregates, lists of the highest, windows and joins of what is updated and taken away."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

import weir
from benchmarks.law.cases import Seen
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step
from benchmarks.law.table_join_steps import as_changes
from benchmarks.law.window_steps import SIZE_MS, Assign, cumulative, sliding, tumbling

GROUPS, HIGHEST = 3, 2
#: Rows of a table: its key, its value, and the time at which it is.
Table = list[tuple[int, int, int]]
Model = Callable[[list[list[Seen]]], list[Result]]


# --- a table of the last rows of each key, by another key ---


def _last(stream: Any, name: str = "", *, parallelism: int) -> Any:
    last = stream.key_by("k").deduplicate(f"last{name}", keep="last", parallelism=parallelism)
    return last.with_columns(f"grouped{name}", x=pl.col("v") % GROUPS)


def _last_rows(rows: list[Seen]) -> Table:
    last: dict[int, Seen] = {}
    for row in rows:
        if row.k not in last or row.at >= last[row.k].at:
            last[row.k] = row
    return [(row.v % GROUPS, row.v, row.at) for row in last.values()]


# --- a table whose rows come, change and go ---


def _changed(stream: Any, name: str = "", **_: Any) -> Any:
    """Of four rows after each other: one comes, changes, and goes away again if it is of an even number."""
    number = pl.col("v") // 4
    kinds = ("insert", "update_before", "update_after", "delete")
    chosen = pl.lit("insert")
    for place, kind in enumerate(kinds):
        chosen = pl.when(pl.col("v") % 4 == place).then(pl.lit(kind)).otherwise(chosen)
    kept = stream.filter(f"kept{name}", (pl.col("v") % 4 < 3) | (number % 2 == 0))
    return kept.with_columns(
        f"changed{name}",
        x=number % GROUPS,
        v=number + pl.when(pl.col("v") % 4 < 2).then(0).otherwise(1_000),
        _change=chosen,
    )


def _changed_rows(rows: list[Seen]) -> Table:
    table: dict[int, tuple[int, int, int]] = {}
    for row in rows:
        number, part = divmod(row.v, 4)
        if part in (0, 2):
            table[number] = (number % GROUPS, number + (0 if part == 0 else 1_000), row.at)
        elif part == 1 or number % 2 == 0:
            table.pop(number, None)
    return list(table.values())


# --- steps over them ---


def _grouped(table: Table) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for group, value, _ in table:
        found[group].append(value)
    return found


def _folded(rows: Iterable[tuple[Any, ...]]) -> list[Result]:
    return [(*row, "insert", 0) for row in rows]


_AGGREGATES: dict[str, Any] = {
    "n": weir.count(),
    "odd": weir.count().where(pl.col("v") % 2 == 1),
    "total": weir.sum("v"),
    "low": weir.min("v"),
    "high": weir.max("v"),
    "mean": weir.mean("v"),
}


def _values(values: list[int]) -> tuple[Any, ...]:
    odd = sum(value % 2 for value in values)
    return len(values), odd, sum(values), min(values), max(values), sum(values) / len(values)


def _aggregate(table: Any, parallelism: int) -> Any:
    return table.key_by("x").aggregate("out", parallelism=parallelism, **_AGGREGATES)


def _aggregated(table: Table) -> list[Result]:
    return _folded((group, *_values(values)) for group, values in _grouped(table).items())


def _twice(table: Any, parallelism: int) -> Any:
    """Groups by how many rows they have: an update of a group takes a row from one and adds one to another."""
    counted = table.key_by("x").aggregate("counted", n=weir.count(), parallelism=parallelism)
    return counted.key_by("n").aggregate(
        "out", groups=weir.count(), first=weir.min("x"), parallelism=parallelism
    )


def _aggregated_twice(table: Table) -> list[Result]:
    by_count: dict[int, list[int]] = defaultdict(list)
    for group, values in _grouped(table).items():
        by_count[len(values)].append(group)
    return _folded((n, len(groups), min(groups)) for n, groups in by_count.items())


def _top(table: Any, parallelism: int) -> Any:
    best = table.select("less", "x", "v", "_change").key_by("x")
    return best.top("out", by="v", rows=HIGHEST, parallelism=parallelism)


def _highest(table: Table) -> list[Result]:
    return _folded(
        (group, value)
        for group, values in _grouped(table).items()
        for value in sorted(values, reverse=True)[:HIGHEST]
    )


def _placed(table: Any, parallelism: int) -> Any:
    best = table.select("less", "x", "v", "_change").key_by("x")
    return best.top("out", by="v", rows=HIGHEST, rank="place", parallelism=parallelism)


def _places(table: Table) -> list[Result]:
    return _folded(
        (group, value, place)
        for group, values in _grouped(table).items()
        for place, value in enumerate(sorted(values, reverse=True)[:HIGHEST], 1)
    )


def _first(table: Any, parallelism: int) -> Any:
    rows = table.select("less", "x", "v", "_change").key_by("x")
    return rows.deduplicate("out", keep="first", by="v", parallelism=parallelism)


def _firsts(table: Table) -> list[Result]:
    return _folded((group, min(values)) for group, values in _grouped(table).items())


# --- rows that are equal in the order: their other columns decide, whichever came first ---


def _level(value: int) -> int:
    """The same of every second row of a group."""
    return value // GROUPS % 2


def _levels(table: Any) -> Any:
    levelled = table.with_columns("levelled", w=pl.col("v") // GROUPS % 2)
    return levelled.select("less", "x", "w", "v", "_change").key_by("x")


def _top_of_levels(rank: str | None) -> Callable[[Any, int], Any]:
    return lambda table, parallelism: _levels(table).top(
        "out", by="w", rows=HIGHEST, rank=rank, parallelism=parallelism
    )


def _highest_of_levels(*, places: bool) -> Callable[[Table], list[Result]]:
    def told(table: Table) -> list[Result]:
        return _folded(
            (group, _level(value), value, *((place,) if places else ()))
            for group, values in _grouped(table).items()
            for place, value in enumerate(sorted(values, key=lambda v: (-_level(v), v))[:HIGHEST], 1)
        )

    return told


def _one_of_levels(keep: str) -> Callable[[Any, int], Any]:
    return lambda table, parallelism: _levels(table).deduplicate(
        "out", keep=keep, by="w", parallelism=parallelism
    )


def _one_level(choose: Callable[..., int]) -> Callable[[Table], list[Result]]:
    def told(table: Table) -> list[Result]:
        found = {
            group: choose(values, key=lambda v: (_level(v), v)) for group, values in _grouped(table).items()
        }
        return _folded((group, _level(value), value) for group, value in found.items())

    return told


def _windows(table: Any, parallelism: int) -> Any:
    """By the time at which rows are, however long they may be taken away."""
    timed = table.assign_event_time("timed", "at", watermark=weir.bounded_out_of_orderness("10000d"))
    return (
        timed.key_by("x")
        .window(weir.tumbling(SIZE_MS))
        .aggregate("out", parallelism=parallelism, **_AGGREGATES)
    )


def _windowed(table: Table) -> list[Result]:
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for group, value, at in table:
        found[group, *tumbling(at)[0]].append(value)
    return [(*window, *_values(values), window[2] - 1) for window, values in found.items()]


_OVER: tuple[tuple[str, Callable[[Any, int], Any], Callable[[Table], list[Result]]], ...] = (
    ("aggregates", _aggregate, _aggregated),
    ("aggregates of aggregates", _twice, _aggregated_twice),
    ("top", _top, _highest),
    ("top with places", _placed, _places),
    ("first by a column", _first, _firsts),
    ("top of equal rows", _top_of_levels(None), _highest_of_levels(places=False)),
    ("places of equal rows", _top_of_levels("place"), _highest_of_levels(places=True)),
    ("first of equal rows", _one_of_levels("first"), _one_level(min)),
    ("last of equal rows", _one_of_levels("last"), _one_level(max)),
)
_MADE: tuple[tuple[str, Callable[..., Any], Callable[[list[Seen]], Table], dict[str, Any]], ...] = (
    ("last rows", _last, _last_rows, {"several": "folded", "own_keys": True, "late_keys": True}),
    ("rows that come and go", _changed, _changed_rows, {"several": None}),
)


def _built(make: Callable[..., Any], step: Callable[[Any, int], Any]) -> Build:
    return lambda streams, parallelism: step(make(streams[0], parallelism=parallelism), parallelism)


def _says(rows: Callable[[list[Seen]], Table], told: Callable[[Table], list[Result]]) -> Model:
    return lambda streams: told(rows(streams[0]))


# --- joins of two of them ---


def _join(how: str, make: Callable[..., Any]) -> Build:
    def made(streams: list[Any], parallelism: int) -> Any:
        left, right = (
            make(stream, str(number), parallelism=parallelism)
            .select(f"less{number}", "x", "v", "_change")
            .key_by("x")
            for number, stream in enumerate(streams)
        )
        return left.join("out", right, how=how, parallelism=parallelism)

    return made


def _joined(how: str, rows: Callable[[list[Seen]], Table]) -> Model:
    def model(streams: list[list[Seen]]) -> list[Result]:
        left, right = (_grouped(rows(stream)) for stream in streams)
        said: list[tuple[Any, ...]] = []
        for group in left.keys() | right.keys():
            lefts: list[Any] = list(left.get(group, []))
            rights: list[Any] = list(right.get(group, []))
            if how in ("semi", "anti"):
                said += [(group, value) for value in lefts if bool(rights) is (how == "semi")]
                continue
            if how == "full":
                lefts, rights = lefts or [None], rights or [None]
            said += [(group, a, b) for a in lefts for b in rights]
        return _folded(said)

    return model


# --- windows over changes as they come from a source, also those that are alone ---

_KINDS = {"tumbling": (weir.tumbling(SIZE_MS), tumbling), "sliding": (weir.sliding(SIZE_MS, 1_000), sliding)}
_KINDS["cumulative"] = (weir.cumulative(SIZE_MS, 1_000), cumulative)


def _of_changes(window: Any) -> Build:
    def made(streams: list[Any], parallelism: int) -> Any:
        small = streams[0].with_columns("small", x=pl.col("v") % GROUPS)
        changes = as_changes(small, "changes", pl.col("v") // GROUPS % 4)
        return (
            changes.key_by("k")
            .window(window)
            .aggregate(
                "out", n=weir.count(), total=weir.sum("x"), high=weir.max("x"), parallelism=parallelism
            )
        )

    return made


def _there(assign: Assign) -> Model:
    """Of each window the rows that were added more often than they were taken away, without late changes."""

    def model(streams: list[list[Seen]]) -> list[Result]:
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for row in streams[0]:
            sign = -1 if row.v // GROUPS % 4 in (2, 3) else 1
            for start, end in assign(row.at):
                if end > row.mark:
                    counts[row.k, start, end][row.v % GROUPS] += sign
        said: list[Result] = []
        for window, rows in counts.items():
            values = list(rows.elements())
            if values:
                said.append((*window, len(values), sum(values), max(values), window[2] - 1))
        return said

    return model


STEPS = (
    *(
        Step(f"{what} over {made}", _built(make, step), _says(rows, told), one="folded", **more)
        for made, make, rows, more in _MADE
        for what, step, told in _OVER
    ),
    Step(
        "windows over last rows",
        _built(_last, _windows),
        _says(_last_rows, _windowed),
        one="rows",
        **{**_MADE[0][3], "several": "rows"},
    ),
    *(
        Step(f"{how} join of {made}", _join(how, make), _joined(how, rows), "folded", streams=2, **more)
        for how, (made, make, rows, more) in (
            ("inner", _MADE[0]),
            ("full", _MADE[0]),
            ("anti", _MADE[0]),
            ("full", _MADE[1]),
            ("semi", _MADE[1]),
        )
    ),
    *(
        Step(f"{kind} windows over changes", _of_changes(window), _there(assign), one="rows")
        for kind, (window, assign) in _KINDS.items()
    ),
)
SURE = STEPS
