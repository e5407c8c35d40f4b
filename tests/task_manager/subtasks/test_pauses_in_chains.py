"""Slow steps behind windows and timers, and slow functions of windows: barriers pass, and a restart changes nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from tests.task_manager.subtasks.paused_job import ALIGNMENT_MS, Job, ended
from tests.task_manager.subtasks.test_pauses import batch_of, elements_of, rows_of
from weir.operators.factories import make_operator
from weir.plan.stages import physical_graph
from weir.rows import row_watermarks
from weir.rows.records import Barrier, Watermark
from weir.rows.row_watermarks import RowWatermarks

SLOW_MS = 700
#: What functions of the steps call with the virtual milliseconds that they take.
PASSES = [lambda ms: None]
TOLD = {"k": int, "window_start": int, "window_end": int, "n": int}


def lasts_ms(*values):
    return (0, 1, SLOW_MS)[sum(31**place * value for place, value in enumerate(values)) % 3]


def counted(key, window, rows):
    PASSES[0](lasts_ms(key["k"], window.start_ms // 10))
    return pl.DataFrame({"n": [rows.height]})


class Counting(weir.Aggregator):
    accumulator = int

    def create(self):
        return 0

    def add(self, accumulator, rows):
        return accumulator + rows.height

    def merge(self, left, right):
        return left + right

    def result(self, accumulator):
        PASSES[0](lasts_ms(accumulator))
        return {"n": accumulator}


def slow_row(row):
    PASSES[0](lasts_ms(row["k"], row["window_start"] // 10))
    return row


def slow_rows(batch):
    for row in batch.to_pylist():
        slow_row(row)
    return batch


def doubled(row):
    PASSES[0](lasts_ms(row["k"]))
    yield row
    yield row | {"n": -row["n"]}


class Later(weir.KeyedProcess):
    """Each row, with its number among those of its key, and again at a timer."""

    seen = weir.ValueState(int, default=0)

    def process(self, key, row, context):
        slow_row(row)
        self.seen.value += 1
        context.timers.register(context.event_time_ms + 40)
        yield row | {"n": row["n"] * 1000 + self.seen.value}

    def on_timer(self, key, time_ms, context):
        PASSES[0](lasts_ms(key[0], time_ms))
        yield {"k": key[0], "window_start": -1, "window_end": time_ms, "n": self.seen.value}


class Early(weir.KeyedProcess):
    def process(self, key, row, context):
        context.timers.register(context.event_time_ms + 100)

    def on_timer(self, key, time_ms, context):
        PASSES[0](lasts_ms(time_ms))
        yield {"k": key[0], "window_start": time_ms, "window_end": time_ms, "n": 1}


TUMBLING, SLIDING, SESSION = weir.tumbling("50ms"), weir.sliding("60ms", "20ms"), weir.session("30ms")
CHAINS = {
    "tumbling": lambda s: s.window(TUMBLING).process("slow", counted, {"n": int}),
    "sliding": lambda s: s.window(SLIDING).process("slow", counted, {"n": int}),
    "sessions": lambda s: s.window(SESSION).process("slow", counted, {"n": int}),
    "late windows": lambda s: s.window(TUMBLING, allowed_lateness="40ms").process(
        "slow", counted, {"n": int}
    ),
    "late sliding": lambda s: s.window(SLIDING, allowed_lateness="40ms").process("slow", counted, {"n": int}),
    "late sessions": lambda s: s.window(SESSION, allowed_lateness="40ms").process(
        "slow", counted, {"n": int}
    ),
    "aggregator": lambda s: s.window(TUMBLING).aggregate_with("slow", Counting, {"n": int}),
    "aggregator of sessions": lambda s: s.window(SESSION).aggregate_with("slow", Counting, {"n": int}),
    "map": lambda s: (
        s.window(TUMBLING)
        .aggregate("slow", n=weir.count(), pre_aggregate=False)
        .map("behind", slow_row, TOLD)
    ),
    "map of changes": lambda s: (
        s.window(TUMBLING, early=weir.every(rows=2))
        .aggregate("slow", n=weir.count(), pre_aggregate=False)
        .map_batches("behind", slow_rows, TOLD)
    ),
    "flat map": lambda s: (
        s.window(SESSION)
        .aggregate("slow", n=weir.count(), pre_aggregate=False)
        .flat_map("twice", doubled, TOLD)
        .filter("kept", pl.col("n") != -3)
        .map("behind", slow_row, TOLD)
    ),
    "count windows": lambda s: (
        s.count_window(3).aggregate("slow", n=weir.count()).map("behind", slow_row, TOLD)
    ),
    "keyed": lambda s: (
        s.window(TUMBLING)
        .aggregate("slow", n=weir.count(), pre_aggregate=False)
        .key_by("k")
        .process("later", Later, TOLD)
    ),
    "keyed behind functions": lambda s: (
        s.window(SLIDING)
        .process("slow", counted, {"n": int})
        .key_by("k")
        .process("later", Later, TOLD)
        .map("behind", slow_row, TOLD)
    ),
    "behind timers": lambda s: s.process("slow", Early, TOLD).map("behind", slow_row, TOLD),
    "timers behind timers": lambda s: (
        s.process("slow", Early, TOLD).key_by("k").process("later", Later, TOLD)
    ),
    "windows of windows": lambda s: (
        s.window(weir.tumbling("10ms"))
        .process("slow", counted, {"n": int})
        .key_by("k")
        .window(TUMBLING)
        .aggregate("again", n=weir.count())
        .map("behind", slow_row, TOLD)
    ),
}


def job_of(build, elements, **given):
    flow = weir.Dataflow("job")
    source = flow.source("in", weir.JsonLines("in", schema={"k": int, "t": int}, event_time="t"))
    build(source.select("plain", "k").key_by("k")).sink("out", weir.JsonLinesSink("out"))
    graph = physical_graph(flow.build())
    nodes = [node for node in graph.stages[1].nodes if not node.is_sink]
    assert [nodes[0].name, len(graph.stages)] == ["slow", 2]
    ids = {}

    def make(passes):
        PASSES[0] = passes
        made = []
        for node in nodes:
            states = {name: ids.setdefault(state, len(ids)) for name, state in node.states.items()}
            made.append((node.name, make_operator(node), states))
        return made

    return Job(make, {}, elements, row_watermarks=graph.row_watermarks, **given)


def by_key(told):
    found = defaultdict(list)
    for row in told:
        found[row["k"]].append(tuple(row.values()))
    return dict(found)


def without_column(elements, wanted):
    """Rows say what the watermark is as far as the job needs it."""

    def sent(element):
        if not isinstance(element, pa.RecordBatch) or wanted is RowWatermarks.ALL:
            return element
        if wanted is RowWatermarks.LATE and row_watermarks.late_ms(element) is not None:
            return element
        return row_watermarks.without_column(element)

    return [sent(element) for element in elements]


@pytest.mark.parametrize(
    ("chain", "seed"),
    # In the latter a step has taken some of its rows when the one behind it pauses, and pauses itself before the next.
    [*itertools.product(CHAINS, range(cases(1))), ("behind timers", 7), ("timers behind timers", 7)],
)
def test_restarts_between_parts_change_nothing(chain, seed):
    rng = random.Random(seed)
    rows = rows_of(rng)
    elements = elements_of(rng, rows)
    job = job_of(CHAINS[chain], elements)
    job.elements = without_column(elements, job.row_watermarks)
    quick = job_of(CHAINS[chain], [each for each in job.elements if not isinstance(each, Barrier)])
    expected = by_key(quick.run())
    assert expected
    assert by_key(job.run()) == expected
    for checkpoint in list(job.checkpoints.values()):
        assert by_key(job.run(checkpoint)) == expected


@pytest.mark.parametrize("chain", ["tumbling", "sessions", "aggregator", "map", "keyed", "behind timers"])
def test_a_checkpoint_takes_hardly_longer_than_one_call_and_the_time_for_alignment(chain, monkeypatch):
    """300 keys whose windows one row completes."""
    monkeypatch.setitem(globals(), "lasts_ms", lambda *values: SLOW_MS)
    elements = [batch_of([(key, 1000) for key in range(300)] + [(1, 5000)], -(2**62))]
    elements += [Watermark(4980)]
    elements += [Barrier(number) for number in range(1, 30)]
    job = job_of(CHAINS[chain], ended(elements), apart_ms=5000)
    job.elements = without_column(job.elements, job.row_watermarks)
    found = by_key(job.run())
    told = Counter({key: len(rows) for key, rows in found.items()})
    assert told.keys() == set(range(300)), "windows are lost"
    # One whose barrier another one has overtaken is given up.
    assert len(job.checkpoints) >= 27
    # Of a step of which nothing is known more is done at once.
    assert max(job.durations_s[4:]) * 1e3 <= ALIGNMENT_MS + 3 * SLOW_MS
    for number in (10, 20):
        kept = job.checkpoints[number]
        is_under_way = any(rows.step for rows in kept.rows)
        assert is_under_way or chain == "behind timers", "nothing was under way between steps"
        assert by_key(job.run(kept)) == found
