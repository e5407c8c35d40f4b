"""Rows of hot keys are added up by whichever way they come to an output."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from tests.task_manager.exchange.made_channels import batch, channel, drain, edge_of
from tests.task_manager.exchange.test_rows_ahead import LateNumbers
from tests.weir.state.one_state import one_state
from weir.author.operator import OperatorContext
from weir.clock import SystemClock
from weir.operators.keyed.hot_rows import HotRows
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.plan.graph import Exchange
from weir.protocol.routing import initial_table
from weir.rows.records import Block
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.state.stores.memory import MemoryBackend

SPEC = KeyedAggregateSpec(("key",), (Aggregate("c", "count"), Aggregate("s", "sum", "n")), "per_batch")


def send(output, way, rows):
    if way == "picked":
        picked = np.arange(0, rows.num_rows, 2)
        output.emit_block(Block(rows, picked), 0, rows.num_rows, len(picked))
    elif way == "late":
        late = Block(rows.drop_columns(["n"]), late=LateNumbers(rows.column("n")))
        output.emit_block(late, 0, rows.num_rows, rows.num_rows)
    else:
        output.emit(rows)


def totals_of(index, consumers, batches):
    """What a step makes of what it got; rows, and counts and sums by key."""
    step = KeyedAggregateOperator(SPEC)
    tables = one_state(MemoryBackend(), 1, 1 << 22)
    step.open(OperatorContext("job", "totals", 1, index, consumers, tables=tables))
    found = {}
    for rows in batches:
        for out in step.process(rows):
            found |= {row["key"]: (row["c"], row["s"]) for row in out.to_pylist()}
    return sum(rows.num_rows for rows in batches), found


@pytest.mark.parametrize(
    ("way", "consumers", "keeps_up"),
    [("plain", 1, False), ("plain", 3, False), ("plain", 3, True), ("picked", 3, False), ("late", 3, False)],
)
def test_rows_of_hot_keys_are_added_up_for_consumers_that_cannot_keep_up(way, consumers, keeps_up):
    links = {index: channel(index, elements_max=1_000 if keeps_up else 1) for index in range(consumers)}
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {index: link for index, (link, _) in links.items()},
        BatchPolicy(500, 10_000.0),
        initial_table(1, consumers, 128).group_to_subtask,
        HotRows(SPEC),
    )
    received = {index: [] for index in links}

    def take(timeout_s):
        for index, (_, inbox) in links.items():
            received[index] += [item for item in drain(inbox) if isinstance(item, pa.RecordBatch)]

    output = Output([edge], take, SystemClock())
    random, counts, sums = np.random.default_rng(3), Counter(), Counter()
    # After uniform keys some batches pass without a look.
    for is_hot in (True, True, *[False] * 16, True, True):
        keys = [f"key-{number}" for number in random.integers(0, 500, 3_000)]
        if is_hot:
            keys[::3] = ["hot"] * len(keys[::3])
        send(output, way, batch(keys))
        for number in range(0, len(keys), 2 if way == "picked" else 1):
            counts[keys[number]] += 1
            sums[keys[number]] += number
    output.finish()
    take(0.0)
    told = [totals_of(index, consumers, batches) for index, batches in received.items()]
    assert {key: each for _, found in told for key, each in found.items()} == {
        key: (counts[key], sums[key]) for key in counts
    }
    saved = counts.total() - sum(rows for rows, _ in told)
    assert saved == 0 if keeps_up else saved > 400
