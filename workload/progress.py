"""Progress of a Spark job on the terminal: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Nothing is shown for work that is over sooner.
_SILENT_S = 2.0
_POLL_S = 0.25
#: Where there is no terminal, a line is written each time that so much of the time so far has passed again.
_LINE_SHARE = 0.2
_LINE_EVERY_S_MIN, _LINE_EVERY_S_MAX = 1.0, 30.0


@contextmanager
def job_progress(
    console: Console,
    description: str,
    spark: SparkSession | None = None,
    detail: Callable[[], str] | None = None,
) -> Iterator[None]:
    """Show how far the work inside the block is.

    Args:
        console: Where to write; standard error in the entry points, so that results can be piped.
        description: What is being done.
        spark: The session whose running stages make the bar; without one the bar only moves.
        detail: Called about four times a second from another thread; returns what to add, such as a size.

    Yields:
        Nothing; the block runs on the caller's thread.
    """
    finished = threading.Event()
    thread = threading.Thread(
        target=_show,
        args=(console, description, spark, detail or str, finished),
        name="progress",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _show(
    console: Console,
    description: str,
    spark: SparkSession | None,
    detail: Callable[[], str],
    finished: threading.Event,
) -> None:
    if finished.wait(_SILENT_S):
        return
    if not console.is_terminal:
        started = time.monotonic()
        while True:
            done, total = _stage_tasks(spark)
            share = f" {done}/{total} tasks" if total else ""
            seconds = _SILENT_S + time.monotonic() - started
            console.print(
                f"{description}:{share} {detail()} ({seconds:.0f} s)".replace("  ", " "), highlight=False
            )
            if finished.wait(min(max(_LINE_SHARE * seconds, _LINE_EVERY_S_MIN), _LINE_EVERY_S_MAX)):
                return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=None, detail="")
        while not finished.wait(_POLL_S):
            done, total = _stage_tasks(spark)
            bar.update(task, completed=done, total=total or None, detail=detail())


def _stage_tasks(spark: SparkSession | None) -> tuple[int, int]:
    """Return (finished tasks, tasks) over the running stages; (0, 0) when nothing is known."""
    if spark is None:
        return 0, 0
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
