"""Windows of fixed length, and what they must say, a row at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

import weir
from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.running import Build
from benchmarks.law.steps import Result, Step
from weir.specs.window_parts import WindowRowsPartSpec
from weir.sql.ranking import Ordering

SIZE_MS, SLIDE_MS, LATENESS_MS, EARLY_MS = 5_000, 1_000, 3_000, 2_000
#: The windows of an event time, as their bounds, ascending.
Assign = Callable[[int], list[tuple[int, int]]]


def tumbling(at: int, size_ms: int = SIZE_MS) -> list[tuple[int, int]]:
    """The one window."""
    return [(at // size_ms * size_ms, at // size_ms * size_ms + size_ms)]


def sliding(at: int) -> list[tuple[int, int]]:
    """Those that are ``SLIDE_MS`` apart."""
    first = at // SLIDE_MS * SLIDE_MS
    return [(start, start + SIZE_MS) for start in range(first - SIZE_MS + SLIDE_MS, first + 1, SLIDE_MS)]


def cumulative(at: int) -> list[tuple[int, int]]:
    """Those of one start that end after it."""
    start = at // SIZE_MS * SIZE_MS
    return [(start, end) for end in range(start + SLIDE_MS, start + SIZE_MS + 1, SLIDE_MS) if end > at]


@dataclass
class Windows:
    """Windows with one result or several, each row by itself."""

    assign: Assign
    lateness_ms: int = 0
    results: str = "accumulating"
    #: They tell what they have at multiples of this.
    early_ms: int | None = None
    #: They tell what they have after so many more rows of theirs.
    early_rows: int | None = None
    #: They tell what they have after such a row.
    early_where: Callable[[Seen], bool] | None = None
    #: What is told of rows.
    value: Callable[[list[Seen]], tuple[Any, ...]] = lambda rows: (len(rows), sum(row.v for row in rows))
    #: The key of a row.
    key: Callable[[Seen], tuple[Any, ...]] = lambda row: (row.k,)
    late: list[Seen] = field(default_factory=list)

    def run(self, rows: list[Seen]) -> list[Result]:
        """All that they say."""
        #: By key and window its rows, and how many of them were told.
        self._rows: dict[Any, list[Seen]] = defaultdict(list)
        self._told: dict[Any, int] = {}
        self._mark = -END_MS
        said = [result for row in rows for result in self._take(row)]
        return said + list(self._advance(END_MS))

    def _take(self, row: Seen) -> Iterator[Result]:
        yield from self._advance(row.all_ms)
        windows = [(self.key(row), *window) for window in self.assign(row.at)]
        if windows[-1][2] + self.lateness_ms <= row.mark:
            self.late.append(row)
            return
        for window in windows:
            if window[2] + self.lateness_ms <= row.mark:
                continue
            self._rows[window].append(row)
            more = len(self._rows[window]) - self._told.get(window, 0)
            is_due = self.early_rows is not None and more >= self.early_rows
            is_due = is_due or (self.early_where is not None and self.early_where(row))
            if window[2] <= self._mark or is_due:
                yield from self._tell(window)

    def _advance(self, mark: int) -> Iterator[Result]:
        """What a watermark passes first comes first; no row comes in between, so that one multiple tells all."""
        early_ms, before = self.early_ms, self._mark
        if early_ms is not None and mark < END_MS and before // early_ms < mark // early_ms:
            yield from self._complete(
                (mark if before == -END_MS else before + early_ms) // early_ms * early_ms
            )
            for window in sorted(self._rows, key=lambda window: (window[2], window[1])):
                if window[2] > self._mark and len(self._rows[window]) > self._told.get(window, 0):
                    yield from self._tell(window)
        yield from self._complete(mark)

    def _complete(self, mark: int) -> Iterator[Result]:
        before, self._mark = self._mark, max(self._mark, mark)
        for window in sorted(self._rows, key=lambda window: (window[2], window[1])):
            if before < window[2] <= self._mark:
                yield from self._tell(window, is_last=True)

    def _tell(self, window: Any, *, is_last: bool = False) -> Iterator[Result]:
        rows, told = self._rows[window], self._told.get(window, 0)
        self._told[window] = len(rows)
        start, end = window[1:]
        bounds = (*window[0], start, end)
        if self.results == "changelog":
            if len(rows) == told:
                return
            if told:
                yield (*bounds, *self.value(rows[:told]), "update_before", end - 1)
            yield (*bounds, *self.value(rows), "update_after" if told else "insert", end - 1)
        elif self.results == "discarding":
            if len(rows) > told:
                yield (*bounds, *self.value(rows[told:]), end - 1)
        else:
            yield (*bounds, *self.value(rows), end - 1)


def model(**settings: Any) -> Callable[[list[list[Seen]]], list[Result]]:
    """Of :class:`Windows`."""
    return lambda streams: Windows(**settings).run(streams[0])


def _late(**settings: Any) -> Callable[[list[list[Seen]]], list[Result]]:
    def late_rows(streams: list[list[Seen]]) -> list[Result]:
        windows = Windows(**settings)
        windows.run(streams[0])
        return [(row.k, row.at, row.v, row.to, row.at) for row in windows.late]

    return late_rows


def build(window: Any, *, pre_aggregate: bool | None = None, **settings: Any) -> Build:
    """A window step with numbers and sums of rows."""
    return lambda streams, parallelism: (
        streams[0]
        .key_by("k")
        .window(window, **settings)
        .aggregate(
            "out", n=weir.count(), total=weir.sum("v"), parallelism=parallelism, pre_aggregate=pre_aggregate
        )
    )


def build_late(window: Any, **settings: Any) -> Build:
    """The late rows of such a step."""

    def made(streams: list[Any], parallelism: int) -> Any:
        windows = streams[0].key_by("k").window(window, **settings)
        counted = windows.aggregate("counted", n=weir.count(), parallelism=parallelism)
        counted.sink("counts", weir.Collect())
        return counted.side_output("late").pass_through("out")

    return made


def build_all(window: Any, **settings: Any) -> Build:
    """As :func:`build`, over all keys."""
    return lambda streams, parallelism: (
        streams[0].window_all(window, **settings).aggregate("out", n=weir.count(), total=weir.sum("v"))
    )


def build_process(window: Any, **settings: Any) -> Build:
    """A window step of which code of an author tells the rows."""

    def listed(key: Any, window: Any, rows: Any) -> pl.DataFrame:
        return pl.DataFrame({"v": [" ".join(map(str, rows["v"]))]})

    return lambda streams, parallelism: (
        streams[0]
        .key_by("k")
        .window(window, **settings)
        .process("out", listed, {"v": str}, parallelism=parallelism)
    )


def listed(rows: list[Seen]) -> tuple[str]:
    """Rows in the order of their times, of equal ones in that in which they came."""
    return (" ".join(str(row.v) for row in sorted(rows, key=lambda row: row.at)),)


def _top(streams: list[list[Seen]]) -> list[Result]:
    by_window: dict[Any, list[Result]] = defaultdict(list)
    for result in Windows(tumbling).run(streams[0]):
        by_window[result[1:3]].append(result)
    return [max(results, key=lambda r: (r[4], -r[0])) for results in by_window.values()]


def build_first(window: Any, order: Ordering) -> Build:
    """The first rows of each window, of which others are left out before the exchange: ROW_NUMBER and RANK of SQL."""

    def made(streams: list[Any], parallelism: int) -> Any:
        rows = streams[0].with_columns("valued", w=pl.col("v") * 37 % 11)
        part = WindowRowsPartSpec(("k",), window, order.first_rows.order, order.bound)
        chosen = rows.added_step("out.part", part).key_by("k").window(window)
        columns = dict.fromkeys(("at", "v", "to", "w", order.name), int)
        return chosen.process("out", order, columns, parallelism=parallelism)

    return made


def model_first(assign: Assign, order: Ordering) -> Callable[[list[list[Seen]]], list[Result]]:
    """Rows by ``w``, equal ones by their times and as they came."""

    def first(rows: list[Seen]) -> tuple[Any, ...]:
        found = list[Result]()
        for number, row in enumerate(sorted(rows, key=lambda row: (-(row.v * 37 % 11), row.at))):
            w = row.v * 37 % 11
            before = sum(other.v * 37 % 11 > w for other in rows) if order.has_ties else number
            if before < order.bound:
                found.append((row.at, row.v, row.to, w, before + 1))
        return (found,)

    def made(streams: list[list[Seen]]) -> list[Result]:
        results = Windows(assign, value=first).run(streams[0])
        return [(*bounds, *row, at) for *bounds, rows, at in results for row in rows]

    return made


#: Aggregates that go by the order of rows.
TEXTS = {
    "first": weir.first("v"),
    "last": weir.last("v"),
    "high": weir.max("v"),
    "big": weir.largest("v", 2),
}


def _build_others(streams: list[Any], parallelism: int) -> Any:
    windows = streams[0].key_by("k").window(weir.sliding(SIZE_MS, SLIDE_MS), allowed_lateness=LATENESS_MS)
    return windows.aggregate("out", **TEXTS, parallelism=parallelism)


def others(rows: list[Seen]) -> tuple[Any, ...]:
    """What :data:`TEXTS` come to."""
    in_order = sorted(rows, key=lambda row: row.at)
    values = sorted((row.v for row in rows), reverse=True)
    return in_order[0].v, in_order[-1].v, values[0], values[:2]


def _flushes(row: Seen) -> bool:
    return row.v % 5 == 0


def _plain() -> Iterator[Step]:
    kinds: tuple[tuple[str, Any, Assign], ...] = (
        ("tumbling", weir.tumbling(SIZE_MS), tumbling),
        ("sliding", weir.sliding(SIZE_MS, SLIDE_MS), sliding),
        ("cumulative", weir.cumulative(SIZE_MS, SLIDE_MS), cumulative),
    )
    late: dict[str, Any] = {"allowed_lateness": LATENESS_MS}
    for name, window, assign in kinds:
        yield Step(name, build(window), model(assign=assign))
        yield Step(f"{name}, added up before", build(window, pre_aggregate=True), model(assign=assign))
        lately = model(assign=assign, lateness_ms=LATENESS_MS)
        yield Step(f"{name}, late rows", build(window, **late), lately, several="last")
        yield Step(f"late rows of {name}", build_late(window), _late(assign=assign))
        lately = _late(assign=assign, lateness_ms=LATENESS_MS)
        yield Step(f"rows of {name} beyond lateness", build_late(window, **late), lately)
        early: dict[str, Any] = {"early": weir.every(f"{EARLY_MS}ms", time="event")}
        told = model(assign=assign, early_ms=EARLY_MS)
        yield Step(f"{name}, early", build(window, **early), told, several="last")
        told = model(assign=assign, early_ms=EARLY_MS, lateness_ms=LATENESS_MS)
        yield Step(f"{name}, early and late", build(window, **early, **late), told, several="last")
        yield Step(f"{name} of all rows", build_all(window), model(assign=assign, key=lambda row: ()), keys=0)
        told = model(assign=assign, key=lambda row: (), lateness_ms=LATENESS_MS)
        yield Step(f"{name} of all rows, late rows", build_all(window, **late), told, several="last", keys=0)
        yield Step(
            f"all rows of {name}", build_process(window), model(assign=assign, value=listed), own_keys=True
        )
        told = model(assign=assign, value=listed, lateness_ms=LATENESS_MS)
        process = build_process(window, **late)
        yield Step(f"all rows of {name}, late rows", process, told, several="last", own_keys=True)
        for bound, has_ties in ((1, False), (3, False), (2, True)):
            order = Ordering((("w", True, False),), bound, "place", has_ties)
            words = f"first {bound} rows of {name}" + (" with ties" if has_ties else "")
            yield Step(words, build_first(window, order), model_first(assign, order), own_keys=True)


def _updated() -> Iterator[Step]:
    window = weir.tumbling(SIZE_MS)
    early: dict[str, Any] = {"early": weir.every(f"{EARLY_MS}ms", time="event")}
    late: dict[str, Any] = {"allowed_lateness": LATENESS_MS}
    for results in ("changelog", "discarding"):
        more: dict[str, Any] = {"results": results}
        several: Any = "folded" if results == "changelog" else None
        told = model(assign=tumbling, early_ms=EARLY_MS, lateness_ms=LATENESS_MS, **more)
        yield Step(
            f"early and late, {results}", build(window, **early, **late, **more), told, several=several
        )
        told = model(assign=tumbling, lateness_ms=LATENESS_MS, **more)
        yield Step(f"late rows, {results}", build(window, **late, **more), told, several=several)
        told = model(assign=tumbling, early_ms=EARLY_MS, key=lambda row: (), **more)
        yield Step(
            f"early of all rows, {results}",
            build_all(window, **early, **more),
            told,
            several=several,
            keys=0,
        )
    for results in ("accumulating", "changelog", "discarding"):
        more = {"results": results}
        told = model(assign=tumbling, early_rows=3, lateness_ms=LATENESS_MS, **more)
        every: dict[str, Any] = {"early": weir.every(rows=3)}
        yield Step(f"each third row, {results}", build(window, **every, **late, **more), told, several=None)
    told = model(assign=tumbling, early_where=_flushes)
    every = {"early": weir.every(where=pl.col("v") % 5 == 0)}
    yield Step("after certain rows", build(window, **every), told, several="last")
    yield Step(
        "top of windows",
        lambda streams, parallelism: (
            streams[0]
            .key_by("k")
            .window(window)
            .aggregate("counted", n=weir.count(), total=weir.sum("v"), parallelism=parallelism)
            .window_top("out", by="total", rows=1)
        ),
        _top,
        one="rows",
    )
    yield Step(
        "other aggregates",
        _build_others,
        model(assign=sliding, lateness_ms=LATENESS_MS, value=others),
        several="last",
        own_keys=True,
    )


STEPS = (*_plain(), *_updated())
