"""Random commands, cuts, waits and restarts: both forms of the engine have what plain Python has."""

import json
import random
from collections import Counter

import polars as pl
import pytest

import weir
from experiments.workflows import job as workflow_job
from experiments.workflows.engine import COUNTS, REFUSED, ByBatch, ByRecord
from experiments.workflows.windows import FIELDS, ROW, Windows, merged
from tests.effort import cases
from tests.experiments.workflows.plain_workflows import Model
from weir import testing

KINDS = ("StartWf", "StartTask", "CompleteTask")
#: Of the window that asks for all windows.
ASKED = -1
#: What depends on when timers are looked at, and on how commands are cut into batches.
INEXACT = {"pause_ms_max", "latest_command_ms", "timers_fired", "timer_delay_ms", "timer_delay_ms_max"}
EXACT = sorted(name for name in set(FIELDS) - INEXACT if not name.startswith("sweep"))
#: After so long a wait all timers have fired.
LONG_MS = 100_000


def _told(process, key):
    state = {
        name: getattr(process, name).value
        for name in ("step", "tasks", "launched_ms", "started_ms", "completed_ms", "due_ms")
    }
    runs = [[number, run] for number, run in process.task_runs.items()]
    return json.dumps(state | {"task_runs": runs})


def _ask():
    return dict.fromkeys(ROW, 0) | {"window_ms": ASKED}


class AskedByRecord(ByRecord):
    """Tells the states of the key of each command ``Ask``."""

    def process(self, key, row, context):
        if row["kind"] == "Ask":
            told = {"kind": "told", "workflow": key[0], "task": 0, "reason": _told(self, key)}
            yield weir.side(REFUSED, told)
            yield weir.side(COUNTS, _ask() | {"subtask": self._subtask})
        else:
            yield from super().process(key, row, context)


class AskedByBatch(ByBatch):
    """The same, of a batch that has nothing else."""

    def process_batch(self, batch, context):
        if batch["kind"][0].as_py() != "Ask":
            yield from super().process_batch(batch, context)
            return
        keys = context.keys(batch)
        told = [_told(self, None) for _ in context.visit(keys)]
        rows = pl.DataFrame(batch).select(
            kind=pl.lit("told"), workflow="workflow", task=pl.lit(0, pl.Int64), reason=pl.Series(told)
        )
        yield weir.side(REFUSED, weir.with_times(rows.to_arrow().to_batches()[0], 0, 0))
        asked = pl.DataFrame([_ask() | {"subtask": self._subtask}]).to_arrow().to_batches()[0]
        yield weir.side(COUNTS, weir.with_times(asked, 0, 0))


class AskedWindows(Windows):
    """Tells all windows of a subtask, of rows that ask for them."""

    def process_batch(self, batch, context):
        rows = pl.DataFrame(batch)
        plain = rows.filter(pl.col("window_ms") != ASKED)
        if len(plain):
            yield from super().process_batch(plain.to_arrow().combine_chunks().to_batches()[0], context)
        asked = rows.filter(pl.col("window_ms") == ASKED)
        if not len(asked):
            return
        keys = context.keys(asked.to_arrow().combine_chunks().to_batches()[0])
        told = [
            {"subtask": asked["subtask"][int(keys.first_rows[at])], "window_ms": start_ms} | window
            for at in context.visit(keys)
            for start_ms, window in self.windows.items()
        ]
        yield weir.with_times(pl.DataFrame(told).to_arrow().to_batches()[0], 0, 0)


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setitem(workflow_job.FORMS, "records", AskedByRecord)
    monkeypatch.setitem(workflow_job.FORMS, "batches", AskedByBatch)
    monkeypatch.setattr(workflow_job, "Windows", AskedWindows)


class Trial:
    """A job and the model of it, side by side."""

    def __init__(self, job, chance, sources, *, each_timer):
        """``each_timer``: timers fire when they are due, so that it is known in which window."""
        self.job, self.model, self._chance, self._sources = job, Model(), chance, sources
        self._each_timer = each_timer
        self._kept, self._since = Model(), []

    @property
    def now_ms(self):
        return self.job.clock.now_us() // 1000

    def some(self):
        """Random commands: mostly what the workflow waits for, sometimes anything."""
        commands = []
        for _ in range(self._chance.choice((1, 2, 5, 40))):
            commands.append(self._command(f"wf-{self._chance.randrange(6)}"))
            self.model.take(commands[-1], self.now_ms)
        self._since += commands
        self._push(commands)

    def _command(self, name):
        chance, workflow = self._chance, self.model.workflows.get(name)
        runs = workflow.runs if workflow else []
        if chance.random() < 0.25:
            kind, task = chance.choice((*KINDS, "Stop", "")), chance.choice((-1, 0, 1, 2, 7, 2**62))
        elif workflow is None:
            kind, task = "StartWf", chance.choice((0, 0, 3))
        elif runs and runs[-1]["completed_ms"] is None:
            kind, task = "CompleteTask", len(runs) - 1
        else:
            kind, task = "StartTask", len(runs)
        payload = chance.choice(("", "x" * 50, '\u00e4\n"')) if kind == "CompleteTask" else None
        sent_ms = self.now_ms - chance.randrange(500)
        return {"kind": kind, "workflow": name, "task": task, "payload": payload, "sent_ms": sent_ms}

    def _push(self, commands):
        """Those of a workflow go one way, in pieces of random sizes."""
        for source in range(self._sources):
            rows = [row for row in commands if int(row["workflow"][3:]) % self._sources == source]
            while rows:
                count = self._chance.randrange(1, len(rows) + 1)
                self.job.push("commands", _frame(rows[:count]), subtask=source)
                rows = rows[count:]

    def wait(self, ms=None):
        self.job.advance_time(ms or self._chance.choice((1, 700, 9_999, 10_000, 31_000)))
        self.model.fire(self.now_ms)

    def checkpoint(self):
        self.job.checkpoint()
        self._kept, self._since = self.model.copy(), []

    def restart(self):
        """All since the checkpoint happens again, at the present time."""
        self.job.restart()
        self.model = self._kept.copy()
        for command in self._since:
            self.model.take(command, self.now_ms)
        self.model.fire(self.now_ms, self.now_ms)

    def check(self):
        ask = {"kind": "Ask", "task": 0, "payload": None, "sent_ms": 0}
        self._push([ask | {"workflow": f"wf-{number}"} for number in range(6)])
        told = self.job.rows("refused").to_dicts()
        states = {row["workflow"]: json.loads(row["reason"]) for row in told if row["kind"] == "told"}
        for name, workflow in self.model.workflows.items():
            found = states.pop(name)
            assert found["task_runs"] == [[number, run] for number, run in enumerate(workflow.runs)]
            for field in ("tasks", "launched_ms", "started_ms", "completed_ms"):
                assert found[field] == getattr(workflow, field), field
            assert found["due_ms"] == workflow.last_due_ms
        assert all(not state["step"] and not state["task_runs"] for state in states.values())
        refused = Counter(
            (row["kind"], row["workflow"], row["task"], row["reason"])
            for row in told
            if row["kind"] != "told"
        )
        assert refused == self.model.refused
        windows = {(row["subtask"], row["window_ms"]): row for row in self.job.rows("metrics").to_dicts()}
        for start_ms in {start_ms for _, start_ms in windows} | set(self.model.windows):
            found = merged(row for (_, other_ms), row in windows.items() if other_ms == start_ms)
            expected = self.model.windows[start_ms]
            assert {name: found[name] for name in EXACT} == {name: expected[name] for name in EXACT}
            if self._each_timer:
                assert found["timers_fired"] == expected["timers_fired"]
        fired = sum(window["timers_fired"] for window in self.model.windows.values())
        assert sum(row["timers_fired"] for row in windows.values()) == fired


def _frame(rows):
    types = {
        "kind": pl.String,
        "workflow": pl.String,
        "task": pl.Int64,
        "payload": pl.String,
        "sent_ms": pl.Int64,
    }
    return pl.DataFrame(rows, types)


@pytest.mark.parametrize("timers", ["engine", "sweep"])
@pytest.mark.parametrize("form", ["batches", "records"])
@pytest.mark.parametrize("seed", range(cases(4)))
def test_both_forms_have_what_plain_python_has(form, timers, seed):
    chance = random.Random(seed)
    parallelism = chance.randrange(1, 4)
    state = chance.choice(("memory", "rocksdb"))
    flow = workflow_job.build(form=form, timers=timers, parallelism=parallelism, max_parallelism=16)
    with testing.start(flow, collect_sinks=True, seed=seed, state=state) as job:
        trial = Trial(job, chance, parallelism, each_timer=timers == "engine")
        steps = [trial.some] * 6 + [trial.wait] * 3 + [trial.checkpoint, trial.restart]
        for _ in range(40):
            chance.choice(steps)()
        trial.wait(LONG_MS)
        trial.check()
