"""Cells of aggregates that were added: packed panes of before, and how many each aggregate has."""

import numpy as np
import pyarrow as pa
import pytest

from weir.keys.hashing import KeyColumn
from weir.operators.aggregation.fold_classes import cell_count
from weir.operators.windows.panes.folds import Folds
from weir.specs import Aggregate
from weir.specs.aggregate_functions import stored_cells
from weir.specs.windows import WindowAggregate
from weir.state.tables.panes.pane_packing import pack_pane, unpack_panes


@pytest.mark.parametrize("more", [0, 1, 9])
def test_panes_that_were_packed_before_aggregates_were_added(more):
    chosen = np.random.default_rng(4)
    groups = np.repeat(np.array([1, 5], dtype=np.uint16), 7)
    keys = KeyColumn(chosen.integers(0, 256, 14 * 8).astype(np.uint8), np.arange(0, 14 * 8 + 1, 8))
    cells, presence = chosen.integers(-9, 9, (14, 3)), np.full((14, 1), 5, dtype=np.uint8)
    pane = pack_pane(1000, keys, groups, cells, presence)
    found = unpack_panes([pane], 3 + more)
    assert found.cells.shape[1] == 3 + more
    assert not found.cells[:, 3:].any()
    assert (found.presence[:, 0] == 5).all()
    assert not found.presence[:, 1:].any()
    plain = unpack_panes([pane], 3)
    assert (found.cells[:, :3] == plain.cells).all()
    assert found.keys.data.tobytes() == plain.keys.data.tobytes()
    assert found.groups.tolist() == plain.groups.tolist()


def test_cells_of_every_function_are_as_many_as_the_state_has():
    """The layout of a step, which decides about changes, and the operators agree."""
    schema = pa.schema({"n": pa.int64(), "x": pa.float64(), "d": pa.decimal128(9, 2)})
    asked = [
        (name, "n", ()) for name in ("count", "sum", "min", "max", "mean", "first", "last", "count_distinct")
    ]
    asked += [(name, "d", ()) for name in ("sum", "min", "max", "mean", "count")]
    asked += [
        ("variance", "x", (1,)),
        ("stddev", "n", (0,)),
        ("largest", "n", (4,)),
        ("approx_distinct", "n", (0.02,)),
    ]
    asked += [("dropped", None, (3,)), ("count", None, ())]
    for function, column, parameters in asked:
        running = Aggregate("a", function, column, None, parameters)
        assert stored_cells(schema, running) == cell_count((running,), schema), (function, column)
        window = WindowAggregate("a", function, column, None, parameters)
        assert stored_cells(schema, window) == Folds((window,), schema).cell_count, (function, column)
    quantile = WindowAggregate("a", "quantile", "x", None, (0.5, 0.01))
    assert stored_cells(schema, quantile) == Folds((quantile,), schema).cell_count
