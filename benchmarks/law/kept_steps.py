"""Windows of values, of code of an author, and the largest of each, and what they must say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl

import weir
from benchmarks.law import session_steps, window_steps
from benchmarks.law.cases import Seen
from benchmarks.law.steps import Compare, Model, Result, Step
from benchmarks.law.window_steps import LATENESS_MS, SIZE_MS, SLIDE_MS


class Summing(weir.Aggregator):
    """Numbers and sums of rows."""

    accumulator = list[int]

    def create(self) -> list[int]:
        """See :class:`weir.Aggregator`."""
        return [0, 0]

    def add(self, accumulator: Any, rows: pl.DataFrame) -> list[int]:
        """See :class:`weir.Aggregator`."""
        return [accumulator[0] + rows.height, accumulator[1] + rows["v"].sum()]

    def merge(self, left: Any, right: Any) -> list[int]:
        """See :class:`weir.Aggregator`."""
        return [left[0] + right[0], left[1] + right[1]]

    def result(self, accumulator: Any) -> dict[str, Any]:
        """See :class:`weir.Aggregator`."""
        return {"n": accumulator[0], "total": accumulator[1]}


def _distinct(rows: list[Seen]) -> tuple[int]:
    return (len({row.to for row in rows}),)


def _build_distinct(window: Any, **settings: Any) -> Any:
    return lambda streams, parallelism: (
        streams[0]
        .key_by("k")
        .window(window, **settings)
        .aggregate("out", n=weir.count_distinct("to"), parallelism=parallelism)
    )


def _build_own(window: Any, **settings: Any) -> Any:
    return lambda streams, parallelism: (
        streams[0]
        .key_by("k")
        .window(window, **settings)
        .aggregate_with("out", Summing, {"n": int, "total": int}, parallelism=parallelism)
    )


def _build_top(window: Any) -> Any:
    return lambda streams, parallelism: (
        streams[0]
        .key_by("k")
        .window(window)
        .aggregate("counted", n=weir.count(), total=weir.sum("v"), parallelism=parallelism)
        .window_top("out", by="total", rows=1)
    )


def _top(results: list[Result]) -> list[Result]:
    by_window: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        by_window[result[1:3]].append(result)
    return [max(found, key=lambda r: (r[4], -r[0])) for found in by_window.values()]


def _top_of(model: Model) -> Model:
    return lambda streams: _top(model(streams))


def _steps() -> Iterator[Step]:
    late: dict[str, Any] = {"allowed_lateness": LATENESS_MS}
    kinds: tuple[tuple[str, Any, Any, Compare], ...] = (
        (
            "sliding",
            weir.sliding(SIZE_MS, SLIDE_MS),
            lambda **settings: window_steps.model(assign=window_steps.sliding, **settings),
            "last",
        ),
        (
            "cumulative",
            weir.cumulative(SIZE_MS, SLIDE_MS),
            lambda **settings: window_steps.model(assign=window_steps.cumulative, **settings),
            "last",
        ),
        ("sessions", weir.session(session_steps.GAP_MS), session_steps.model, "sessions"),
    )
    for name, window, model, several in kinds:
        yield Step(f"different values of {name}", _build_distinct(window), model(value=_distinct))
        lately = model(value=_distinct, lateness_ms=LATENESS_MS)
        built = _build_distinct(window, **late)
        yield Step(f"different values of {name}, late rows", built, lately, several=several)
        yield Step(f"own aggregates of {name}", _build_own(window), model())
        lately = model(lateness_ms=LATENESS_MS)
        yield Step(
            f"own aggregates of {name}, late rows", _build_own(window, **late), lately, several=several
        )
        yield Step(f"top of {name}", _build_top(window), _top_of(model()), one="rows")


STEPS = tuple(_steps())
