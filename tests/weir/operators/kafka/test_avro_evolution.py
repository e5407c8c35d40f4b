"""Records of a registry that have other versions of their schema are read as those of a given one."""

import datetime as dt
import json
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.operators.kafka.registry_server import RegistryServer
from tests.weir.operators.kafka.test_coded_values import avro, decode, framed

OLD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "int"},
        {"name": "by", "type": {"type": "record", "name": "Buyer", "fields": [{"name": "name", "type": "string"}]}},
    ],
}  # fmt: skip
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long", "aliases": ["no", "number"]},
        {
            "name": "buyer",
            "aliases": ["by"],
            "type": {
                "type": "record",
                "name": "Buyer",
                "fields": [
                    {"name": "name", "type": "string"},
                    {"name": "age", "type": "int", "default": -1},
                ],
            },
        },
        {"name": "currency", "type": "string", "default": "EUR"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["x"]},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "default": "\u0001\u0000",
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1_000},
        {
            "name": "shop",
            "type": {"type": "record", "name": "Shop", "fields": [{"name": "city", "type": "string"}]},
            "default": {"city": "Ghent"},
        },
    ],
}
COLUMNS = {
    "id": int, "name": str, "age": int, "currency": str, "note": weir.Nullable(str),
    "tags": pa.list_(pa.string()), "raw": bytes, "price": pl.Decimal(9, 2), "at": pl.Datetime("us"), "city": str,
}  # fmt: skip
PATHS = {"name": "buyer.name", "age": "buyer.age", "city": "shop.city"}
DEFAULTS = {
    "age": -1, "currency": "EUR", "note": None, "tags": ["x"], "raw": b"\xff", "price": Decimal("2.56"),
    "at": dt.datetime(1970, 1, 1, 0, 0, 1), "city": "Ghent",
}  # fmt: skip


@pytest.fixture
def registry():
    with RegistryServer() as server:
        yield server


def test_records_of_all_versions_are_read_as_of_the_given_one(registry):
    old, new = registry.add(json.dumps(OLD)), registry.add(json.dumps(NEW))
    newest = {
        "id": 3, "buyer": {"name": "cem", "age": 30}, "currency": "USD", "note": "n", "tags": [],
        "raw": b"r", "price": Decimal("1.50"), "at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC), "shop": {"city": "Lier"},
    }  # fmt: skip
    values = [
        framed(old, avro({"number": 1, "by": {"name": "ann"}}, OLD)),
        framed(new, avro(newest, NEW)),
        framed(old, avro({"number": 2, "by": {"name": "bob"}}, OLD)),
        framed(old, b"\x02"),
    ]
    value = weir.Avro(registry=registry.url, schema=NEW)
    rows, bad = decode(value, values, COLUMNS, paths=PATHS)
    assert rows == [
        {"id": 1, "name": "ann", **DEFAULTS},
        {"id": 3, "name": "cem", "age": 30, "currency": "USD", "note": "n", "tags": [], "raw": b"r",
         "price": Decimal("1.50"), "at": dt.datetime(1970, 1, 1), "city": "Lier"},
        {"id": 2, "name": "bob", **DEFAULTS},
    ]  # fmt: skip
    assert list(bad) == [3]
    # Without it a field that an old record lacks makes that bad.
    _, bad = decode(weir.Avro(registry=registry.url), values[:1], {"currency": str})
    assert bad == {0: "schema 1: its schema has no field currency"}


def test_what_has_no_default_or_a_wrong_one_is_told(registry):
    number = registry.add(json.dumps(OLD))
    values = [framed(number, avro({"number": 1, "by": {"name": "ann"}}, OLD))]
    no_default = {**NEW, "fields": [{"name": "currency", "type": "string"}]}
    _, bad = decode(weir.Avro(registry=registry.url, schema=no_default), values, {"currency": str})
    assert bad == {0: "schema 1: its schema has no field currency"}
    wrong = {**NEW, "fields": [{"name": "currency", "type": "string", "default": 5}]}
    _, bad = decode(weir.Avro(registry=registry.url, schema=wrong), values, {"currency": str})
    assert bad == {0: "schema 1: the default of its given schema for field currency is no string"}
    with pytest.raises(weir.GraphError, match="column 'currency' is int64, but its schema has string"):
        decode(weir.Avro(registry=registry.url, schema=NEW), values, {"currency": int})
