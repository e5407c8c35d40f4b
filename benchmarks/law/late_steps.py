"""Steps after windows that tell results again because of late rows: these results are late, as the rows were."""

from __future__ import annotations

from collections import Counter
from typing import Any

import weir
from benchmarks.law.cases import END_MS, Seen
from benchmarks.law.chain_steps import windows
from benchmarks.law.running import Build
from benchmarks.law.steps import Model, Result, Step

#: Of the windows that tell again, of how late a row may be for them, and of the windows of their results.
SIZE_MS, LATENESS_MS, TOTAL_MS = 2_000, 3_000, 4_000


def told_again(rows: list[Seen]) -> list[Seen]:
    """Return the results of windows that take late rows, as rows; ``v`` is the sum of ``v`` so far."""
    totals, made, mark = Counter[tuple[int, int]](), list[Seen](), -END_MS

    def close(until_ms: int) -> None:
        nonlocal mark
        for end, key in sorted(window for window in totals if mark < window[0] <= until_ms):
            made.append(Seen(key, end - 1, totals[end, key], 0, mark, end - 1))
        mark = max(mark, until_ms)

    for row in rows:
        close(row.all_ms)
        end = row.at // SIZE_MS * SIZE_MS + SIZE_MS
        if end + LATENESS_MS > row.mark:
            totals[end, row.k] += row.v
            if end <= mark:
                # As of the row: what was due before it has been told after this step, too.
                made.append(Seen(row.k, end - 1, totals[end, row.k], 0, mark, mark))
    close(END_MS)
    return made


def _then_windows(**late: Any) -> Build:
    def made(streams: list[Any], parallelism: int) -> Any:
        first = streams[0].key_by("k").window(weir.tumbling(SIZE_MS), allowed_lateness=LATENESS_MS)
        sums = first.aggregate("sums", v=weir.sum("v"), parallelism=parallelism)
        return sums.key_by("k").window(weir.tumbling(TOTAL_MS), **late).aggregate("out", v=weir.sum("v"))

    return made


def _in_windows(streams: list[list[Seen]]) -> list[Result]:
    return [
        (row.k, start, start + TOTAL_MS, row.v, row.at)
        for row, start in windows(told_again(streams[0]), TOTAL_MS)
    ]


def _said_of(rows: Any) -> Model:
    return lambda streams: rows(streams[0])


def _results(rows: list[Seen]) -> list[Result]:
    return [(row.k, row.at + 1 - SIZE_MS, row.at + 1, row.v, row.at) for row in told_again(rows)]


def _windows(streams: list[Any], parallelism: int) -> Any:
    first = streams[0].key_by("k").window(weir.tumbling(SIZE_MS), allowed_lateness=LATENESS_MS)
    return first.aggregate("out", v=weir.sum("v"), parallelism=parallelism)


def _beyond(streams: list[list[Seen]]) -> list[Result]:
    """Return the results that are late for the windows after them."""
    said, mark = list[Result](), -END_MS
    for row in told_again(streams[0]):
        mark = max(mark, row.all_ms)
        end = row.at // TOTAL_MS * TOTAL_MS + TOTAL_MS
        if end <= row.mark:
            said.append((row.k, row.at + 1 - SIZE_MS, row.at + 1, row.v, row.at))
    return said


def _late_side(streams: list[Any], parallelism: int) -> Any:
    first = streams[0].key_by("k").window(weir.tumbling(SIZE_MS), allowed_lateness=LATENESS_MS)
    sums = first.aggregate("sums", v=weir.sum("v"), parallelism=parallelism)
    counted = sums.key_by("k").window(weir.tumbling(TOTAL_MS)).aggregate("counted", n=weir.count())
    counted.sink("blackhole", weir.Blackhole())
    return counted.side_output("late").pass_through("out")


#: Which results there are of late rows hangs on the other splits, so there is one.
STEPS = (
    Step("windows that tell late rows", _windows, _said_of(_results), several=None),
    Step("windows that tell late rows, then windows", _then_windows(), _in_windows, several=None),
    Step("results of late rows that are late for windows", _late_side, _beyond, several=None),
)
