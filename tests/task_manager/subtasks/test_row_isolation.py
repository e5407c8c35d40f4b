"""Rows and timers of a keyed step that are put aside for what the step *returned*: state is as if they never came."""

import pyarrow as pa
import pytest

import weir
from task_manager.subtasks.isolation import Isolation
from weir.author.operator import OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.operators.chain import OperatorChain
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.operators.user_errors import UserErrors
from weir.specs import KeyedProcessSpec, SideOutput
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

KEYS = pa.schema({"user": pa.string()})
NUMBER = pa.field("n", pa.int64(), nullable=False)
SCHEMA = pa.schema([pa.field("user", pa.string()), NUMBER])

#: What a step may make of the row or the timer that is wrong.
WRONG = {
    "column": {"user": "ann"},
    "type": {"user": "ann", "n": "three"},
    "null": {"user": "ann", "n": None},
    "side column": weir.side("told", {"x": 1}),
    "side type": weir.side("told", {"n": "three"}),
    "side null": weir.side("told", {"n": None}),
    "no dict": 3,
}


def counting(wrong):
    """A process that counts rows and timers by user; of bad ones it hands on what is wrong."""

    class Counting(weir.KeyedProcess):
        n = weir.ValueState(int, default=0)
        seen = weir.ListState(int)

        def process(self, key, row, context):
            self.n.value += 1
            self.seen.append(row["at"])
            if row["at"]:
                context.timers.register(row["at"])
            elif row["bad"]:
                yield wrong
            yield {"user": key[0], "n": self.n.value + 100 * len(self.seen)}

        def on_timer(self, key, time_ms, context):
            self.n.value += 1
            self.seen.append(time_ms)
            if time_ms == 20:
                # More than one batch has: the first ones must not have left.
                yield from [{"user": "early", "n": 0}] * 5
                yield wrong
            yield {"user": key[0], "n": self.n.value + 100 * len(self.seen)}

    return Counting


class Output:
    has_channels = False

    def __init__(self):
        self.rows = []

    def emit(self, batch):
        self.rows += [(row["user"], row["n"]) for row in batch.to_pylist()]

    def emit_side(self, output, batch):
        self.rows += batch.to_pylist()


@pytest.fixture
def aside(tmp_path):
    isolation = Isolation(["timed"], lambda step: DeadLetterFile(tmp_path, "job", step, 0), UserErrors())
    yield isolation
    isolation.close()


def chain_of(process, isolation):
    states = process_states("timed", process)
    tables = StateTables(MemoryBackend(), 1 << 20, 8)
    ids = {state.name: number for number, state in enumerate(states)}
    sides = (SideOutput("told", pa.schema([NUMBER])),)
    context = OperatorContext(
        "job",
        "timed",
        1,
        0,
        1,
        8,
        batch_size=4,
        tables=tables.of("timed", ids),
        sides_read=frozenset(["told"]),
    )
    operator = KeyedProcessOperator(KeyedProcessSpec(("user",), process, SCHEMA, states, KEYS, sides))
    chain = OperatorChain([(operator, context)], Output(), lambda: None, tables, isolation)
    chain.open()
    return chain


def rows_of(*rows):
    columns = {"user": ["ann"] * len(rows), "at": [at for at, _ in rows], "bad": [bad for _, bad in rows]}
    return weir.with_times(pa.record_batch(columns), 0, 0)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_row_put_aside_for_what_was_returned_leaves_no_change(wrong, aside):
    chain = chain_of(counting(wrong), aside)
    chain.process(rows_of((0, False), (0, True), (0, False)))
    assert aside.rejected == 1
    assert chain.output.rows == [("ann", 101), ("ann", 202)]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_timer_put_aside_for_what_was_returned_leaves_no_change(wrong, aside):
    chain = chain_of(counting(wrong), aside)
    chain.process(rows_of((10, False), (20, False), (30, False)))
    chain.output.rows.clear()
    chain.on_watermark(100)
    assert aside.rejected == 1
    assert chain.output.rows == [("ann", 404), ("ann", 505)]
