"""Rows of hot keys are added up by whichever way they come to an output."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from tests.task_manager.exchange.made_channels import batch, channel, drain, edge_of, never_waits
from tests.task_manager.exchange.test_rows_ahead import LateNumbers
from weir.author.operator import OperatorContext
from weir.clock import SystemClock
from weir.operators.keyed.hot_rows import HotRows
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.plan.graph import Exchange
from weir.protocol.routing import initial_table
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import one_state

SPEC = KeyedAggregateSpec(("key",), (Aggregate("c", "count"), Aggregate("s", "sum", "n")), "per_batch")


def send(output, way, rows):
    if way == "picked":
        output.emit_picked(rows, np.arange(0, rows.num_rows, 2))
    elif way == "late":
        output.emit_late(rows.drop_columns(["n"]), LateNumbers(rows.column("n")))
    else:
        output.emit(rows)


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("way", ["plain", "picked", "late"])
def test_totals_are_the_same_and_fewer_rows_are_sent(way, consumers):
    links = {index: channel(index) for index in range(consumers)}
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {index: link for index, (link, _) in links.items()},
        BatchPolicy(100_000, 10_000.0),
        initial_table(1, consumers, 128).group_to_subtask,
        HotRows(SPEC),
    )
    output = Output([edge], never_waits, SystemClock())
    random, counts, sums = np.random.default_rng(3), Counter(), Counter()
    for is_hot in (False, True, True, False, True):
        keys = [f"key-{number}" for number in random.integers(0, 5_000, 4_000)]
        if is_hot:
            keys[::3] = ["hot"] * len(keys[::3])
        rows = batch(keys)
        # After uniform keys some batches pass without a look.
        for _ in range(1 if is_hot else 16):
            send(output, way, rows)
            for key, number in list(zip(keys, range(len(keys)), strict=True))[:: 2 if way == "picked" else 1]:
                counts[key] += 1
                sums[key] += number
    output.finish()
    received, found = 0, {}
    for index, (_, inbox) in links.items():
        step = KeyedAggregateOperator(SPEC)
        tables = one_state(MemoryBackend(), 1, 1 << 22)
        step.open(OperatorContext("job", "totals", 1, index, consumers, tables=tables))
        for rows in drain(inbox):
            if isinstance(rows, pa.RecordBatch):
                received += rows.num_rows
                for out in step.process(rows):
                    found |= {row["key"]: (row["c"], row["s"]) for row in out.to_pylist()}
    assert found == {key: (counts[key], sums[key]) for key in counts}
    assert received < counts.total() - 2_000 // (2 if way == "picked" else 1)
