"""Timers that make a step raise: the failure names step, key and time; put aside, the others fire."""

import json

import polars as pl
import pyarrow as pa
import pytest

import weir
from task_manager.subtasks.isolation import Isolation
from weir.author.operator import OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.errors import FailureKind
from weir.operators.chain import OperatorChain
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.operators.step_errors import StepError
from weir.operators.user_errors import UserErrors
from weir.specs import KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing import ManualClock

KEYS = pa.schema({"user": pa.string()})
SCHEMA = pa.schema({"user": pa.string(), "n": pa.int64()})


class Picky(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        context.timers.register(row["at"])
        context.timers.register_processing(row["at"])

    def on_timer(self, key, time_ms, context):
        self.n.value += 1
        context.timers.register(time_ms + 1000)
        if key == ("bad",):
            raise ValueError("too hot")
        yield {"user": key[0], "n": self.n.value}


class PickyInBatches(Picky):
    def on_timers(self, batch, context):
        if "bad" in batch["user"].to_pylist():
            raise ValueError("too hot")
        yield pa.record_batch({"user": batch["user"], "n": batch["_event_time_ms"]})


class Mute(Picky):
    def on_timer(self, key, time_ms, context):
        yield {"user": key[0]} if key == ("bad",) else {"user": key[0], "n": 1}


class Output:
    has_channels = False

    def __init__(self):
        self.rows = []

    def emit(self, batch):
        self.rows += [row["user"] for row in batch.to_pylist()]


@pytest.fixture
def aside(tmp_path):
    isolation = Isolation(["timed"], lambda step: DeadLetterFile(tmp_path, "job", step, 0), UserErrors())
    yield isolation
    isolation.close()


def chain_of(process, isolation=None):
    states = process_states("timed", process)
    tables = StateTables(MemoryBackend(), 1 << 20, 8)
    ids = {state.name: number for number, state in enumerate(states)}
    context = OperatorContext(
        "job", "timed", 1, 0, 1, 8, clock=ManualClock(50_000), tables=tables.of("timed", ids)
    )
    operator = KeyedProcessOperator(KeyedProcessSpec(("user",), process, SCHEMA, states, KEYS))
    chain = OperatorChain([(operator, context)], Output(), lambda: None, tables, isolation)
    chain.open()
    rows = pa.record_batch({"user": ["ann", "bad", "bob", "ann"], "at": [10, 20, 30, 40]})
    if isolation is None:
        chain.process(weir.with_times(rows, 0, 0))
    else:
        for row in range(4):
            chain.process(weir.with_times(rows.slice(row, 1), 0, 0))
    return chain


@pytest.mark.parametrize(
    ("process", "told"),
    [
        (Picky, r"step 'timed': on_timer for key \('bad',\) at 20 raised ValueError: too hot"),
        (PickyInBatches, r"step 'timed': on_timers for 3 timers raised ValueError: too hot"),
        (Mute, r"step 'timed': .*missing \['n'\]"),
    ],
)
def test_an_error_is_about_rows_and_names_key_and_time(process, told, caplog):
    chain = chain_of(process)
    with pytest.raises(StepError, match=told) as caught:
        chain.on_watermark(100)
    assert caught.value.kind is FailureKind.ROWS
    assert caught.value.step == "timed"
    assert {"user": "bad", "timer_ms": 20} in caught.value.batch.to_pylist()
    UserErrors().tell("timed", caught.value.__cause__, caught.value.batch)
    if process is Picky:
        assert """step 'timed' failed on the row {"user":"bad","timer_ms":20}""" in caplog.text
        assert 'raise ValueError("too hot")' in caplog.text
    # Nothing has fired.
    with pytest.raises(StepError, match=told):
        chain.on_watermark(101)


@pytest.mark.parametrize("process", [Picky, PickyInBatches, Mute])
def test_a_timer_that_makes_a_step_raise_is_put_aside_with_its_key_and_time(process, aside, tmp_path):
    chain = chain_of(process, aside)
    chain.on_watermark(100)
    assert sorted(chain.output.rows) == ["ann", "ann", "bob"]
    assert aside.rejected == 1
    (file,) = tmp_path.glob("**/*.jsonl")
    (letter,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert json.loads(letter["raw"]) == {"user": "bad", "timer_ms": 20}
    assert "raised ValueError: too hot" in letter["reason"] or process is Mute
    chain.on_watermark(200)
    assert aside.rejected == 1
    assert chain.due_us() == 10_000
    chain.on_time()
    assert aside.rejected == 2
    aside.relax()
    chain.process(weir.with_times(pa.record_batch({"user": ["bad"], "at": [300]}), 0, 0))
    with pytest.raises(StepError):
        chain.on_watermark(300)
