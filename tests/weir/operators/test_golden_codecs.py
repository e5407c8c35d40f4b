"""What checkpoints say of the types of rows and keys: ``tests/golden/snapshots/codecs.json`` is of b9d1eb78."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from weir.author.operator import OperatorContext
from weir.errors import StateMismatchError
from weir.operators.joins.joined_rows import JoinedRows
from weir.operators.keyed.changelog_aggregates import ChangelogAggregateOperator
from weir.operators.keyed.state_codec import aggregate_codec, key_forms
from weir.operators.keyed.top import TopOperator
from weir.specs import Aggregate, JoinSpec, KeyedAggregateSpec, TopSpec
from weir.specs.changelog_aggregates import ChangelogAggregateSpec
from weir.specs.joins import JoinBounds
from weir.specs.window_kinds import Window
from weir.specs.window_process import ChangelogWindowSpec

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "snapshots" / "codecs.json").read_text())
TYPES = {
    "k": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("ms"),
    "zoned": pa.timestamp("us", "Europe/Berlin"),
    "time": pa.time64("ns"),
    "took": pa.duration("us"),
    "price": pa.decimal128(10, 2),
    "x": pa.float64(),
    "small": pa.float32(),
    "n": pa.uint16(),
    "ok": pa.bool_(),
    "raw": pa.binary(),
    "tags": pa.list_(pa.string()),
    "place": pa.struct([pa.field("lat", pa.float64(), nullable=False), ("of", pa.list_(pa.int8()))]),
    "_change": pa.string(),
}
SCHEMA = pa.schema(list(TYPES.items()))
KEYS = ("k", "day", "at", "n")
TOP = TopSpec(KEYS, "x", 3)
COUNTED = ChangelogAggregateSpec(
    KEYS, (Aggregate("most", "max", "zoned", pl.col("x") > 1), Aggregate("total", "sum", "x"))
)
COUNTED_SCHEMA = pa.schema(
    [*(SCHEMA.field(name) for name in KEYS), ("most", TYPES["zoned"]), ("total", pa.float64())]
)
PAIRS = tuple((name, f"{name}_2") for name in ("x", "tags", "place"))
JOINED = JoinSpec(
    KEYS, KEYS, "left", JoinBounds(0, -5, 5), tuple((name, name) for name in ("zoned", "price")), PAIRS
)
JOINED_SCHEMA = pa.schema(
    [
        *(SCHEMA.field(name) for name in (*KEYS, "zoned", "price")),
        *((new, TYPES[name]) for name, new in PAIRS),
    ]
)
RUNNING = KeyedAggregateSpec(
    KEYS,
    tuple(Aggregate(f"{name}_max", "max", name) for name in TYPES if not pa.types.is_nested(TYPES[name])),
)
WINDOWS = ChangelogWindowSpec(KEYS, Window("tumbling", 10, 10), (), SCHEMA)


def restored(operator, kind, schema):
    """What is raised at a start from the golden snapshot, if anything."""
    snapshot = {"kind": kind, "version": 1, "codec": GOLDEN[kind]}
    operator.check_restored(
        OperatorContext("job", "step", 0, 0, 1, restored={0: json.loads(json.dumps(snapshot))}, schema=schema)
    )


def with_type(schema, name, dtype):
    return schema.set(schema.get_field_index(name), pa.field(name, dtype))


def test_rows_and_keys_of_checkpoints_of_before_are_read():
    restored(TopOperator(TOP), "top", SCHEMA)
    restored(ChangelogAggregateOperator(COUNTED), "changelog_aggregate", COUNTED_SCHEMA)
    assert json.loads(json.dumps(JoinedRows(JOINED, JOINED_SCHEMA).describe())) == GOLDEN["join"]
    assert aggregate_codec(RUNNING, SCHEMA).to_json() == GOLDEN["keyed_aggregate"]
    assert key_forms(SCHEMA, list(TYPES)) == GOLDEN["key_forms"]
    assert WINDOWS.kept_form == GOLDEN["kept_form"]


@pytest.mark.parametrize("name", [name for name in TYPES if name != "_change"])
def test_a_column_of_another_type_is_refused(name):
    others = {"zoned": pa.timestamp("us", "UTC"), "tags": pa.list_(pa.int8()), "price": pa.decimal128(10, 3)}
    changed = with_type(SCHEMA, name, others.get(name, pa.int64()))
    with pytest.raises(StateMismatchError, match="the checkpoint's rows are"):
        restored(TopOperator(TOP), "top", changed)
    kept = dataclasses.replace(WINDOWS, input_schema=changed)
    assert kept.kept_form != WINDOWS.kept_form
    if name in COUNTED_SCHEMA.names:
        with pytest.raises(StateMismatchError, match="the checkpoint's aggregates are"):
            restored(
                ChangelogAggregateOperator(COUNTED),
                "changelog_aggregate",
                with_type(COUNTED_SCHEMA, name, changed.field(name).type),
            )
