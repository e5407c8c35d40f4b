"""Numbers and times of Avro and Protobuf that a column does not hold: nothing is cut, or taken in another unit."""

import datetime as dt
from decimal import Decimal

import polars as pl
import pytest
from google.protobuf import descriptor_pb2, message_factory

import weir
from tests.weir.operators.kafka.test_coded_values import avro, decode
from weir.operators.kafka.avro_values import without_logical_types
from weir.operators.kafka.protobuf_values import MessageTypes
from weir.specs.kafka_values import Descriptors

AT = dt.datetime(2024, 2, 29, 12, 30, 15, 678_000)
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
#: With it a schema is not for Polars.
ODD = {"name": "m", "type": {"type": "map", "values": "int"}}


def record(*fields, odd=False):
    given = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "R", "fields": [*given, *([ODD] if odd else [])]}


def decoded(schema, rows, columns):
    plain = without_logical_types(schema)
    return decode(weir.Avro(schema=schema), [avro({**row, "m": {}}, plain) for row in rows], columns)


def _units(at, per_s):
    return (at - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * per_s // 1_000_000


@pytest.mark.parametrize("odd", [False, True], ids=["at once", "record by record"])
@pytest.mark.parametrize(("kind", "per_s", "unit"), [(MICROS, 10**6, "ms"), (MILLIS, 10**3, "us")])
def test_times_within_others_are_in_the_units_of_the_schema(odd, kind, per_s, unit):
    inner = {"type": "record", "name": "In", "fields": [{"name": "at", "type": kind}]}
    schema = record(
        ("stops", {"type": "array", "items": kind}),
        ("inner", inner),
        ("listed", {"type": "array", "items": "In"}),
        odd=odd,
    )
    number = _units(AT, per_s)
    row = {"stops": [number], "inner": {"at": number}, "listed": [{"at": number}]}
    of_unit = pl.Datetime(unit)
    lists = {"stops": pl.List(of_unit)}
    assert decoded(schema, [row], lists) == ([{"stops": [AT]}], {})
    nested = lists | {"inner": pl.Struct({"at": of_unit}), "listed": pl.List(pl.Struct({"at": of_unit}))}
    assert decoded(schema, [row], nested) == (
        [{"stops": [AT], "inner": {"at": AT}, "listed": [{"at": AT}]}],
        {},
    )


def test_times_within_others_with_more_digits_are_told_by_their_path():
    inner = {"type": "record", "name": "In", "fields": [{"name": "at", "type": MICROS}]}
    rows = [{"inner": {"at": 1_000}}, {"inner": {"at": 1_001}}]
    found, bad = decoded(record(("inner", inner)), rows, {"inner": pl.Struct({"at": pl.Datetime("ms")})})
    assert found == [{"inner": {"at": dt.datetime(1970, 1, 1, 0, 0, 0, 1_000)}}]
    assert list(bad) == [1]
    assert "inner.at has more digits than ms" in bad[1]


@pytest.mark.parametrize("odd", [False, True], ids=["at once", "record by record"])
def test_numbers_of_avro_are_not_cut(odd):
    schema = record(("x", "double"), ("xs", {"type": "array", "items": "double"}), odd=odd)
    rows = [{"x": x, "xs": [x]} for x in (2.0, 1.5, 1e300)]
    found, bad = decoded(schema, rows, {"x": int})
    assert found == [{"x": 2}]
    assert sorted(bad) == [1, 2]
    found, bad = decoded(schema, rows, {"xs": pl.List(pl.Float32)})
    assert (found, list(bad)) == ([{"xs": [2.0]}, {"xs": [1.5]}], [2])


def test_floats_are_no_decimals():
    wrong = "column 'x' is decimal.* but its schema has double"
    with pytest.raises(weir.GraphError, match=wrong):
        decoded(record(("x", "double")), [{"x": 0.1}], {"x": pl.Decimal(10, 2)})
    found = decoded(record(("x", "long")), [{"x": 7}], {"x": pl.Decimal(10, 2)})
    assert found == ([{"x": Decimal(7)}], {})


@pytest.mark.parametrize("odd", [False, True], ids=["at once", "record by record"])
def test_decimals_that_overflow_are_told(odd):
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 13, "scale": 0}
    data = (1_234_567_890_123).to_bytes(6, "big", signed=True)
    found, bad = decoded(record(("x", kind), odd=odd), [{"x": data}], {"x": pl.Decimal(38, 28)})
    assert (found, list(bad)) == ([], [0])


def test_numbers_of_protobuf_are_not_cut():
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="n", syntax="proto3")
    numbers = file.message_type.add(name="Numbers")
    numbers.field.add(name="x", number=1, type="TYPE_DOUBLE", label="LABEL_OPTIONAL")
    numbers.field.add(name="xs", number=2, type="TYPE_DOUBLE", label="LABEL_REPEATED")
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    kind = message_factory.GetMessageClass(MessageTypes.of_descriptors(Descriptors(data)).find("n.Numbers"))
    values = [kind(x=x, xs=[x]).SerializeToString() for x in (2.0, 1.5, 1e300)]
    value = weir.Protobuf("n.Numbers", descriptors=data)
    found, bad = decode(value, values, {"x": int})
    assert found == [{"x": 2}]
    assert sorted(bad) == [1, 2]
    found, bad = decode(value, values, {"x": pl.Float32, "xs": pl.List(pl.Int64)})
    assert (found, sorted(bad)) == ([{"x": 2.0, "xs": [2]}], [1, 2])
