"""Joins with tables that change, and joins between other steps; what they must say, a row at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import polars as pl
import pyarrow as pa

import weir
from benchmarks.law.cases import Seen
from benchmarks.law.join_steps import (
    BOUNDED,
    BOUNDS,
    HOWS,
    NONE,
    Bounds,
    Streams,
    build_late,
    joined,
    late_rows,
    values_of,
)
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step
from benchmarks.law.window_steps import SIZE_MS, Windows, tumbling


def _is_gone(row: Seen) -> bool:
    return row.v % 4 in (2, 3)


def versions(how: str, is_gone: Callable[[Seen], bool]) -> Callable[[Streams], list[Result]]:
    """What a join as of a time says: a version that is late counts from the watermark of its split on."""

    def model(streams: Streams) -> list[Result]:
        lefts, rights = streams
        said: list[Result] = []
        for left in sorted((row for row in lefts if not row.late), key=lambda row: row.at):
            found = [
                (right.at, number, right)
                for number, right in enumerate(rights)
                if right.k == left.k and max(right.at, right.mark if right.late else right.at) <= left.at
            ]
            latest = max(found)[2] if found else None
            if latest is not None and not is_gone(latest):
                said.append((left.k, *values_of(left), *values_of(latest), left.at))
            elif how == "left":
                said.append((left.k, *values_of(left), *NONE, left.at))
        return said

    return model


def as_changes(stream: Any, name: str, number: Any = None) -> Any:
    """The rows as changes of each kind in turn, by this number."""
    kinds = ["insert", "update_after", "update_before", "delete"]
    chosen = pl.lit(kinds[0])
    number = pl.col("v") % 4 if number is None else number
    for place, kind in enumerate(kinds[1:], 1):
        chosen = pl.when(number == place).then(pl.lit(kind)).otherwise(chosen)
    return stream.with_columns(name, _change=chosen)


def _as_of() -> Iterator[Step]:
    def join(how: str, *, changes: bool) -> Build:
        def made(streams: list[Any], parallelism: int) -> Any:
            table = as_changes(streams[1], "changes") if changes else streams[1]
            return (
                streams[0].key_by("k").join_as_of("out", table.key_by("k"), how=how, parallelism=parallelism)
            )

        return made

    for how in ("left", "inner"):
        told = versions(how, lambda row: False)
        yield Step(f"{how} join as of rows", join(how, changes=False), told, streams=2, own_times=True)
        yield Step(
            f"{how} join as of changes",
            join(how, changes=True),
            versions(how, _is_gone),
            streams=2,
            own_times=True,
        )
    late = build_late(
        lambda keyed, parallelism: keyed[0].join_as_of("joined", keyed[1], parallelism=parallelism),
        "late_left",
    )
    yield Step("late_left of join as of", late, late_rows(0), one="rows", streams=2)


# --- tables ---


def table(rows: list[Seen], *, is_changed: bool, hasvalues_of: bool = True) -> list[tuple[int, int]]:
    """What is in a table in the end; a row that is taken away before it comes is not there."""
    counts = Counter[tuple[int, int]]()
    for row in rows:
        value = row.v % 3 if hasvalues_of else 0
        counts[row.k, value] += -1 if is_changed and row.v // 3 % 4 in (2, 3) else 1
    return list(counts.elements())


def tables(how: str, *, is_changed: bool) -> Callable[[Streams], list[Result]]:
    """What a join of tables comes to."""

    def model(streams: Streams) -> list[Result]:
        first = table(streams[0], is_changed=is_changed)
        # Of rows that only say which keys have a partner the step reads no other columns.
        hasvalues_of = how not in ("semi", "anti")
        others = [table(rows, is_changed=is_changed, hasvalues_of=hasvalues_of) for rows in streams[1:]]
        said: list[tuple[Any, ...]] = []
        for key in {row[0] for rows in (first, *others) for row in rows}:
            own = [[x for k, x in rows if k == key] for rows in (first, *others)]
            if how in ("semi", "anti"):
                said += [(key, x) for x in own[0] if bool(own[1]) is (how == "semi")]
                continue
            sides: list[list[Any]] = [list(rows) for rows in own]
            if how in ("left", "full") and own[0]:
                sides[1:] = [rows or [None] for rows in sides[1:]]
            if how in ("right", "full") and own[1]:
                sides[0] = sides[0] or [None]
            said += [(key, *values) for values in product(*sides)]
        return [(*row, "insert", 0) for row in said]

    return model


def _tables() -> Iterator[Step]:
    def table_of(stream: Any, number: int, *, is_changed: bool) -> Any:
        small = stream.with_columns(f"small{number}", x=pl.col("v") % 3)
        rows = as_changes(small, f"changes{number}", pl.col("v") // 3 % 4) if is_changed else small
        return rows.select(f"table{number}", "k", "x", *(["_change"] if is_changed else [])).key_by("k")

    def join(how: str, *, is_changed: bool) -> Build:
        def made(streams: list[Any], parallelism: int) -> Any:
            first, *others = (
                table_of(stream, number, is_changed=is_changed) for number, stream in enumerate(streams)
            )
            if len(others) > 1:
                return first.join_all("out", *others, how=how, parallelism=parallelism)
            return first.join("out", others[0], how=how, parallelism=parallelism)

        return made

    more: dict[str, Any] = {"one": "folded", "several": "folded"}
    for how in HOWS:
        for is_changed in (False, True):
            if is_changed or how not in ("inner", "semi"):
                name = f"{how} join of {'changed ' if is_changed else ''}tables"
                step = join(how, is_changed=is_changed), tables(how, is_changed=is_changed)
                yield Step(name, *step, streams=2, **more)
    for how in ("inner", "left"):
        step = join(how, is_changed=True), tables(how, is_changed=True)
        yield Step(f"{how} join of three tables", *step, streams=3, **more)


# --- steps after joins, and before them ---


def _counted(told: Callable[[Streams], list[Result]]) -> Callable[[Streams], list[Result]]:
    def model(streams: Streams) -> list[Result]:
        counts: dict[Any, int] = defaultdict(int)
        for result in told(streams):
            counts[(result[0], *tumbling(result[-1])[0])] += 1
        return [(*window, n, window[2] - 1) for window, n in counts.items()]

    return model


class Bell(weir.KeyedProcess):
    """Has a timer, so that all batches of the job say what the watermark is."""

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Register it."""
        context.timers.register(context.event_time_ms + 1)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:
        """Tell that it fired."""
        yield {"k": key[0]}


def _with_timers(step: Step) -> Step:
    """The same in a job where all rows say what the watermark is."""

    def made(streams: list[Any], parallelism: int) -> Any:
        rung = streams[0].key_by("k").process("bell", Bell, {"k": int}, parallelism=parallelism)
        rung.sink("rung", weir.Collect())
        return step.build(streams, parallelism)

    return replace(step, name=f"{step.name}, with timers", build=made)


def _some(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [] if row["v"] % 3 == 0 else [row]


def _some_of(batch: pa.RecordBatch) -> pl.DataFrame:
    frame = pl.DataFrame(pl.from_arrow(batch))
    return frame.filter(pl.col("v") % 3 != 0)


async def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


async def _odd(key: int) -> dict[str, Any] | None:
    return {"odd": key} if key % 2 else None


def _of_functions(within: Bounds) -> Iterator[Step]:
    """Which rows are late is known after functions, too."""

    def model(keep: Callable[[Seen], bool], keep_right: Callable[[Seen], bool]) -> Any:
        full = joined(within, "full")
        return lambda streams: full(
            [
                [row for row in rows if kept(row)]
                for rows, kept in zip(streams, (keep, keep_right), strict=True)
            ]
        )

    def join(left: Any, right: Any, parallelism: int) -> Any:
        return left.key_by("k").join(
            "out", right.key_by("k"), how="full", parallelism=parallelism, **within.settings
        )

    yield Step(
        "full join of rows of functions",
        lambda streams, parallelism: join(
            streams[0].flat_map("some", _some), streams[1].map_batches("some_of", _some_of), parallelism
        ),
        model(lambda row: row.v % 3 > 0, lambda row: row.v % 3 > 0),
        one="rows",
        streams=2,
    )
    yield Step(
        "full join of rows of requests",
        lambda streams, parallelism: join(
            streams[0].map_async("same", _same),
            streams[1].lookup("odd", _odd, "k", {"odd": int}, how="inner").drop("less", "odd"),
            parallelism,
        ),
        model(lambda row: True, lambda row: row.k % 2 > 0),
        one="rows",
        streams=2,
    )


def _then(step: Step, then: str, join: Callable[[list[Any], int], Any]) -> Step:
    def counted(streams: list[Any], parallelism: int) -> Any:
        windows = join(streams, parallelism).key_by("k").window(weir.tumbling(SIZE_MS))
        return windows.aggregate("out", n=weir.count(), parallelism=parallelism)

    return replace(step, name=f"{step.name}, {then}", build=counted, model=_counted(step.model), one="rows")


def _chains() -> Iterator[Step]:
    by_name = {step.name: step for step in (*BOUNDED, *AS_OF)}
    within = BOUNDS[0]
    for how in ("inner", "full"):

        def join(streams: list[Any], parallelism: int, how: Any = how) -> Any:
            left, right = (stream.key_by("k") for stream in streams)
            return left.join("joined", right, how=how, parallelism=parallelism, **within.settings)

        yield _then(by_name[f"{how} join within"], "then windows", join)
    yield _then(
        by_name["left join as of rows"],
        "then windows",
        lambda streams, parallelism: (
            streams[0].key_by("k").join_as_of("joined", streams[1].key_by("k"), parallelism=parallelism)
        ),
    )

    yield from _of_functions(within)

    def of_windows(streams: Streams) -> list[Result]:
        counts = [
            {result[:3]: (result[3], result[4]) for result in Windows(tumbling).run(rows)} for rows in streams
        ]
        return [
            (*window, *counts[0][window], *window[1:], *counts[1][window], window[2] - 1)
            for window in counts[0].keys() & counts[1].keys()
        ]

    def join_windows(streams: list[Any], parallelism: int) -> Any:
        left, right = (
            stream.key_by("k")
            .window(weir.tumbling(SIZE_MS))
            .aggregate(f"counted{number}", n=weir.count(), total=weir.sum("v"), parallelism=parallelism)
            .key_by("k")
            for number, stream in enumerate(streams)
        )
        return left.join("out", right, window=weir.tumbling(SIZE_MS), parallelism=parallelism)

    yield Step("join of windows", join_windows, of_windows, one="rows", streams=2)
    for name in ("full join within", "anti join window", "left join as of changes"):
        yield _with_timers(by_name[name])


AS_OF = tuple(_as_of())
STEPS = (*AS_OF, *_tables(), *_chains())
#: Those of which the suite is sure.
SURE = STEPS
