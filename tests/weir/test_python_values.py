"""Times of Arrow that Python has not: nanoseconds are cut, and what lies beyond the years 1 to 9999 is a bad row."""

import datetime as dt
import json

import polars as pl
import pyarrow as pa
import pytest

import weir
from task_manager.subtasks.isolation import Isolation
from weir import testing
from weir.author.operator import OperatorContext
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.stateless.async_map import AsyncMapOperator
from weir.operators.stateless.functions import FlatMapOperator, MapOperator
from weir.operators.user_errors import UserErrors
from weir.rows.python_values import row_dicts, row_json
from weir.specs import FlatMapSpec, MapSpec
from weir.specs.async_map import MapAsyncSpec

FINE = pa.timestamp("ns")
LONG_AGO, JUST_BEFORE = dt.datetime(1970, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)
#: Columns with two values each that Python has only in part, and what it has of them.
CUT = {
    "point": (pa.array([-1, 1_999], FINE), [JUST_BEFORE, LONG_AGO + dt.timedelta(microseconds=1)]),
    "duration": (pa.array([1_999, None], pa.duration("ns")), [dt.timedelta(microseconds=1), None]),
    "time": (pa.array([1_999, 1], pa.time64("ns")), [dt.time(microsecond=1), dt.time()]),
    "list": (pa.array([[1, None], None], pa.list_(FINE)), [[LONG_AGO, None], None]),
    "pair": (pa.array([[1, 2], None], pa.list_(FINE, 2)), [[LONG_AGO] * 2, None]),
    "struct": (pa.array([{"a": [1]}, None], pa.struct([("a", pa.large_list(FINE))])), [{"a": [LONG_AGO]}, None]),
}  # fmt: skip
#: Values that Python has not at all, with what a dead letter says of them.
BEYOND = {
    "date": (pa.array([2**30], pa.int32()).cast(pa.date32()), "<value out of range: 1073741824>"),
    "point": (pa.array([10**15], pa.timestamp("ms")), "<value out of range: 1000000000000000>"),
    "duration": (pa.array([2**62], pa.duration("ms")), f"{2**62} ms"),
    "list": (pa.array([[10**15]], pa.list_(pa.timestamp("ms"))), ["<value out of range: 1000000000000000>"]),
}


@pytest.mark.parametrize(("column", "wanted"), CUT.values(), ids=CUT)
def test_nanoseconds_are_cut_towards_the_past(column, wanted):
    batch = pa.record_batch({"value": column})
    assert [row["value"] for row in row_dicts(batch)] == wanted
    assert [row["value"] for row in row_dicts(batch.slice(1))] == wanted[1:]
    assert row_dicts(batch.slice(0, 0)) == []


@pytest.mark.parametrize(("column", "told"), BEYOND.values(), ids=BEYOND)
def test_what_python_has_not_is_refused_by_name_and_told_in_dead_letters(column, told):
    batch = pa.record_batch({"id": [1], "value": column})
    with pytest.raises(pa.ArrowInvalid, match="column 'value'"):
        row_dicts(batch)
    assert json.loads(row_json(batch)) == {"id": 1, "value": told}


def test_the_first_and_the_last_moment_pass():
    ends = [dt.datetime.min, dt.datetime.max]
    columns = {
        "at": pa.array(ends, pa.timestamp("us")),
        "utc": pa.array(ends, pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date.min, dt.date.max]),
        "took": pa.array([dt.timedelta.max.days * 86_400, 0], pa.duration("s")),
    }
    assert [(row["at"], row["day"]) for row in row_dicts(pa.record_batch(columns))] == [
        (at, at.date()) for at in ends
    ]
    zoned = pa.record_batch({"at": columns["utc"].cast(pa.timestamp("us", "Europe/Brussels"))})
    with pytest.raises(pa.ArrowInvalid):
        row_dicts(zoned)


def test_a_dead_letter_keeps_nanoseconds():
    batch = pa.record_batch({"at": pa.array([1], FINE), "took": pa.array([1], pa.duration("ns"))})
    assert json.loads(row_json(batch)) == {"at": "1970-01-01 00:00:00.000000001", "took": "1 ns"}


class Kept(weir.KeyedProcess):
    at = weir.ValueState(pl.Datetime("ns"))

    def process(self, key, row, context):
        self.at.value = row["at"]
        yield {"id": key[0], "at": row["at"]}


class Ruled(weir.BroadcastProcess):
    def on_broadcast(self, row, rules):
        rules["at"] = str(row["at"])

    def process(self, row, rules):
        yield row


async def same(row):
    return row


async def nothing_known(at):
    return {"known": str(at)}


STEPS = {
    "map": lambda s: s.map("step", lambda row: row),
    "flat_map": lambda s: s.flat_map("step", lambda row: [row]),
    "map_async": lambda s: s.map_async("step", same),
    "process": lambda s: s.key_by("id").process("step", Kept),
    "rules": lambda s: s.key_by("id").connect_broadcast("step", s.select("rules", "at"), Ruled),
    "lookup": lambda s: s.lookup("look", nothing_known, on="at", schema={"known": str}).drop("step", "known"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_functions_see_microseconds(step):
    flow = weir.Dataflow("fine")
    stream = flow.source("rows", weir.JsonLines("unused", schema={"id": int, "at": pl.Datetime("ns")}))
    step(stream).sink("out", weir.Collect())
    rows = pa.table({"id": [1], "at": pa.array([1_234], FINE)})
    found = testing.run(flow, {"rows": rows})["out"].to_dicts()
    assert found == [{"id": 1, "at": LONG_AGO + dt.timedelta(microseconds=1)}]


def changed(row):
    row["id"] = -row["id"]
    if row["id"] == -1:
        raise ValueError("one")
    return row


ROWS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms"))])
FUNCTIONS = {
    "map": MapOperator(MapSpec(changed, ROWS)),
    "flat_map": FlatMapOperator(FlatMapSpec(lambda row: [changed(row)], ROWS)),
}


async def changed_soon(row):
    return changed(row)


@pytest.mark.parametrize("kind", ["map", "flat_map", "map_async"])
def test_rows_with_such_values_are_put_aside_as_they_came(kind, tmp_path):
    """Also where the function has changed its dict before it raised."""
    operator = FUNCTIONS.get(kind) or AsyncMapOperator(MapAsyncSpec(changed_soon, ROWS, 10, 1_000, True))
    context = OperatorContext("job", "step", 0, 0, 1)
    operator.open(context)
    columns = {"id": [0, 1, 2, 3], "at": pa.array([0, 1, 10**15, None], pa.timestamp("ms"))}
    batch = weir.with_times(pa.record_batch(columns), 0, 0)
    isolation = Isolation(["step"], lambda step: DeadLetterFile(tmp_path, "job", step, 0), UserErrors())
    out = isolation.process(operator, context, batch)
    operator.close()
    isolation.close()
    assert [id for part in out for id in part["id"].to_pylist()] == [0, -3]
    letters = [
        json.loads(line) for path in tmp_path.rglob("*.jsonl") for line in path.read_text().splitlines()
    ]
    rows = [json.loads(letter["raw"]) for letter in letters]
    assert sorted(row["id"] for row in rows) == [1, 2]
    assert any("column 'at'" in letter["reason"] for letter in letters)
