"""Rows that joins keep are told by side, with their times: those in entries, in chunks and in memory."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import weir
from task_manager.queries.live_ranges import LiveRange
from task_manager.queries.state_copies import copy_part
from tests.task_manager.queries.test_window_questions import Stored, table_of
from weir.author.operator import OperatorContext
from weir.operators.queries import joined_rows
from weir.operators.queries.answering import answer_one, answer_range, asked_state
from weir.operators.queries.state_format import ABSENT, Cut
from weir.operators.registry import create_operator
from weir.plan.stages import physical_graph
from weir.protocol.queries import QueryError, Question
from weir.rows import row_watermarks
from weir.rows.records import with_times
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.held import HeldTable
from weir.state.tables.opened import StateTables
from weir.types import SubtaskId

GROUPS, FIRST_STATE = 4, 3


def inner(left, right):
    return left.join("step", right, within=("-20ms", "20ms"))


def outer(left, right):
    return left.join("step", right, within=("-20ms", "20ms"), how="full")


def forever(left, right):
    return left.join("step", right)


def as_of(left, right):
    return left.join_as_of("step", right)


class Job:
    """A join of two streams with a text and a number each."""

    def __init__(self, make, names="ab"):
        flow = weir.Dataflow("asked", max_parallelism=GROUPS)
        streams = [
            flow.source(
                name, weir.JsonLines("none", schema={"k": str, name: int, f"{name}_text": str})
            ).key_by("k")
            for name in names
        ]
        make(*streams).sink("out", weir.Blackhole())
        self.graph = flow.build()
        stages = physical_graph(self.graph).stages
        self.steps = {node.name: node for stage in stages for node in stage.nodes}
        self.node = self.steps["step"]
        names = {name: FIRST_STATE + number for number, name in enumerate(self.node.states)}
        self.numbers = {state: names[name] for name, state in self.node.states.items()}
        self.backend = MemoryBackend()
        self.backend.ownership = SimpleNamespace(epoch=lambda group: 1)
        self.tables = StateTables(self.backend, 1 << 20, GROUPS)
        self.operator = create_operator(self.node.spec)
        self.operator.open(
            OperatorContext(
                "asked", "step", 1, 0, 1, max_parallelism=GROUPS,
                tables=self.tables.of("step", names), schema=self.node.schema,
            )
        )  # fmt: skip
        self.watermark_ms = -(2**63)

    def take(self, side, rows):
        name = "abc"[side]
        columns = {
            "k": [key for key, _, _ in rows],
            name: pa.array([number for _, number, _ in rows], pa.int64()),
            f"{name}_text": [f"text {number}" for _, number, _ in rows],
        }
        batch = pa.RecordBatch.from_pydict(columns)
        times = pa.array([time_ms for _, _, time_ms in rows], pa.int64())
        list(self.operator.process_input(side, with_times(batch, times, pa.array([0] * len(rows)))))

    def watermark(self, time_ms):
        self.watermark_ms = time_ms
        list(self.operator.on_watermark(time_ms))

    def live(self, group=None):
        running = SimpleNamespace(
            group_state=SimpleNamespace(backend=SimpleNamespace(ownership=self.backend.ownership)),
            store=self.backend,
            chain=SimpleNamespace(tables=list(self.tables)),
            subtask=SimpleNamespace(
                subtask=SubtaskId(1, 0), progress=SimpleNamespace(watermark_ms=self.watermark_ms)
            ),
        )
        asked = self.asked(Question("step", "rows", "x"))
        numbers = [self.numbers[name] for name in (asked.job_name, *asked.format.others)]
        return LiveRange([copy_part(running, numbers, GROUPS, group)], self.numbers)

    def stored(self):
        self.tables.flush()
        found = Stored(self.backend, self.numbers)
        found.watermark_ms = self.watermark_ms
        return found

    def asked(self, question):
        return asked_state(self.graph, question, self.steps)

    def one(self, reading, key, **given):
        question = Question("step", "rows", key, **given)
        asked = self.asked(question)
        group = asked.group_of(asked.keys.encode(key))
        return answer_one(asked, reading, self.numbers[asked.job_name], group, question)

    def page(self, reading, **given):
        question = Question("step", "rows", **given)
        asked = self.asked(question)
        number = self.numbers[asked.job_name]
        return answer_range(asked, reading, number, range(GROUPS), question, lambda: None)


def row(side, number, time_ms):
    return {"time": time_ms, "value": {side: number, f"{side}_text": f"text {number}"}}


LEFT = [("x", 1, 10), ("y", 2, 11), ("xx", 3, 12), ("x", 4, 9)]
RIGHT = [("x", 5, 10), ("z", 6, 13)]
EXPECTED = {
    "x": {"left": [row("a", 4, 9), row("a", 1, 10)], "right": [row("b", 5, 10)]},
    "xx": {"left": [row("a", 3, 12)], "right": []},
    "y": {"left": [row("a", 2, 11)], "right": []},
    "z": {"left": [], "right": [row("b", 6, 13)]},
}


@pytest.mark.parametrize("make", [inner, outer, forever, as_of])
def test_rows_of_both_sides(make):
    job = Job(make)
    job.take(0, LEFT[:2])
    job.take(1, RIGHT[:1])
    job.tables.flush()
    job.take(0, LEFT[2:])
    job.take(1, RIGHT[1:])
    rows = [{"key": key, "value": EXPECTED[key]} for key in sorted(EXPECTED)]
    for reading in (job.live(), job.stored()):
        assert {key: job.one(reading, key) for key in EXPECTED} == EXPECTED
        assert job.one(reading, "no") is ABSENT
        found = job.page(reading)
        assert found.rows == rows
        assert table_of(found).to_pylist() == rows
        assert job.page(reading, reverse=True).rows == rows[::-1]
        assert job.page(reading, prefix="x").rows == rows[:2]
        assert job.page(reading, first="xx", last="y").rows == rows[1:3]
        assert job.page(reading, limit=2).rows == rows[:2]
        after = job.page(reading, limit=2).after.hex()
        assert job.page(reading, limit=2, after=after).rows == rows[2:]
        assert job.page(reading, counts=True).count == 4
    backwards = job.one(job.live(), "x", reverse=True)
    assert backwards == {side: rows[::-1] for side, rows in EXPECTED["x"].items()}
    by_time = sorted((row["time"], side) for side, rows in EXPECTED["x"].items() for row in rows)
    for limit in (1, 2):
        for reverse in (False, True):
            taken = by_time[::-1][:limit] if reverse else by_time[:limit]
            found = job.one(job.live(), "x", limit=limit, cuts=True, reverse=reverse)
            assert isinstance(found, Cut)
            told = [(row["time"], side) for side, rows in found.value.items() for row in rows]
            assert sorted(told) == sorted(taken)
    assert job.one(job.live(), "x", limit=3, cuts=True) == EXPECTED["x"]
    with pytest.raises(QueryError, match="keeps 3 rows of a key, at most 2 are read") as refused:
        job.one(job.live(), "x", limit=2)
    assert refused.value.status == 413
    with pytest.raises(QueryError, match="answered whole"):
        job.one(job.live(), "x", first="1")
    with pytest.raises(QueryError, match="it has rows"):
        job.asked(Question("step", "left", "x"))


@pytest.mark.parametrize("make", [inner, outer])
def test_rows_that_can_match_no_more_are_not_told(make):
    job = Job(make)
    job.take(0, [("x", 1, 10), ("x", 2, 50)])
    job.take(1, [("x", 3, 12)])
    job.watermark(40)
    for reading in (job.live(), job.stored()):
        assert job.one(reading, "x") == {"left": [row("a", 2, 50)], "right": []}
    job.watermark(90)
    assert job.one(job.live(), "x") is ABSENT


def test_many_rows_of_a_key():
    job = Job(forever)
    for first in range(0, 3_000, 500):
        job.take(0, [("x", number, number) for number in range(first, first + 500)])
    assert len(list(job.stored().scan(b"\0", b"\xff" * 8))) > 1, "all rows are in one entry"
    for reading in (job.live(), job.stored()):
        told = job.one(reading, "x", limit=5_000)
        assert told == {"left": [row("a", number, number) for number in range(3_000)], "right": []}


def test_rows_of_changelogs():
    job = Job(lambda left, right: left.top("first", by="a", rows=1).key_by("k").join("step", right))
    assert job.node.spec.kind == "join_changes"
    schema = {
        "k": ["x", "x", "x"],
        "a": [1, 1, 2],
        "a_text": ["t"] * 3,
        "_change": ["insert", "delete", "delete"],
    }
    batch = with_times(pa.RecordBatch.from_pydict(schema), pa.array([1, 2, 3]), pa.array([0] * 3))
    list(job.operator.process_input(0, batch))
    assert job.one(job.live(), "x") is ABSENT, "what was taken away, or before it came, is not there"
    job.take(1, [("x", 7, 4)])
    assert job.one(job.live(), "x") == {"left": [], "right": [row("b", 7, 4)]}


def test_several_streams():
    job = Job(lambda first, second, third: first.join_all("step", second, third, within="10ms"), "abc")
    job.take(0, [("x", 1, 10)])
    job.take(2, [("x", 3, 15)])
    told = {"1": [row("a", 1, 10)], "2": [], "3": [row("c", 3, 15)]}
    assert job.one(job.live(), "x") == job.one(job.stored(), "x") == told
    job.watermark(22)
    assert job.one(job.live(), "x") == {**told, "1": []}


@pytest.mark.parametrize("arguments", [{"window": weir.tumbling("10ms")}, {}])
def test_several_streams_of_a_left_join(arguments):
    job = Job(lambda *streams: streams[0].join_all("step", *streams[1:], how="left", **arguments), "abc")
    job.take(0, [("x", 1, 10)])
    job.take(2, [("x", 3, 15)])
    told = {"1": [row("a", 1, 10)], "2": [], "3": [row("c", 3, 15)]}
    assert job.one(job.live(), "x") == job.one(job.stored(), "x") == told
    job.watermark(20)
    assert job.one(job.live(), "x") == (ABSENT if arguments else told)


def test_versions_that_end():
    def make(left, right):
        return left.join_as_of("step", right.top("first", by="b", rows=1).key_by("k"))

    job = Job(make)
    schema = {"k": ["x", "x"], "b": [1, 1], "b_text": ["text 1"] * 2, "_change": ["insert", "delete"]}
    batch = with_times(pa.RecordBatch.from_pydict(schema), pa.array([1, 5]), pa.array([0] * 2))
    list(job.operator.process_input(1, batch))
    job.take(0, [("x", 2, 9)])
    told = {"left": [row("a", 2, 9)], "right": [row("b", 1, 1), {"time": 5, "value": None}]}
    assert job.one(job.live(), "x") == told
    assert table_of(job.page(job.live())).to_pylist() == [{"key": "x", "value": told}]


def test_versions_that_came_late():
    job = Job(as_of)
    batch = with_times(
        pa.record_batch({"k": ["x"], "b": [1], "b_text": ["text 1"]}), pa.array([4]), pa.array([0])
    )
    list(job.operator.process_input(1, row_watermarks.with_column(batch, np.array([9]))))
    told = {"left": [], "right": [row("b", 1, 4)]}
    assert job.one(job.live(), "x") == job.one(job.stored(), "x") == told


def test_bounds(monkeypatch):
    job = Job(inner)
    job.take(0, LEFT)
    monkeypatch.setattr(joined_rows, "RECENT_ROWS_MAX", 0)
    with pytest.raises(QueryError, match="more than 0 rows") as refused:
        job.one(job.live(), "x")
    assert refused.value.status == 413


def test_rows_that_move_out_of_memory_while_they_are_read_are_refused():
    job = Job(inner)
    job.take(0, LEFT)
    job.take(1, RIGHT)
    reading = job.live()
    assert job.one(reading, "x") == EXPECTED["x"]
    reading.check_rearranged()
    held = next(table for table in job.tables if isinstance(table, HeldTable))
    held.held_bytes_max = 1
    # Memory is full: rows of the left side go to entries by key, a key group with each watermark.
    job.take(0, [("y", 7, 14)])
    for time_ms in range(-5_000, 0):
        job.watermark(time_ms)
    with pytest.raises(QueryError, match="while they were read: try again") as refused:
        reading.check_rearranged()
    assert refused.value.status == 503
    reading = job.live()
    assert job.one(reading, "x") == EXPECTED["x"]
    reading.check_rearranged()
