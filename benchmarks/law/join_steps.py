"""Joins, and what they must say, a row at a time: a row that is late in its own split does not count, all others do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import weir
from benchmarks.law.cases import Seen
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step
from benchmarks.law.window_steps import SIZE_MS, tumbling

BEFORE_MS, AFTER_MS, APART_MS, SLIDE_MS = 3_000, 2_000, 2_500, 1_000
HOWS = ("inner", "left", "right", "full", "semi", "anti")
#: Of a side without a row.
NONE = (None, None, None)
Streams = list[list[Seen]]


@dataclass(frozen=True)
class Bounds:
    """Which rows of two streams belong together."""

    name: str
    settings: dict[str, Any]
    goes: Callable[[Seen, Seen], bool]
    #: The last time at which a partner of a row may come: of the left side, of the right one.
    until: tuple[Callable[[Seen], int], Callable[[Seen], int]]
    #: Columns of the right side get other names first.
    renamed: tuple[tuple[str, str], ...] = ()

    def right(self, stream: Any) -> Any:
        """The right side, by key."""
        return (stream.rename("renamed", dict(self.renamed)) if self.renamed else stream).key_by("k")


def _window_end(row: Seen) -> int:
    return tumbling(row.at)[0][1] - 1


def _at(row: Seen) -> int:
    return row.at


def _to(row: Seen) -> int:
    return max(row.at, row.to)


BOUNDS = (
    Bounds(
        "within",
        {"within": (-BEFORE_MS, AFTER_MS)},
        lambda left, right: -BEFORE_MS <= right.at - left.at <= AFTER_MS,
        (lambda row: row.at + AFTER_MS, lambda row: row.at + BEFORE_MS),
    ),
    Bounds(
        "later",
        {"within": (1_000, AFTER_MS)},
        lambda left, right: 1_000 <= right.at - left.at <= AFTER_MS,
        (lambda row: row.at + AFTER_MS, _at),
    ),
    Bounds(
        "between", {"between": ("at", "to")}, lambda left, right: left.at <= right.at <= left.to, (_to, _at)
    ),
    Bounds(
        "between of the right",
        {"between": ("from_ms", "to_ms")},
        lambda left, right: right.at <= left.at <= right.to,
        (_at, _to),
        (("at", "from_ms"), ("to", "to_ms")),
    ),
    Bounds(
        "window",
        {"window": weir.tumbling(SIZE_MS)},
        lambda left, right: left.at // SIZE_MS == right.at // SIZE_MS,
        (_window_end, _window_end),
    ),
    Bounds(
        "ttl",
        {"ttl": f"{APART_MS}ms"},
        lambda left, right: abs(left.at - right.at) <= APART_MS,
        (lambda row: row.at + APART_MS, lambda row: row.at + APART_MS),
    ),
)


def _in_time(streams: Streams) -> Streams:
    return [[row for row in rows if not row.late] for rows in streams]


def values_of(row: Seen) -> tuple[int, int, int]:
    """Its columns but the key."""
    return row.at, row.v, row.to


def joined(bounds: Bounds, how: str) -> Callable[[Streams], list[Result]]:
    """What a join within bounds says."""

    def model(streams: Streams) -> list[Result]:
        lefts, rights = _in_time(streams)
        said: list[Result] = []
        paired: tuple[set[int], set[int]] = (set(), set())
        for left, right in product(lefts, rights):
            if left.k == right.k and bounds.goes(left, right):
                paired[0].add(left.v)
                paired[1].add(right.v)
                if how not in ("semi", "anti"):
                    said.append((left.k, *values_of(left), *values_of(right), max(left.at, right.at)))
        alone = [row for row in lefts if row.v not in paired[0]]
        last = bounds.until[0]
        if how in ("left", "full"):
            said += [(row.k, *values_of(row), *NONE, last(row)) for row in alone]
        if how in ("right", "full"):
            last = bounds.until[1]
            said += [(row.k, *NONE, *values_of(row), last(row)) for row in rights if row.v not in paired[1]]
        if how == "anti":
            said += [(row.k, *values_of(row), last(row)) for row in alone]
        if how == "semi":
            # Which partner came first is open, and with it the event time.
            said += [(row.k, *values_of(row), row.at) for row in lefts if row.v in paired[0]]
        return said

    return model


def build(bounds: Bounds, how: str) -> Build:
    """The join."""

    def made(streams: list[Any], parallelism: int) -> Any:
        left = streams[0].key_by("k")
        right = bounds.right(streams[1])
        if how != "semi":
            return left.join("out", right, how=how, parallelism=parallelism, **bounds.settings)
        pairs = left.join("semi", right, how=how, parallelism=parallelism, **bounds.settings)
        return pairs.assign_event_time("out", "at")

    return made


def late_rows(side: int) -> Callable[[Streams], list[Result]]:
    """Those of a stream."""
    return lambda streams: [(row.k, *values_of(row), row.at) for row in streams[side] if row.late]


def build_late(join: Callable[[list[Any], int], Any], output: str) -> Build:
    """A side output of a join of the streams, which are by key."""

    def made(streams: list[Any], parallelism: int) -> Any:
        told = join([stream.key_by("k") for stream in streams], parallelism)
        told.sink("told", weir.Collect())
        return told.side_output(output).pass_through("out")

    return made


def _bounded() -> Iterator[Step]:
    for bounds, how in product(BOUNDS, HOWS):
        yield Step(
            f"{how} join {bounds.name}", build(bounds, how), joined(bounds, how), one="rows", streams=2
        )

    def sliding(streams: Streams) -> list[Result]:
        said = []
        for left, right in product(*_in_time(streams)):
            if left.k == right.k:
                earlier, later = sorted((left.at, right.at))
                first = later // SLIDE_MS * SLIDE_MS
                starts = range(first, later - SIZE_MS, -SLIDE_MS)
                said += [
                    (left.k, *values_of(left), *values_of(right), start, start + SIZE_MS, later)
                    for start in starts
                    if start <= earlier
                ]
        return said

    window = weir.sliding(SIZE_MS, SLIDE_MS)
    yield Step(
        "inner join sliding",
        lambda streams, parallelism: (
            streams[0].key_by("k").join("out", streams[1].key_by("k"), window=window, parallelism=parallelism)
        ),
        sliding,
        one="rows",
        streams=2,
    )
    within: dict[str, Any] = {"within": (-BEFORE_MS, AFTER_MS)}
    for side, output in enumerate(("late_left", "late_right")):
        for how in ("inner", "full"):

            def join(keyed: list[Any], parallelism: int, how: Any = how) -> Any:
                return keyed[0].join("joined", keyed[1], how=how, parallelism=parallelism, **within)

            late = build_late(join, output)
            yield Step(f"{output} of {how} join", late, late_rows(side), one="rows", streams=2)


# --- several streams ---


def _combined(
    goes: Callable[[list[int]], bool], *, is_left: bool = False
) -> Callable[[Streams], list[Result]]:
    def model(streams: Streams) -> list[Result]:
        first, *others = _in_time(streams)
        said: list[Result] = []
        for row in first:
            found: list[list[Seen | None]] = []
            for rows in others:
                own: list[Seen | None] = [r for r in rows if r.k == row.k and goes([row.at, r.at])]
                found.append(own or ([None] if is_left else []))
            for chosen in product(*found):
                times = [row.at, *(r.at for r in chosen if r is not None)]
                if goes(times):
                    values = [value for r in chosen for value in (NONE if r is None else values_of(r))]
                    time_ms = _window_end(row) if None in chosen else max(times)
                    said.append((row.k, *values_of(row), *values, time_ms))
        return said

    return model


def _join_all(**settings: Any) -> Build:
    return lambda streams, parallelism: (
        streams[0]
        .key_by("k")
        .join_all("out", *(s.key_by("k") for s in streams[1:]), parallelism=parallelism, **settings)
    )


def _several() -> Iterator[Step]:
    def near(times: list[int]) -> bool:
        return max(times) - min(times) <= AFTER_MS

    def same_window(times: list[int]) -> bool:
        return max(times) // SIZE_MS == min(times) // SIZE_MS

    window = weir.tumbling(SIZE_MS)
    more: dict[str, Any] = {"one": "rows", "streams": 3}
    yield Step("join of three within", _join_all(within=f"{AFTER_MS}ms"), _combined(near), **more)
    yield Step("join of three window", _join_all(window=window), _combined(same_window), **more)
    told = _combined(same_window, is_left=True)
    yield Step("left join of three window", _join_all(window=window, how="left"), told, **more)
    late = build_late(
        lambda keyed, parallelism: keyed[0].join_all("all", *keyed[1:], window=window, how="left"), "late_3"
    )
    yield Step("late_3 of join of three", late, late_rows(2), **more)


async def _find(key: int) -> dict[str, Any] | None:
    return {"name": str(key)} if key % 2 else None


def _lookup(streams: Streams) -> list[Result]:
    return [(row.k, *values_of(row), str(row.k) if row.k % 2 else None, row.at) for row in streams[0]]


#: Joins of two streams within bounds.
BOUNDED = tuple(_bounded())
STEPS = (
    *BOUNDED,
    *_several(),
    Step(
        "lookup",
        lambda streams, parallelism: streams[0].lookup("out", _find, "k", {"name": str}),
        _lookup,
        one="rows",
    ),
)
#: Those of which the suite is sure.
SURE = STEPS
