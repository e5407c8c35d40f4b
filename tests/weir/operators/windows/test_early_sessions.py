"""What sessions with early results keep is read again as it was written."""

import numpy as np
import pyarrow as pa
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.clock import SystemClock
from weir.operators.windows.panes.making import make_window_operator
from weir.rows.records import user_columns, with_times
from weir.specs.window_updates import Trigger, WindowUpdates
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
AGGREGATES = (WindowAggregate("n", "count"), WindowAggregate("total", "sum", "v"))
SNAPSHOT = {
    "kind": "window_aggregate",
    "version": 1,
    "codec": {
        "values": 1,
        "keys": [["k", "bytes"]],
        "aggregates": [["count", None, "int64"], ["sum", "v", "int64"]],
        "window": {"kind": "session", "size_ms": 20, "step_ms": 20, "offset_ms": 0, "time": "event"},
        "sessions": 2,
    },
    "late_rows": 0,
}
#: Of key "a" the panes that end at 20 and 40: n, total, rows, told, first, last.
GOLDEN = {
    "accumulating": {
        "0003000500800000000000001461": "0132"
        "0100000000000000"
        "0300000000000000"
        "0100000000000000"
        "0100000000000000"
        "0f00000000000000"
        "0f00000000000000",
        "0003000500800000000000002861": "0132"
        "0200000000000000"
        "0900000000000000"
        "0200000000000000"
        "0100000000000000"
        "1e00000000000000"
        "2300000000000000",
    },
    "discarding": {
        "0003000500800000000000001461": "0130"
        "0000000000000000"
        "0000000000000000"
        "0000000000000000"
        "0000000000000000"
        "0f00000000000000"
        "0f00000000000000",
        "0003000500800000000000002861": "0132"
        "0100000000000000"
        "0500000000000000"
        "0100000000000000"
        "0000000000000000"
        "1e00000000000000"
        "2300000000000000",
    },
}


def opened(backend, results, restored=None):
    tables = StateTables(backend, 1 << 20, 4, range(4))
    spec = WindowAggregateSpec(
        ("k",), weir.session(20), AGGREGATES, SCHEMA, WindowUpdates(0, Trigger(10, "event"), results)
    )
    operator = make_window_operator(spec)
    context = OperatorContext(
        "job", "w", 1, 0, 1, 4, tables=tables.of("w", {"": 5}), restored=restored or {}, clock=SystemClock()
    )
    operator.open(context)
    return operator, tables


def told(batches):
    return [
        tuple(row[name] for name in user_columns(batch.schema))
        for batch in batches
        for row in batch.to_pylist()
    ]


def rows(*pairs):
    batch = pa.record_batch({"k": ["a"] * len(pairs), "v": [value for _, value in pairs]}, schema=SCHEMA)
    return with_times(batch, np.array([at for at, _ in pairs]), 0)


@pytest.mark.parametrize("results", ["accumulating", "discarding"])
def test_entries_of_the_golden_form_are_written_and_read(results):
    backend = MemoryBackend()
    operator, tables = opened(backend, results)
    list(operator.process(rows((15, 3), (30, 4))))
    assert told(operator.on_watermark(20)) == [("a", 15, 50, 2, 7)]
    list(operator.process(rows((35, 5))))
    tables.flush()
    found = {key.hex(): value.hex() for key, value in backend.scan() if key.endswith(b"a")}
    assert found == GOLDEN[results]
    codec = SNAPSHOT["codec"] | {"told": [results]}
    snapshot = SNAPSHOT | {"codec": codec}
    # The types of keys are said since then.
    assert operator.snapshot(1) == snapshot | {"codec": codec | {"keys": [["k", "string"]]}}
    backend = MemoryBackend()
    backend.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in GOLDEN[results].items()])
    operator, _ = opened(backend, results, {0: snapshot})
    expected = (3, 12) if results == "accumulating" else (1, 5)
    assert told(operator.on_watermark(30)) == [("a", 15, 55, *expected)]
    assert told(operator.on_watermark(56)) == ([("a", 15, 55, 3, 12)] if results == "accumulating" else [])
