"""``window_top`` after a change of the types of its rows: right from scratch, or refused; and what savepoints have."""

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import weir
from benchmarks.changed.trying import planned
from weir import testing
from weir.author.operator import OperatorContext
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.dataflow.streams import WindowResults
from weir.errors import StateMismatchError, WeirError
from weir.operators.windows.rows.window_top import make_window_top
from weir.savepoints.changes import Verdict
from weir.specs.row_order import OrderColumn
from weir.specs.window_top import WindowTopSpec
from weir.state.types import integer_reads

#: What savepoints have of :data:`SPECS`: of b7dad96b, which has one form for all integers, and of today.
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "snapshots" / "window_tops.json").read_text())
MOMENT = dt.datetime(2026, 11, 30, 12)
#: By the form of a type: the type, and values that other types have not, or as others.
TYPES = {
    "int8": (pl.Int8, [-128, 0, 1, 127]),
    "uint8": (pl.UInt8, [0, 1, 127, 255]),
    "int32": (pl.Int32, [-(2**31), -1, 1, 2**31 - 1]),
    "uint32": (pl.UInt32, [0, 1, 7, 2**32 - 1]),
    "int64": (pl.Int64, [-(2**63), -1, 1, 2**63 - 1]),
    "uint64": (pl.UInt64, [0, 1, 2**63, 2**64 - 1]),
    "bool": (pl.Boolean, [False, True, True, False]),
    "string": (str, ["", "a", "é", "zz"]),
    "binary": (bytes, [b"", b"a", b"\xff\xfe", b"zz"]),
    "date32[day]": (pl.Date, [dt.date(1969, 12, 31), dt.date(2026, 1, 1), dt.date(1, 1, 1), MOMENT.date()]),
    "timestamp[ms]": (pl.Datetime("ms"), [MOMENT, dt.datetime(1969, 1, 1), MOMENT, dt.datetime(2000, 1, 1)]),
    "timestamp[us]": (pl.Datetime("us"), [MOMENT, dt.datetime(1969, 1, 1), MOMENT, dt.datetime(2000, 1, 1)]),
    "double": (float, [0.0, -1.5, 1e300, 2.0]),
}
#: By one column, and by a list: these keep rows in another form.
KINDS = {"column": {"by": "n"}, "list": {"by": ["n"]}, "list, ties": {"by": ["n", "v"], "ties": True}}


def job(form, kind, columns=("v", "n")):
    dtype, _ = TYPES[form]
    types = {"window_start": int, "window_end": int, "at": int, "n": int, "v": dtype}
    flow = weir.Dataflow("tops")
    schema = {name: types[name] for name in ("window_start", "window_end", "at", *columns)}
    rows = flow.source("rows", weir.JsonLines("/absent", schema=schema, event_time="at"))
    keyed = rows.key_by("window_start", "window_end")
    WindowResults.of(keyed).window_top("step", rows=5, **KINDS[kind]).sink("out", weir.Collect())
    return flow


def given(form, first):
    _, values = TYPES[form]
    return [
        {"window_start": 0, "window_end": 1_000, "at": 1, "n": first + number, "v": value}
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", TYPES)
def test_rows_of_another_type_are_right_or_refused(before, kind, tmp_path):
    old = given(before, 4)
    with testing.start(job(before, kind)) as running:
        running.push("rows", old)
        path = running.savepoint(tmp_path / "savepoint")
    manifest = CheckpointStore.open_savepoint(str(path)).latest()
    for after in TYPES:
        new = given(after, 0)
        if before != after and not integer_reads(before, after):
            found = planned(job(after, kind).build(), manifest, allow_dropped=False)
            (refused,) = (each for each in found if each.step == "step")
            assert refused.verdict is Verdict.REFUSED, after
            assert f"v: {before}" in refused.reason
            assert f"v: {after}" in refused.reason
            continue
        with testing.start(job(after, kind), {"rows": ()}, from_savepoint=path) as running:
            running.push("rows", new)
            found = [(row["n"], row["v"]) for row in running.finish()["out"]]
        best = sorted([*old, *new], key=lambda row: -row["n"])[:5]
        assert found == [(row["n"], row["v"]) for row in best], after


@pytest.mark.parametrize("kind", KINDS)
def test_columns_in_another_order_are_right_or_refused(kind, tmp_path):
    old, new = given("int64", 4), given("int64", 0)
    with testing.start(job("int64", kind)) as running:
        running.push("rows", old)
        path = running.savepoint(tmp_path / "savepoint")
    changed = job("int64", kind, columns=("n", "v"))
    if kind != "column":
        with pytest.raises(WeirError, match="columns"):
            testing.start(changed, {"rows": []}, from_savepoint=path)
        return
    with testing.start(changed, {"rows": ()}, from_savepoint=path) as running:
        running.push("rows", new)
        found = [(row["n"], row["v"]) for row in running.finish()["out"]]
    assert found == [(row["n"], row["v"]) for row in sorted([*old, *new], key=lambda row: -row["n"])[:5]]


def spec(order, **types):
    columns = {"window_start": pa.int64(), "window_end": pa.int64(), "n": pa.int32(), "word": pa.string()}
    columns |= {"raw": pa.binary(), "ok": pa.bool_(), "at": pa.timestamp("ms")} | types
    return WindowTopSpec(
        ("window_start", "window_end"), "n", 3, False, pa.schema(list(columns.items())), order
    )


ORDERS = {"column": (), "list": (OrderColumn("n", ascending=False),)}


def restored(codec, made):
    """What is raised at a start from a snapshot, if anything."""
    snapshot = {"kind": "keyed_process", "version": 1, "codec": codec}
    schema = made.told_schema
    context = OperatorContext(
        "job", "step", 0, 0, 1, restored={0: snapshot}, schema=schema, input_schema=schema
    )
    make_window_top(made).check_restored(context)


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("version", ["before", "today"])
def test_savepoints_of_before_and_of_today_are_read(version, kind):
    made = spec(ORDERS[kind])
    form = make_window_top(made).user.state_form
    assert json.loads(json.dumps(form)) == GOLDEN["today"][kind]["form"]
    restored(GOLDEN[version][kind], made)
    for name, dtype in (("n", pa.bool_()), ("n", pa.string()), ("ok", pa.int8()), ("at", pa.timestamp("us"))):
        with pytest.raises(StateMismatchError, match="the checkpoint has"):
            restored(GOLDEN[version][kind], spec(ORDERS[kind], **{name: dtype}))


@pytest.mark.parametrize("kind", ORDERS)
def test_savepoints_of_before_do_not_tell_integers_nor_texts_and_bytes_apart(kind):
    for name, dtype in (("n", pa.int8()), ("n", pa.uint64()), ("word", pa.binary()), ("raw", pa.string())):
        made = spec(ORDERS[kind], **{name: dtype})
        restored(GOLDEN["before"][kind], made)
        with pytest.raises(StateMismatchError, match="the checkpoint has"):
            restored(GOLDEN["today"][kind], made)
