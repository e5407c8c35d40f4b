"""Values in Avro and Protobuf, with and without a registry, in and out."""

import base64
import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory

import weir
from tests.weir.operators.kafka.registry_server import RegistryServer
from tests.weir.operators.kafka.test_records import Record
from weir.errors import FailureKind, InputError
from weir.operators.kafka.avro_values import without_logical_types
from weir.operators.kafka.coding import ValueEncoder
from weir.operators.kafka.protobuf_values import MessageTypes
from weir.operators.kafka.records import RecordDecoder
from weir.specs.kafka_values import Descriptors

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "page", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "buyer",
            "type": {"type": "record", "name": "Buyer", "fields": [{"name": "age", "type": "int"}]},
        },
    ],
}
COLUMNS = {
    "id": int,
    "page": weir.Nullable(str),
    "at": int,
    "kind": str,
    "tags": pa.list_(pa.string()),
    "age": int,
}
ROWS = [
    {"id": n, "page": None if n % 3 else f"page {n}", "at": 1_700_000_000_000 + n, "kind": "AB"[n % 2],
     "tags": ["x"] * (n % 3), "buyer": {"age": 20 + n}}
    for n in range(7)
]  # fmt: skip
EXPECTED = [{**{k: v for k, v in row.items() if k != "buyer"}, "age": row["buyer"]["age"]} for row in ROWS]


@pytest.fixture
def registry():
    with RegistryServer() as server:
        yield server


def avro(row, schema=ORDER):
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
    return file.getvalue()


def framed(number, body):
    return b"\0" + number.to_bytes(4, "big") + body


def decode(value, values, columns=COLUMNS, **settings):
    """Rows and reasons by the number of the record."""
    spec = weir.Kafka(bootstrap="b:1", topics="t", schema=columns, value=value, **settings).to_spec()
    decoder = RecordDecoder(spec, 100, "source s")
    rows, bad = decoder.decode([Record(item, offset=n) for n, item in enumerate(values)])
    return rows.to_pylist(), {item.number: item.reason for item in bad}


@pytest.mark.parametrize("odd", [False, True], ids=["at once", "record by record"])
def test_avro_records_of_a_given_schema(odd):
    schema = ORDER
    rows = ROWS
    if odd:
        # Polars reads no maps.
        schema = {
            **ORDER,
            "fields": [*ORDER["fields"], {"name": "m", "type": {"type": "map", "values": "int"}}],
        }
        rows = [{**row, "m": {"a": 1}} for row in ROWS]
    values = [avro(row, schema) for row in rows]
    found, bad = decode(weir.Avro(schema=schema), values, paths={"age": "buyer.age"})
    assert (found, bad) == (EXPECTED, {})


def test_bad_avro_records_are_told_and_the_others_are_rows():
    values = [avro(row) for row in ROWS]
    values[1] += b"x"
    values[3] = values[3][:-2]
    values[4] = None
    values[5] = b"\xff" * 20
    found, bad = decode(weir.Avro(schema=json.dumps(ORDER)), values, paths={"age": "buyer.age"})
    assert found == [EXPECTED[n] for n in (0, 2, 6)]
    assert bad[1] == "1 bytes after the Avro record"
    assert bad[4] == "the record has no value"
    assert all("not an Avro record of its schema" in bad[n] for n in (3, 5))
    assert sorted(bad) == [1, 3, 4, 5]


@pytest.mark.parametrize("gone", [(1,), (0, 1, 2)])
def test_tombstones_keep_their_place_among_avro_records(gone):
    schema = {"type": "record", "name": "N", "fields": [{"name": "name", "type": "string"}]}
    columns = {"code": str, "name": weir.Nullable(str)}
    made = weir.Kafka(
        bootstrap="b:1", topics="t", schema=columns, value=weir.Avro(schema=schema), parts={"code": "key"}
    )
    names = [None if n in gone else f"name {n}" for n in range(3)]
    records = [
        Record(name and avro({"name": name}, schema), b"%d" % number, number)
        for number, name in enumerate(names)
    ]
    rows, bad = RecordDecoder(made.to_spec(), 100, "source s").decode(records)
    assert (rows.to_pylist(), bad) == ([{"code": str(n), "name": name} for n, name in enumerate(names)], [])


def test_records_of_several_schemas_of_a_registry_keep_their_order(registry):
    later = {**ORDER, "fields": ORDER["fields"][:1]}
    first, second = registry.add(json.dumps(ORDER)), registry.add(json.dumps(later))
    values = [framed((first, second)[n % 2], avro(row, (ORDER, later)[n % 2])) for n, row in enumerate(ROWS)]
    values += [framed(99, b"x"), b"abc", framed(second, b"\x02")]
    columns = {"id": int, "page": weir.Nullable(str)}
    found, bad = decode(weir.Avro(registry=registry.url), values, columns)
    wanted = [(row["id"], None if row["id"] % 2 else row["page"]) for row in ROWS]
    assert [(row["id"], row["page"]) for row in found] == [*wanted, (1, None)]
    assert bad == {
        7: "schema 99 is not in the registry",
        8: "the value does not begin with the number of a schema",
    }
    # Each was asked for once, also the one that is not there.
    assert sorted(registry.asked) == [f"GET /schemas/ids/{number}" for number in (first, second, 99)]


def test_a_schema_that_does_not_fit_the_columns_makes_its_records_bad(registry):
    number = registry.add(
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]})
    )
    other = registry.add("{}", kind="JSON")
    body = avro({"id": "7"}, json.loads(registry.schemas[number]["schema"]))
    values = [framed(number, body), framed(other, b"{}")]
    found, bad = decode(weir.Avro(registry=registry.url), values, {"id": int})
    assert found == []
    assert bad == {
        0: "schema 1: column 'id' is int64, but its schema has string",
        1: "schema 2: its schema is of type JSON, not Avro",
    }
    _, bad = decode(weir.Avro(registry=registry.url), values[:1], {"no": int})
    assert bad == {0: "schema 1: its schema has no field no"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"no": int}, "its schema has no field no; correct"),
        ({"page": int}, "column 'page' is int64, but its schema has string; correct"),
        ({"id": str}, "column 'id' is string, but its schema has long"),
        ({"kind": bool}, "column 'kind' is bool, but its schema has enum"),
        ({"age": str}, "column 'age' is string, but its schema has int at buyer.age"),
        (
            {"buyer": pa.struct([("age", pa.string())])},
            "column 'buyer' is struct.* but its schema has record of age: int;",
        ),
        ({"tags": pa.list_(pa.int64())}, "column 'tags' is list.* but its schema has array of string;"),
        ({"tags": str}, "column 'tags' is string, but its schema has array"),
        ({"page": pl.List(pl.String)}, "column 'page' is list.* but its schema has string"),
        ({"id": pl.Date, "at": pl.Date}, "'at' is date32.* has long of logical type timestamp-millis"),
        ({"raw": pl.Decimal(9, 2)}, "column 'raw' is decimal.* but its schema has bytes"),
        ({"other": int}, "column 'other' is int64, but its schema has enum or string"),
    ],
)
def test_a_given_schema_that_does_not_fit_is_refused_when_the_job_is_built(columns, message):
    # The enumeration is referred to by its name.
    fields = [
        *ORDER["fields"],
        {"name": "raw", "type": "bytes"},
        {"name": "other", "type": ["null", "Kind", "string"]},
    ]
    schema = {**ORDER, "namespace": "shop", "fields": fields}
    paths = {"age": "buyer.age"} if "age" in columns else {}
    with pytest.raises(weir.GraphError, match=message):
        weir.Kafka(
            bootstrap="b:1", topics="t", schema=columns, value=weir.Avro(schema=schema), paths=paths
        ).to_spec()


MONEY = {
    "type": "record",
    "name": "Money",
    "fields": [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {
            "name": "tax",
            "type": {"type": "fixed", "name": "Tax", "size": 6, "logicalType": "decimal", "precision": 9, "scale": 3},
        },
        {
            "name": "parts",
            "type": {
                "type": "array",
                "items": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1},
            },
        },
        {"name": "stored", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
#: Unscaled integers of prices: the borders of one, two and three bytes, and a sign that has to be extended.
_UNSCALED = [0, 1, -1, 127, 128, -128, -129, 32_767, -32_769, 9_999_999_999]


@pytest.mark.parametrize("odd", [False, True], ids=["at once", "record by record"])
def test_decimals_and_times_of_avro_are_read_as_what_they_mean(odd):
    odd_field = {"name": "m", "type": {"type": "map", "values": "int"}}
    schema = {**MONEY, "fields": [*MONEY["fields"], *([odd_field] if odd else [])]}
    plain = without_logical_types(schema)
    values, expected = [], []
    for number in _UNSCALED:
        # As the specification of Avro says: two's complement, the highest byte first.
        data = number.to_bytes((number.bit_length() // 8) + 1, "big", signed=True)
        fixed = (number % 1000).to_bytes(6, "big", signed=True)
        row = {
            "price": data,
            "tax": fixed,
            "parts": [data[:1]],
            "stored": b"\x01",
            "at": 1_700_000_000_123,
            "m": {},
        }
        values.append(avro({name: row[name] for name in [each["name"] for each in plain["fields"]]}, plain))
        first = Decimal(int.from_bytes(data[:1], "big", signed=True))
        expected.append(
            {
                "price": Decimal(number) / 100,
                "tax": Decimal(number % 1000) / 1000,
                "parts": [first / 10],
                "stored": b"\x01",
                "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000),
            }
        )  # fmt: skip
    columns = {
        "price": pl.Decimal(20, 4),
        "tax": pl.Decimal(9, 3),
        "parts": pl.List(pl.Decimal(6, 1)),
        "stored": bytes,
        "at": pl.Datetime("us"),
    }
    assert decode(weir.Avro(schema=schema), values, columns) == (expected, {})
    # One that the column has no room for is put aside.
    found, bad = decode(weir.Avro(schema=schema), values, {**columns, "price": pl.Decimal(8, 2)})
    assert len(found) == len(values) - 1
    assert list(bad) == [len(values) - 1]


def test_decimals_become_avro_and_come_back(registry):
    rows = pa.record_batch(
        {"x": pa.array([Decimal("-12.34"), Decimal("99999999.99"), None], pa.decimal128(10, 2))}
    )
    values = ValueEncoder(weir.Avro(registry=registry.url), "t", "sink s").encode(rows)
    found, bad = decode(weir.Avro(registry=registry.url), values, {"x": weir.Nullable(pl.Decimal(10, 2))})
    assert (found, bad) == (rows.to_pylist(), {})
    given = {"type": "record", "name": "R", "fields": [{"name": "x", "type": MONEY["fields"][0]["type"]}]}
    values = ValueEncoder(weir.Avro(schema=given), "t", "sink s").encode(rows[:2])
    assert decode(weir.Avro(schema=given), values, {"x": pl.Decimal(10, 2)})[0] == rows[:2].to_pylist()


def test_schemas_that_refer_to_others(registry):
    registry.add(json.dumps(ORDER["fields"][5]["type"]), subject="buyer")
    whole = {"type": "record", "name": "R", "fields": [{"name": "buyer", "type": "Buyer"}]}
    number = registry.add(json.dumps(whole), references=[{"name": "Buyer", "subject": "buyer", "version": 1}])
    body = b"\x0e"
    found, bad = decode(
        weir.Avro(registry=registry.url), [framed(number, body)], {"age": int}, paths={"age": "buyer.age"}
    )
    assert (found, bad) == ([{"age": 7}], {})


def test_a_registry_that_is_away_or_refuses_is_told(registry):
    value = framed(registry.add(json.dumps(ORDER)), avro(ROWS[0]))
    registry.status = 503
    with pytest.raises(
        InputError, match=r"source s: the schema registry at http://\S+ does not answer: 503"
    ) as away:
        decode(weir.Avro(registry=registry.url), [value], {"id": int})
    assert away.value.failure_kind is FailureKind.OUTAGE
    with pytest.raises(InputError, match=r"does not answer: .*refused"):
        decode(weir.Avro(registry="http://127.0.0.1:1"), [value], {"id": int})
    with RegistryServer(user="weir:secret") as closed:
        closed.add(json.dumps(ORDER))
        with pytest.raises(InputError, match=r"refuses \(401\): Unauthorized; correct auth") as refused:
            decode(weir.Avro(registry=closed.url), [value], {"id": int})
        assert refused.value.failure_kind is FailureKind.PERMANENT
        spec = weir.Avro(registry=closed.url, auth="weir:secret")
        assert "secret" not in repr(spec)
        assert decode(spec, [value], {"id": int}) == ([{"id": 0}], {})


@pytest.mark.parametrize(
    ("code", "answer", "message"),
    [
        (404, b"<html>Not Found</html>", "answers 404 <html>Not Found</html>, as no schema registry does"),
        (
            404,
            b'{"error_code": 404, "message": "HTTP 404 Not Found"}',
            "answers 404 HTTP 404 Not Found, as no",
        ),
        (
            404,
            b'{"error": "there is no such page"}',
            "answers 404 .*, as no schema registry does; correct the",
        ),
        (200, b"\xff\xfe", "answers not in JSON"),
        (200, b"[]", "answers not with a JSON object"),
        (200, b'{"status": "RUNNING"}', "answers without 'schema'"),
    ],
)
def test_a_wrong_url_ends_the_job_and_no_record_goes_to_the_dead_letters(registry, code, answer, message):
    """All of them would go there, and nobody would notice: another server knows no schema."""
    registry.raw = code, answer
    with pytest.raises(InputError, match=message) as wrong:
        decode(weir.Avro(registry=registry.url), [framed(1, avro(ROWS[0]))], {"id": int})
    assert wrong.value.failure_kind is FailureKind.PERMANENT


def test_a_registry_that_dies_in_its_answer_is_away(registry):
    registry.raw = 200, b'{"sch', 100
    with pytest.raises(InputError, match="does not answer: IncompleteRead") as away:
        decode(weir.Avro(registry=registry.url), [framed(1, avro(ROWS[0]))], {"id": int})
    assert away.value.failure_kind is FailureKind.OUTAGE


def test_a_schema_that_refers_to_one_that_is_gone_is_asked_for_once(registry):
    whole = {"type": "record", "name": "R", "fields": [{"name": "buyer", "type": "Buyer"}]}
    number = registry.add(json.dumps(whole), references=[{"name": "Buyer", "subject": "buyer", "version": 1}])
    spec = weir.Kafka(
        bootstrap="b:1", topics="t", schema={"age": int}, value=weir.Avro(registry=registry.url)
    ).to_spec()
    decoder = RecordDecoder(spec, 100, "source s")
    for _ in range(2):
        rows, bad = decoder.decode([Record(framed(number, b"\x0e"), offset=0)])
        assert rows.num_rows == 0
        assert bad[0].reason == f"schema {number} refers to one that is not there: Schema not found"
    assert len(registry.asked) == 2


ROWS_OUT = pa.RecordBatch.from_pylist(
    [{"id": 1, "page": "a", "tags": ["x"]}, {"id": 2, "page": None, "tags": []}],
    schema=pa.schema({"id": pa.int64(), "page": pa.string(), "tags": pa.list_(pa.string())}),
)


def test_rows_become_avro_records_of_a_schema_that_is_registered(registry):
    values = ValueEncoder(weir.Avro(registry=registry.url), "t", "sink s").encode(ROWS_OUT)
    assert registry.subjects == {"t-value": [1]}
    columns = {"id": int, "page": weir.Nullable(str), "tags": pa.list_(pa.string())}
    assert decode(weir.Avro(registry=registry.url), values, columns) == (ROWS_OUT.to_pylist(), {})
    # Another process registers the same schema.
    assert ValueEncoder(weir.Avro(registry=registry.url), "t", "sink s").encode(ROWS_OUT) == values
    with pytest.raises(
        InputError, match=r"refuses \(409\): Schema being registered is incompatible; correct"
    ):
        ValueEncoder(weir.Avro(registry=registry.url), "t", "sink s").encode(ROWS_OUT.select(["id"]))


def test_rows_that_do_not_fit_the_schema_are_told():
    encoder = ValueEncoder(weir.Avro(schema=ORDER), "t", "sink s")
    with pytest.raises(InputError, match="sink s: a row does not fit the schema of the values"):
        encoder.encode(ROWS_OUT)


def proto_file():
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    buyer = file.message_type.add(name="Buyer")
    buyer.field.add(name="age", number=1, type="TYPE_INT32", label="LABEL_OPTIONAL")
    order = file.message_type.add(name="Order")
    for number, (name, type_, label) in enumerate(
        [("id", "TYPE_INT64", "LABEL_OPTIONAL"), ("tags", "TYPE_STRING", "LABEL_REPEATED")], 1
    ):
        order.field.add(name=name, number=number, type=type_, label=label)
    order.field.add(
        name="page", number=3, type="TYPE_STRING", label="LABEL_OPTIONAL", proto3_optional=True, oneof_index=0
    )
    order.oneof_decl.add(name="_page")
    order.field.add(name="kind", number=4, type="TYPE_ENUM", type_name=".shop.Kind", label="LABEL_OPTIONAL")
    order.field.add(
        name="buyer", number=5, type="TYPE_MESSAGE", type_name=".shop.Buyer", label="LABEL_OPTIONAL"
    )
    return file


DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()
PROTO_COLUMNS = {
    "id": int,
    "page": weir.Nullable(str),
    "tags": pa.list_(pa.string()),
    "kind": str,
    "age": int,
}


def messages():
    kind = message_factory.GetMessageClass(
        MessageTypes.of_descriptors(Descriptors(DESCRIPTORS)).find("shop.Order")
    )
    found = []
    for row in ROWS:
        message = kind(id=row["id"], tags=row["tags"], kind=row["kind"], buyer=row["buyer"])
        if row["page"] is not None:
            message.page = row["page"]
        found.append(message.SerializeToString())
    return found


PROTO_EXPECTED = [{key: value for key, value in row.items() if key != "at"} for row in EXPECTED]


def test_protobuf_messages_of_given_descriptors():
    value = weir.Protobuf("shop.Order", descriptors=DESCRIPTORS)
    values = [*messages(), b"\xff\xff", None]
    found, bad = decode(value, values, PROTO_COLUMNS, paths={"age": "buyer.age"})
    assert [{key: row[key] for key in PROTO_EXPECTED[0]} for row in found] == PROTO_EXPECTED
    assert sorted(bad) == [7, 8]
    assert "not a Protobuf message" in bad[7]
    with pytest.raises(InputError, match=r"the descriptors have no message shop\.Nothing"):
        decode(weir.Protobuf("shop.Nothing", descriptors=DESCRIPTORS), [], PROTO_COLUMNS)


def test_protobuf_messages_of_a_registry(registry):
    number = registry.add(base64.b64encode(proto_file().SerializeToString()).decode(), kind="PROTOBUF")
    # The second message of its file.
    values = [framed(number, b"\x02\x02" + body) for body in messages()]
    values.append(framed(number, b"\x02\x40"))
    found, bad = decode(
        weir.Protobuf(registry=registry.url), values, PROTO_COLUMNS, paths={"age": "buyer.age"}
    )
    assert [{key: row[key] for key in PROTO_EXPECTED[0]} for row in found] == PROTO_EXPECTED
    assert list(bad) == [7]


def test_rows_become_protobuf_messages_of_a_schema_that_is_registered(registry):
    value = weir.Protobuf("shop.Order", descriptors=DESCRIPTORS, registry=registry.url)
    values = ValueEncoder(value, "t", "sink s").encode(ROWS_OUT)
    assert values[0].startswith(framed(1, b"\x02\x02"))
    columns = {"id": int, "page": weir.Nullable(str), "tags": pa.list_(pa.string())}
    assert decode(weir.Protobuf(registry=registry.url), values, columns) == (ROWS_OUT.to_pylist(), {})
    wrong = pa.RecordBatch.from_pylist([{"nothing": 1}])
    with pytest.raises(InputError, match=r"message shop.Order has no field nothing"):
        ValueEncoder(value, "t", "sink s").encode(wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weir.Avro(schema="{"), "schema is no JSON"),
        (lambda: weir.Avro(schema="no/such.avsc"), "cannot read no/such.avsc"),
        (lambda: weir.Avro(schema={"type": "long"}), "not of a record"),
        (lambda: weir.Avro(registry="registry:8081"), "must be like 'http"),
        (lambda: weir.Avro(registry="http://user:password@registry"), "auth has user and password"),
        (lambda: weir.Avro(schema=ORDER, auth="a:b"), "auth is for a registry"),
        (lambda: weir.Protobuf("a.B"), "a registry, or descriptors"),
        (lambda: weir.Protobuf(descriptors=b"x"), "message is missing"),
        (
            lambda: weir.KafkaSink("t", bootstrap="b:1", value=weir.Protobuf(registry="http://r")),
            "needs descriptors",
        ),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(weir.GraphError, match=message):
        make()
