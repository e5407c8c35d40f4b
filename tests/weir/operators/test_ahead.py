"""Rows that are looked at before they are due leave a chain as if each poll had been processed alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from weir.author.operator import Operator, OperatorContext
from weir.operators.chain import OperatorChain
from weir.operators.stateless.expressions import FilterOperator
from weir.specs import FilterSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])


class Collects:
    """In place of the channels of a subtask."""

    def __init__(self):
        self.rows = []

    def emit(self, batch):
        self.rows += batch.to_pylist()


class Doubles(Operator):
    def process(self, batch):
        yield batch
        yield batch


def block(seed, rows=200):
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 40, rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers), pa.array([f"t{n}" for n in numbers])], schema=SCHEMA
    )


def chain_of(*operators, isolation=None):
    contexts = [OperatorContext("j", f"s{i}", 0, 0, 1) for i in range(len(operators))]
    tables = StateTables(MemoryBackend(), 1 << 20, 8)
    chain = OperatorChain(
        list(zip(operators, contexts, strict=True)), Collects(), lambda: None, tables, isolation
    )
    chain.open()
    return chain


def keeps(predicate):
    return FilterOperator(FilterSpec(predicate))


SOME = pl.col("n") % 4 != 0
NONE, ALL = pl.col("n") < 0, pl.col("n") >= 0
CHAINS = {
    "none": (),
    "some": (SOME,),
    "all": (ALL,),
    "no rows": (NONE,),
    "two": (SOME, pl.col("n") > 7),
    "none left": (NONE, SOME),
    "three": (ALL, SOME, pl.col("n") < 20),
}


@pytest.mark.parametrize("predicates", CHAINS.values(), ids=list(CHAINS))
@pytest.mark.parametrize("last", [(), (Doubles,)], ids=["filters", "more"])
def test_rows_leave_as_if_each_poll_were_processed_alone(predicates, last):
    if not predicates and last:
        pytest.skip("nothing can be known before")
    rows = block(len(predicates))
    one, other = (chain_of(*map(keeps, predicates), *(kind() for kind in last)) for _ in range(2))
    ahead = one.look_ahead(rows)
    random = np.random.default_rng(3)
    start = 0
    while start < rows.num_rows:
        stop = min(start + int(random.integers(1, 9)), rows.num_rows)
        one.process_block(ahead, start, stop)
        other.process(rows.slice(start, stop - start))
        start = stop
        assert one.output.rows == other.output.rows
        assert one.rows_into == other.rows_into


def test_nothing_is_known_before_of_steps_that_must_see_their_rows():
    rows = block(0)
    assert chain_of(Doubles()).look_ahead(rows) is None
    # Rows may fail, or depend on each other.
    assert chain_of(keeps(pl.col("n") > pl.col("n").mean())).look_ahead(rows) is None
    assert chain_of(keeps(pl.col("text").str.to_integer() > 3)).look_ahead(rows) is None
    assert chain_of(keeps(SOME), isolation=object()).look_ahead(rows) is None


class Picks(Collects):
    """In place of channels to several consumers."""

    def __init__(self):
        super().__init__()
        self.picked = 0

    def emit_block(self, block, start, stop, rows):
        self.picked += 1
        assert block.window(start, stop).num_rows == rows
        self.emit(block.window(start, stop))


@pytest.mark.parametrize("predicates", CHAINS.values(), ids=list(CHAINS))
def test_an_output_that_picks_gets_the_rows_that_the_last_filter_keeps(predicates):
    tables = StateTables(MemoryBackend(), 1 << 20, 8)
    left, entered = [], []
    for output in (Collects(), Picks()):
        steps = [(keeps(item), OperatorContext("j", f"s{n}", 0, 0, 1)) for n, item in enumerate(predicates)]
        chain = OperatorChain(steps, output, lambda: None, tables)
        chain.open()
        for seed in range(3):
            chain.process(block(seed))
        left.append(output.rows)
        entered.append(chain.rows_into)
    assert left[0] == left[1]
    assert entered[0] == entered[1]
    # None is picked where a filter keeps all, or none is left.
    assert output.picked == (3 if 0 < len(left[0]) < 600 else 0)
