"""Times of rows become those of Avro, and are the same times when they are read."""

import datetime as dt
import json

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.operators.kafka.registry_server import RegistryServer
from tests.weir.operators.kafka.test_coded_values import decode
from weir.errors import InputError
from weir.operators.kafka.avro_encoding import avro_schema_of
from weir.operators.kafka.coding import ValueEncoder

AT = dt.datetime(2024, 2, 29, 12, 30, 15, 678_000)
TYPES = {
    "s": pa.timestamp("s"),
    "ms": pa.timestamp("ms"),
    "us": pa.timestamp("us"),
    "utc": pa.timestamp("us", "UTC"),
    "day": pa.date32(),
    "time_ms": pa.time32("ms"),
    "time_us": pa.time64("us"),
    "time_ns": pa.time64("ns"),
    "list": pa.list_(pa.timestamp("ms")),
    "inner": pa.struct([("at", pa.timestamp("us")), ("n", pa.int64())]),
}
ROWS = pa.RecordBatch.from_pylist(
    [
        {"s": AT.replace(microsecond=0), "ms": AT, "us": AT, "utc": AT.replace(tzinfo=dt.UTC),
         "day": AT.date(), "time_ms": AT.time(), "time_us": AT.time(), "time_ns": AT.time(), "list": [AT, None],
         "inner": {"at": AT, "n": 1}},
        dict.fromkeys(TYPES),
        {name: dt.datetime(1960, 1, 2, 3, 4, 5) for name in ("s", "ms", "us")},
    ],
    schema=pa.schema(TYPES),
)  # fmt: skip


def test_times_come_back_as_they_were(monkeypatch):
    # Nothing depends on where the process is.
    monkeypatch.setenv("TZ", "America/New_York")
    with RegistryServer() as registry:
        value = weir.Avro(registry=registry.url)
        values = ValueEncoder(value, "t", "sink s").encode(ROWS)
        columns = {name: weir.Nullable(dtype) for name, dtype in TYPES.items()}
        assert decode(value, values, columns) == (ROWS.to_pylist(), {})
    types = {
        item["name"]: item["type"][1] for item in json.loads(avro_schema_of(ROWS.schema, "Row"))["fields"]
    }
    assert types["us"] == {"type": "long", "logicalType": "local-timestamp-micros"}
    assert types["utc"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert types["day"] == {"type": "int", "logicalType": "date"}
    assert types["time_ms"] == {"type": "int", "logicalType": "time-millis"}
    assert types["list"]["items"][1]["logicalType"] == "local-timestamp-millis"


def test_times_are_written_in_the_units_of_a_given_schema():
    fields = [
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "stops", "type": {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "raw", "type": "long"},
    ]  # fmt: skip
    value = weir.Avro(schema={"type": "record", "name": "R", "fields": fields})
    rows = pa.RecordBatch.from_pylist(
        [{"at": AT, "stops": [AT], "day": AT.date(), "raw": AT}],
        schema=pa.schema(
            {"at": pa.timestamp("us"), "stops": pa.list_(pa.timestamp("us")), "day": pa.date32(),
             "raw": pa.timestamp("us")}
        ),
    )  # fmt: skip
    values = ValueEncoder(value, "t", "sink s").encode(rows)
    ms = int(AT.replace(tzinfo=dt.UTC).timestamp() * 1000)
    columns = {"at": int, "stops": pa.list_(pa.int64()), "day": pl.Date, "raw": int}
    wanted = {"at": ms, "stops": [ms], "day": AT.date(), "raw": ms * 1000}
    assert decode(value, values, columns) == ([wanted], {})
    finer = rows.set_column(0, "at", pa.array([AT.replace(microsecond=1)], pa.timestamp("us")))
    with pytest.raises(InputError, match=r"sink s: a row does not fit the schema of the values .*lose data"):
        ValueEncoder(value, "t", "sink s").encode(finer)


def test_what_has_no_form_is_told():
    rows = pa.RecordBatch.from_arrays([pa.array([None], pa.duration("us"))], ["x"])
    with (
        RegistryServer() as registry,
        pytest.raises(InputError, match=r"column x of type .* has no form in Avro"),
    ):
        ValueEncoder(weir.Avro(registry=registry.url), "t", "sink s").encode(rows)


def test_times_with_more_digits_than_their_column_are_told():
    fields = [{"name": "at", "type": {"type": "long", "logicalType": "local-timestamp-micros"}}]
    value = weir.Avro(schema={"type": "record", "name": "R", "fields": fields})
    times = [AT, AT.replace(microsecond=123_456), AT]
    rows = pa.RecordBatch.from_pylist(
        [{"at": at} for at in times], schema=pa.schema({"at": pa.timestamp("us")})
    )
    values = ValueEncoder(value, "t", "sink s").encode(rows)
    good, bad = decode(value, values, {"at": pl.Datetime("ms")})
    assert good == [{"at": AT}, {"at": AT}]
    assert bad == {1: "field at has more digits than ms: '2024-02-29 12:30:15.123456'; declare it finer"}
