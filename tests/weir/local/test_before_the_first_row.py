"""What a source knows of event time before its first row holds time there, and not where nothing is known."""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import weir

HOUR_MS, ROWS, KEYS = 3_600_000, 200, 2


class Visits(weir.KeyedProcess):
    """Clicks until ten seconds without one."""

    clicks = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def process(self, key: Any, row: Any, context: Any) -> None:
        """Count it, and move the end."""
        self.clicks.value += 1
        if self.ends.value is not None:
            context.timers.delete(self.ends.value)
        self.ends.value = context.event_time_ms + 10_000
        context.timers.register(self.ends.value)

    def on_timer(self, key: Any, time_ms: int, context: Any) -> Any:
        """Tell the number."""
        yield {"k": key[0], "clicks": self.clicks.value}
        self.clicks.clear()
        self.ends.clear()


def _click(number: int) -> dict[str, int]:
    return {"k": number % KEYS, "at": 10**9 + number * HOUR_MS}


def _told(days: int, parallelism: int, folder: Path) -> Counter[int]:
    """How many visits have so many clicks; there is one file for each stretch of time, which one subtask reads."""
    for day in range(days):
        clicks = [_click(number) for number in range(day * ROWS, (day + 1) * ROWS)]
        pl.DataFrame(clicks).write_csv(folder / f"day{day}.csv")
    flow = weir.Dataflow("visits")
    source = weir.Csv(str(folder), schema={"k": int, "at": int})
    bound = weir.bounded_out_of_orderness("2s")
    clicks = flow.source("clicks", source, event_time="at", watermark=bound, parallelism=parallelism)
    clicks.key_by("k").process("visits", Visits, {"k": int, "clicks": int}).sink("out", weir.Collect())
    return Counter(row["clicks"] for row in weir.run(flow)["out"])


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_subtasks_without_a_file_do_not_hold_time_back(parallelism: int, tmp_path: Path) -> None:
    assert _told(1, parallelism, tmp_path) == {1: ROWS}


def test_a_file_that_another_subtask_reads_holds_time_where_it_begins(tmp_path: Path) -> None:
    # The rows of the second file come before anybody knows that the first one has ended.
    assert _told(2, 2, tmp_path)[1] >= ROWS - KEYS
