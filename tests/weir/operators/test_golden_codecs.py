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
from weir.operators.keyed.state_codec import (
    aggregate_codec,
    check_aggregate_codecs,
    codec_from_json,
    fits_key_forms,
    key_form,
    key_forms,
)
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
#: What today's checkpoints say of keys.
KEY_FORMS = [
    *("string", "date32[day]", "timestamp[ms]", "timestamp[us, tz=Europe/Berlin]", "time64[ns]"),
    *("duration[us]", "uint16", "bool", "binary"),
]
KEYABLE = ("k", "day", "at", "zoned", "time", "took", "n", "ok", "raw")
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
    check_aggregate_codecs(
        "step", [codec_from_json(GOLDEN["keyed_aggregate"])], aggregate_codec(RUNNING, SCHEMA)
    )
    assert fits_key_forms([GOLDEN["key_forms"][list(TYPES).index(name)] for name in KEYABLE], KEY_FORMS)
    assert WINDOWS.kept_form == GOLDEN["kept_form"]


def test_keys_are_read_where_each_stored_value_is_one_of_todays_type():
    assert key_forms(SCHEMA, KEYABLE) == KEY_FORMS
    same = [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.string()]
    assert {key_form(pa.schema([("k", dtype)]), "k") for dtype in same} == {"string"}
    bits = (8, 16, 32, 64)
    signs = (("", ""), ("u", "u"), ("u", ""))
    fits = {(f"{x}int{a}", f"{y}int{b}") for x, y in signs for a in bits for b in bits if a < b}
    # Of earlier versions, which do not tell these apart.
    fits |= {("integer", each) for each in ("bool", "int8", "int64", "uint64")}
    fits |= {("bytes", each) for each in ("string", "binary", "fixed_size_binary[16]")}
    forms = {each for pair in fits for each in pair} | set(KEY_FORMS)
    found = {(a, b) for a in forms for b in forms if a != b and fits_key_forms([a], [b])}
    integers = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    assert found == fits | {("integer", each) for each in integers}


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
