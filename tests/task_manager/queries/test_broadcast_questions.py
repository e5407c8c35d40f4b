"""Broadcast state is told by the keys of its dict, of the subtask that tells checkpoints of it."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

import weir
from task_manager.queries.live_ranges import LiveRange
from task_manager.queries.live_reading import LiveReading
from task_manager.queries.open_checkpoints import OpenCheckpoints
from task_manager.queries.state_copies import copy_part
from tests.task_manager.queries.test_checkpoint_reading import World, manifest
from tests.task_manager.queries.test_window_questions import table_of
from weir.author.operator import OperatorContext
from weir.operators.keyed.broadcast_operator import BroadcastOperator
from weir.operators.queries.answering import answer_one, answer_range, asked_state
from weir.operators.queries.state_format import ABSENT
from weir.protocol.queries import QueryError, Question
from weir.rows.records import with_times
from weir.savepoints.checkpoint_reading import CheckpointReading
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.types import SubtaskId

GROUPS, STATE = 4, 6


class Rules(weir.BroadcastProcess):
    def on_broadcast(self, row, rules):
        rules[row["city"]] = {"most": row["most"], "of": [row["city"], None]}

    def process(self, row, rules):
        return ()


class Job:
    def __init__(self, groups=range(GROUPS)):
        flow = weir.Dataflow("asked", max_parallelism=GROUPS)
        rides = flow.source("rides", weir.JsonLines("none", schema={"id": int})).key_by("id")
        rules = flow.source("rules", weir.JsonLines("none", schema={"city": str, "most": int}))
        rides.connect_broadcast("step", rules, Rules, {"id": int}).sink("out", weir.Blackhole())
        self.graph = flow.build()
        self.node = next(node for node in self.graph.nodes if node.name == "step")
        self.backend = MemoryBackend()
        tables = StateTables(self.backend, 1 << 20, GROUPS, groups)
        self.operator = BroadcastOperator(self.node.spec)
        opened = tables.of("step", {"broadcast": STATE})
        self.operator.open(OperatorContext("asked", "step", 1, 0, 1, max_parallelism=GROUPS, tables=opened))
        (self.table,) = tables
        owned = set(groups)
        ownership = SimpleNamespace(epoch=lambda group: 1 if group in owned else None)
        self.running = SimpleNamespace(
            group_state=SimpleNamespace(backend=SimpleNamespace(ownership=ownership)),
            store=self.backend,
            chain=SimpleNamespace(tables=[self.table]),
            subtask=SimpleNamespace(subtask=SubtaskId(1, 0), progress=SimpleNamespace(watermark_ms=5)),
        )

    def rule(self, *cities):
        batch = pa.RecordBatch.from_pydict(
            {"city": list(cities), "most": pa.array([len(city) for city in cities])}
        )
        nothing = pa.array([0] * len(cities))
        list(self.operator.process_input(1, with_times(batch, nothing, nothing)))

    def asked(self, **given):
        question = Question("step", "broadcast", **given)
        return asked_state(self.graph, question), question

    def one(self, reading, key, **given):
        asked, question = self.asked(key=key, **given)
        return answer_one(asked, reading, STATE, 0, question)

    def page(self, reading, **given):
        asked, question = self.asked(**given)
        return answer_range(asked, reading, STATE, range(GROUPS), question, lambda: None)

    def live_range(self):
        return LiveRange([copy_part(self.running, [STATE], GROUPS)])

    def checkpoint_reading(self):
        world = World()
        world.manifests["m1"] = manifest(1, {}, {"step": self.operator.snapshot(1)})
        opened = OpenCheckpoints(world.manifests.__getitem__, world.make, world.clock)
        with opened.using(1, "m1") as checkpoint:
            return CheckpointReading(checkpoint, "step", "broadcast", None, world.clock)


def value(city):
    return {"most": len(city), "of": [city, None]}


def test_keys_and_ranges():
    job = Job()
    job.rule("berlin", "bern", "prag", "æble")
    rows = [{"key": city, "value": value(city)} for city in ("berlin", "bern", "prag", "æble")]
    assert job.asked(key="prag")[0].group_of(b"prag") == 0
    for reading in (LiveReading(job.table), job.live_range(), job.checkpoint_reading()):
        assert [job.one(reading, row["key"]) for row in rows] == [row["value"] for row in rows]
        assert job.one(reading, "rom") is ABSENT
    for reading in (job.live_range(), job.checkpoint_reading()):
        assert job.page(reading).rows == rows
        assert table_of(job.page(reading)).to_pylist() == rows
        assert job.page(reading, prefix="ber", reverse=True).rows == rows[1::-1]
        assert job.page(reading, first="bern", last="prag").rows == rows[1:3]
        after = job.page(reading, limit=2).after
        assert job.page(reading, limit=2, after=after.hex()).rows == rows[2:]
        assert job.page(reading, counts=True).count == 4
    with pytest.raises(QueryError, match="it has broadcast") as refused:
        asked_state(job.graph, Question("step", "rules", "a"))
    assert refused.value.status == 404


def test_what_was_copied_does_not_change():
    job = Job()
    job.rule("prag")
    reading = job.live_range()
    job.rule("rom")
    job.table.items["prag"]["most"] = 9
    assert job.page(reading).rows == [{"key": "prag", "value": value("prag")}]


def test_a_subtask_that_has_no_dict_yet_does_not_answer():
    job = Job(groups=())
    job.rule("prag")
    assert copy_part(job.running, [STATE], GROUPS) is None
    job.running.group_state.backend.ownership.epoch = lambda group: 1
    assert copy_part(job.running, [STATE], GROUPS) is None


def test_too_many_keys(monkeypatch):
    job = Job()
    job.rule("prag", "rom")
    monkeypatch.setattr("task_manager.queries.state_copies.COPIED_VALUES_MAX", 1)
    with pytest.raises(QueryError, match="more than 1 keys"):
        job.live_range()
