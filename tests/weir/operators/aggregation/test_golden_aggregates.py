"""The bytes that aggregates keep: ``tests/golden/states/aggregates_v1.json`` stays as it is, and readable, for ever.

``aggregates_v2.json`` has sessions as they are written now: their entries are over by their time, and say so.
"""

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.operators.windows.panes.making import make_window_operator
from weir.rows.records import user_columns, with_times
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing.manual_clock import ManualClock

GOLDEN = Path(__file__).parents[3] / "golden" / "states"


#: In snapshots that are written now; those without it are read.
SAID_SINCE = {"tumbling": {"allowed_lateness_ms": 0}}


def golden_of(version, kind):
    return json.loads((GOLDEN / f"aggregates_v{version}.json").read_text())[kind]


SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.string()), ("x", pa.float64())])
ROWS = [("a", 5, "one", -2.5), ("", -7, None, 0.0), ("a", None, "two", 1e9), ("a", 5, "one", None)]
RUNNING = [
    ("spread", "variance", "x", (1,)),
    ("first", "first", "v", ()),
    ("last", "last", "x", ()),
    ("best", "largest", "v", (2,)),
    ("texts", "count_distinct", "t", ()),
    ("some", "count_distinct", "t", ()),
    ("about", "approx_distinct", "v", (0.2,)),
]
QUANTILE = ("median", "quantile", "x", (0.5, 0.01))


def kinds(make, quantile):
    listed = [*RUNNING, QUANTILE] if quantile else RUNNING
    conditions = {"some": pl.col("v") > 0}
    return tuple(
        make(name, function, column, conditions.get(name), numbers)
        for name, function, column, numbers in listed
    )


def made(kind):
    if kind == "running":
        spec = KeyedAggregateSpec(("k",), kinds(Aggregate, quantile=False))
        return KeyedAggregateOperator(spec), spec
    window = weir.session("10s") if kind == "session" else weir.tumbling("1m")
    spec = WindowAggregateSpec(("k",), window, kinds(WindowAggregate, quantile=True), SCHEMA)
    return make_window_operator(spec), spec


def opened(kind, backend, restored):
    operator, spec = made(kind)
    tables = StateTables(backend, 1 << 20, 4)
    context = OperatorContext(
        "job",
        "step",
        1,
        0,
        1,
        4,
        tables=tables.of("step", {name: number for number, name in enumerate(spec.state_names)}),
        restored=restored,
        clock=ManualClock(0),
    )
    operator.open(context)
    return operator, tables


def batch():
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*ROWS, strict=True), SCHEMA, strict=True)
    ]
    return with_times(pa.record_batch(columns, schema=SCHEMA), 1_000, 0)


def rows_of(batches):
    return [{name: row[name] for name in user_columns(b.schema)} for b in batches for row in b.to_pylist()]


@pytest.mark.parametrize(("version", "kind"), [(1, "running"), (1, "tumbling"), (2, "session")])
def test_the_bytes_of_aggregates_are_those_of_the_golden_file(version, kind):
    backend = MemoryBackend()
    operator, tables = opened(kind, backend, {})
    list(operator.process(batch()))
    tables.flush()
    found = {
        "snapshot": operator.snapshot(1),
        "entries": {key.hex(): value.hex() for key, value in backend.scan()},
    }
    golden = golden_of(version, kind)
    snapshot = golden["snapshot"] | SAID_SINCE.get(kind, {})
    # The types of keys are said since then, and texts are told from bytes.
    said = [
        [function, column, "string" if number == "bytes" else number]
        for function, column, number in snapshot["codec"]["aggregates"]
    ]
    snapshot["codec"] = snapshot["codec"] | {"keys": [["k", "string"]], "aggregates": said}
    assert found == golden | {"snapshot": snapshot}


@pytest.mark.parametrize(
    ("version", "kind"), [(1, "running"), (1, "tumbling"), (1, "session"), (2, "session")]
)
def test_what_is_in_the_golden_file_is_read(version, kind):
    golden = golden_of(version, kind)
    backend = MemoryBackend()
    backend.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in golden["entries"].items()])
    operator, _ = opened(kind, backend, {0: golden["snapshot"]})
    told = rows_of(operator.process(batch()) if kind == "running" else operator.finish())
    (row,) = [row for row in told if row["k"] == "a"][-1:]
    wanted = {"first": 5, "last": 1e9, "texts": 2, "some": 1, "about": 1, "best": [5, 5]}
    assert {name: row[name] for name in wanted} == wanted
