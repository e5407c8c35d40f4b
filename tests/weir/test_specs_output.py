"""What the builder promises is what the operators give."""

import numpy as np
import pyarrow as pa
import pytest

from tests.weir.state.one_state import one_state
from weir.author.operator import OperatorContext
from weir.operators.registry import create_operator
from weir.rows.records import with_system_columns
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.state.stores.memory import MemoryBackend

TYPES = [pa.int8(), pa.int64(), pa.uint32(), pa.float32(), pa.float64()]


@pytest.mark.parametrize("emit", ["per_event", "per_batch"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_aggregates_have_the_promised_columns(dtype, emit):
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("x", dtype)])
    functions = ["count", "sum", "min", "max", "mean"]
    aggregates = (Aggregate("n", "count"), *(Aggregate(f"{name}_x", name, "x") for name in functions))
    spec = KeyedAggregateSpec(("k",), aggregates, emit)
    user = pa.RecordBatch.from_pydict({"k": ["a", "b", "a"], "x": [1, 2, 3]}, schema=schema)
    batch = with_system_columns(user, np.arange(3), np.arange(3))
    operator = create_operator(spec)
    operator.open(OperatorContext("job", "totals", 0, 0, 1, tables=one_state(MemoryBackend())))
    (result,) = operator.process(batch)
    promised = spec.output_schema("totals", (schema,))
    assert result.schema.names == [*promised.names, "_event_time_ms", "_ingest_time_us"]
    assert result.schema.types[: len(promised)] == promised.types
