"""The steps that take the commands: once per record and once per batch, with the same states.

For each command they do what the state benchmark's section C says: StartTask reads the workflow and its latest task
and writes a timer, the task and the workflow; CompleteTask reads the same and writes the task. Unlike there, a command
that is not right at the workflow's step (``commands.refusal``) changes nothing, and is told with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

import weir
from experiments.workflows.commands import (
    ACCEPTED,
    SENT,
    START_TASK,
    START_WORKFLOW,
    is_over,
    latest_task,
    refusal,
)
from experiments.workflows.windows import Tally

KEY = "workflow"
#: Side output with commands that were refused, and the reason.
REFUSED = "refused"
REFUSED_ROW: dict[str, Any] = {"kind": str, KEY: str, "task": int, "reason": str}
#: Side output with what was counted (``windows.ROW``).
COUNTS = "counts"
#: The step's own output: a timer for each start of a task; ``subtask`` is the one that made it. Steps of their own keep
#: them (``alarms.py``, ``sweep.py``): a step with timers takes each key of a batch once at a time.
TIMER_ROW: dict[str, Any] = {"subtask": int, "due_ms": int, KEY: str, "task": int}
_TIMES = ("_event_time_ms", "_ingest_time_us")
_TASK_RUN = pl.Struct(
    {"launched_ms": pl.Int64, "started_ms": pl.Int64, "completed_ms": pl.Int64, "payload": pl.String}
)


@dataclass(frozen=True)
class Settings:
    """Of the step.

    Attributes:
        timer_delay_ms: from the start of a task to its timer.
        window_ms: length of the windows of metrics.
    """

    timer_delay_ms: int = 10_000
    window_ms: int = 30_000


class Engine(weir.KeyedProcess):
    """The states of a workflow."""

    #: See ``commands``.
    step = weir.ValueState(int, 0)
    #: How many tasks there are; 0: nobody knows.
    tasks = weir.ValueState(int, 0)
    launched_ms = weir.ValueState(int)
    started_ms = weir.ValueState(int)
    completed_ms = weir.ValueState(int)
    #: Of the latest timer: the next one is later, so that each start has a timer of its own.
    due_ms = weir.ValueState(int, 0)
    #: In the order of their numbers.
    task_runs = weir.MapState(int, _TASK_RUN)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._subtask = 0
        #: When the last command was taken.
        self._served_ms = 0

    @override
    def open(self, context: weir.OperatorContext) -> None:
        self._subtask = context.subtask_index
        self._clock = context.clock

    def clock_ms(self) -> int:
        """Wall clock, ms since the epoch."""
        return self._clock.now_us() // 1000

    def tally_of(self, now_ms: int) -> Tally:
        """Counts of the window of this moment, of this subtask."""
        return Tally(self._subtask, now_ms, self._settings.window_ms)

    def took(self, now_ms: int, sent_ms: int, tally: Tally) -> None:
        """Note for how long commands waited and none was taken, before the one that was sent then."""
        tally.highest("pause_ms_max", now_ms - max(self._served_ms, sent_ms))
        tally.highest("latest_command_ms", now_ms)
        self._served_ms = now_ms

    def due_after(self, now_ms: int, before_ms: int) -> int:
        """When the timer of a task that starts now is due; each of a workflow at a time of its own."""
        return max(now_ms + self._settings.timer_delay_ms, before_ms + 1)


class ByRecord(Engine):
    """One command at a time."""

    @override
    def process(self, key: tuple[Any, ...], row: dict[str, Any], context: weir.KeyContext) -> Iterator[Any]:
        now_ms = self.clock_ms()
        tally = self.tally_of(now_ms)
        tally.timed("messages_processed", "message_latency_ms", max(0, now_ms - row[SENT]))
        tally.late(np.array([now_ms - row[SENT]]))
        self.took(now_ms, row[SENT], tally)
        kind, task, step = row["kind"], row["task"], self.step.value
        reason = refusal(kind, task, step, self.tasks.value)
        if reason != ACCEPTED:
            tally.add("rejected")
            shown = {name: row[name] for name in ("kind", KEY, "task")} | {"reason": reason}
            yield weir.side(REFUSED, shown)
        else:
            self.step.value = step + 1
            if kind == START_WORKFLOW:
                self._start_workflow(row, now_ms, tally)
            elif kind == START_TASK:
                yield self._start_task(key[0], task, now_ms, tally)
            else:
                self._complete_task(row, now_ms, tally)
        yield weir.side(COUNTS, tally.row)

    def _start_workflow(self, row: dict[str, Any], now_ms: int, tally: Tally) -> None:
        self.tasks.value, self.launched_ms.value, self.started_ms.value = (
            max(0, row["task"]),
            row[SENT],
            now_ms,
        )
        tally.add("workflow_starts")

    def _start_task(self, workflow: str, task: int, now_ms: int, tally: Tally) -> dict[str, Any]:
        launched_ms = self.started_ms.value if task == 0 else self.task_runs[task - 1]["completed_ms"]
        self.task_runs[task] = {
            "launched_ms": launched_ms,
            "started_ms": now_ms,
            "completed_ms": None,
            "payload": None,
        }
        tally.timed("task_starts", "task_start_latency_ms", now_ms - launched_ms)
        self.due_ms.value = self.due_after(now_ms, self.due_ms.value)
        return {"subtask": self._subtask, "due_ms": self.due_ms.value, KEY: workflow, "task": task}

    def _complete_task(self, row: dict[str, Any], now_ms: int, tally: Tally) -> None:
        run = self.task_runs[row["task"]]
        self.task_runs[row["task"]] = run | {"completed_ms": now_ms, "payload": row["payload"]}
        tally.timed("task_completes", "task_complete_latency_ms", now_ms - run["started_ms"])
        if is_over(self.step.value, self.tasks.value):
            self.completed_ms.value = now_ms
            tally.add("workflow_completes")


class ByBatch(Engine):
    """All commands of a batch: states are read and written once, between them there is a loop over numbers."""

    @override
    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterator[Any]:
        work = _Batch(self, batch, context)
        work.run()
        work.write()
        if work.refused:
            rows = list(work.refused)
            yield weir.side(REFUSED, _refused(batch.take(rows), list(work.refused.values())))
        if work.timer_rows:
            yield self._timer_rows(batch, work)
        yield weir.side(COUNTS, work.tally.batch(*_last_times(batch)))

    def _timer_rows(self, batch: pa.RecordBatch, work: _Batch) -> pa.RecordBatch:
        rows = batch.select([KEY, "task", *_TIMES]).take(pa.array(work.timer_rows, pa.int64()))
        subtask = np.full(rows.num_rows, self._subtask, np.int64)
        columns = {"subtask": subtask, "due_ms": pa.array(work.timers_ms, pa.int64())}
        return pa.RecordBatch.from_pydict(columns | {name: rows[name] for name in (KEY, "task", *_TIMES)})


class _Batch:
    """One batch of commands on its way through the states of a :class:`ByBatch`."""

    def __init__(self, engine: ByBatch, batch: pa.RecordBatch, context: weir.KeyContext) -> None:
        self._engine, self._batch = engine, batch
        self._now_ms = engine.clock_ms()
        self.tally = engine.tally_of(self._now_ms)
        self._keys = context.keys(batch)
        distinct = self._keys.distinct
        #: By position of the workflow among the distinct ones.
        self._steps: list[int] = engine.step.get(distinct).to_list()
        self._tasks: list[int] = engine.tasks.get(distinct).to_list()
        self._due_ms: list[int] = engine.due_ms.get(distinct).to_list()
        self._started_ms: list[int] = engine.started_ms.get(distinct).to_list()
        found = engine.task_runs.get(distinct, [latest_task(step) for step in self._steps]).struct.unnest()
        self._before = {"step": list(self._steps), "due_ms": list(self._due_ms)}
        #: By position of the workflow, its latest task run.
        times = (found[name].to_list() for name in ("launched_ms", "started_ms", "completed_ms"))
        self._latest = list(map(_Run, *times))
        #: Task runs that changed, by position of the workflow and number.
        self._changed: dict[tuple[int, int], _Run] = {}
        #: Rows with a StartWf, and positions of workflows that are over.
        self._new_rows: list[int] = []
        self._over: list[int] = []
        #: Rows that started a task, with their timers; reasons by row of those that were refused.
        self.timer_rows: list[int] = []
        self.timers_ms: list[int] = []
        self.refused: dict[int, str] = {}

    def run(self) -> None:
        """Take all commands in their order."""
        batch, steps, now_ms = self._batch, self._steps, self._now_ms
        kinds, numbers = batch["kind"].to_pylist(), batch["task"].to_pylist()
        for row, (at, kind, task) in enumerate(zip(self._keys.inverse.tolist(), kinds, numbers, strict=True)):
            reason = refusal(kind, task, steps[at], self._tasks[at])
            if reason != ACCEPTED:
                self.refused[row] = reason
                continue
            steps[at] += 1
            if kind == START_WORKFLOW:
                self._tasks[at], self._started_ms[at] = max(0, task), now_ms
                self._new_rows.append(row)
            elif kind == START_TASK:
                self._start_task(row, at, task)
            else:
                self._complete_task(row, at, task)
        tally = self.tally
        tally.add("workflow_starts", len(self._new_rows))
        tally.add("rejected", len(self.refused))
        tally.add("messages_processed", batch.num_rows)
        sent_ms = batch[SENT].to_numpy()
        self._engine.took(now_ms, int(sent_ms[0]), tally)
        latencies_ms = np.maximum(0, now_ms - sent_ms)
        tally.add("message_latency_ms", int(latencies_ms.sum()))
        tally.highest("message_latency_ms_max", int(latencies_ms.max()))
        tally.late(latencies_ms)

    def _start_task(self, row: int, at: int, task: int) -> None:
        now_ms = self._now_ms
        launched_ms = self._started_ms[at]
        if task:
            completed_ms = self._latest[at].completed_ms
            assert completed_ms is not None
            launched_ms = completed_ms
        self._latest[at] = self._changed[at, task] = _Run(launched_ms, now_ms)
        self.tally.timed("task_starts", "task_start_latency_ms", now_ms - launched_ms)
        self._due_ms[at] = due_ms = self._engine.due_after(now_ms, self._due_ms[at])
        self.timer_rows.append(row)
        self.timers_ms.append(due_ms)

    def _complete_task(self, row: int, at: int, task: int) -> None:
        run = self._changed[at, task] = self._latest[at]
        run.completed_ms, run.row = self._now_ms, row
        self.tally.timed("task_completes", "task_complete_latency_ms", self._now_ms - run.started_ms)
        if is_over(self._steps[at], self._tasks[at]):
            self._over.append(at)
            self.tally.add("workflow_completes")

    def write(self) -> None:
        """Write all states that changed, each in one call."""
        engine, distinct = self._engine, self._keys.distinct
        self._put_changed(engine.step, self._steps)
        if self._new_rows:
            new = self._new_rows
            keys = self._keys.take(new)
            engine.tasks.put(keys, np.maximum(0, self._batch["task"].to_numpy()[new]))
            engine.launched_ms.put(keys, self._batch[SENT].to_numpy()[new])
            engine.started_ms.put(keys, np.full(len(new), self._now_ms))
        if self._over:
            keys = distinct.take(self._over)
            engine.completed_ms.put(keys, np.full(len(self._over), self._now_ms))
        if self._changed:
            places, runs = zip(*self._changed.items(), strict=True)
            positions, numbers = zip(*places, strict=True)
            engine.task_runs.put(distinct.take(positions), numbers, self._columns(runs))
        self._put_changed(engine.due_ms, self._due_ms)

    def _put_changed(self, state: Any, values: list[int]) -> None:
        """Write those that are not as before: what was refused changes nothing, and makes no workflow."""
        now = np.array(values, np.int64)
        changed = np.flatnonzero(now != np.array(self._before[state.name]))
        state.put(self._keys.distinct.take(changed), now[changed])

    def _columns(self, runs: Sequence[_Run]) -> pl.Series:
        """Task runs as the column of their state; payloads are not taken out of the batch one by one."""
        rows = pa.array([run.row for run in runs], pa.int64())
        return pl.DataFrame(
            {
                "launched_ms": [run.launched_ms for run in runs],
                "started_ms": [run.started_ms for run in runs],
                "completed_ms": [run.completed_ms for run in runs],
                "payload": pl.Series(self._batch["payload"].take(rows)),
            },
            schema_overrides={"completed_ms": pl.Int64},
        ).to_struct()


class _Run:
    """A task run; ``row``: of the batch, with its payload; None: there is none."""

    __slots__ = ("completed_ms", "launched_ms", "row", "started_ms")

    def __init__(self, launched_ms: int, started_ms: int, completed_ms: int | None = None) -> None:
        self.launched_ms, self.started_ms, self.completed_ms = launched_ms, started_ms, completed_ms
        self.row: int | None = None


def _refused(rows: pa.RecordBatch, reasons: list[str]) -> pa.RecordBatch:
    shown = rows.select(["kind", KEY, "task"]).append_column("reason", pa.array(reasons, pa.string()))
    for name in _TIMES:
        shown = shown.append_column(name, rows[name])
    return shown


def _last_times(batch: pa.RecordBatch) -> tuple[int, int]:
    return tuple(batch[name][batch.num_rows - 1].as_py() for name in _TIMES)
