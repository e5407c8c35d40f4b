"""Fields of Protobuf messages: Protobuf's own messages are values, and columns of another type are told."""

import base64
import datetime as dt
import subprocess
import sys

import polars as pl
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2

import weir
from tests.weir.operators.kafka.registry_server import RegistryServer
from tests.weir.operators.kafka.test_coded_values import decode, framed
from weir.errors import InputError
from weir.operators.kafka.coding import ValueEncoder

IMPORTS = [module.DESCRIPTOR for module in (timestamp_pb2, duration_pb2, wrappers_pb2)]


def visit_file():
    file = descriptor_pb2.FileDescriptorProto(name="visit.proto", package="web", syntax="proto3")
    file.dependency.extend(each.name for each in IMPORTS)
    visit = file.message_type.add(name="Visit")
    entry = visit.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    for number, (name, kind) in enumerate([("key", "TYPE_STRING"), ("value", "TYPE_INT32")], 1):
        entry.field.add(name=name, number=number, type=kind, label="LABEL_OPTIONAL")
    for number, (name, kind, label) in enumerate(
        [
            ("at", ".google.protobuf.Timestamp", "LABEL_OPTIONAL"),
            ("took", ".google.protobuf.Duration", "LABEL_OPTIONAL"),
            ("user", ".google.protobuf.StringValue", "LABEL_OPTIONAL"),
            ("stops", ".google.protobuf.Timestamp", "LABEL_REPEATED"),
            ("counts", ".web.Visit.CountsEntry", "LABEL_REPEATED"),
        ],
        1,
    ):
        visit.field.add(name=name, number=number, type="TYPE_MESSAGE", type_name=kind, label=label)
    visit.field.add(name="pages", number=9, type="TYPE_INT32", label="LABEL_OPTIONAL")
    return file


def descriptors():
    files = descriptor_pb2.FileDescriptorSet()
    for each in IMPORTS:
        each.CopyToProto(files.file.add())
    files.file.append(visit_file())
    return files.SerializeToString()


VALUE = weir.Protobuf("web.Visit", descriptors=descriptors())
AT = dt.datetime(2024, 2, 29, 12, 30, 15, 678_901)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"at": AT, "took": dt.timedelta(milliseconds=1_500), "user": "ann", "stops": [AT, AT],
         "counts": {"a": 1, "b": None}, "pages": 3},
        {"at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), "took": dt.timedelta(microseconds=-1),
         "user": None, "stops": [], "counts": {"a": None, "b": 2}, "pages": 0},
    ],
    schema=pa.schema(
        {"at": pa.timestamp("us"), "took": pa.duration("us"), "user": pa.string(),
         "stops": pa.list_(pa.timestamp("us")),
         "counts": pa.struct([("a", pa.int32()), ("b", pa.int32())]), "pages": pa.int64()}
    ),
)  # fmt: skip
COLUMNS = {name: weir.Nullable(ROWS.schema.field(name).type) for name in ROWS.schema.names}


def test_times_durations_and_wrappers_are_values_and_come_back():
    values = ValueEncoder(VALUE, "t", "sink s").encode(ROWS)
    assert decode(VALUE, values, COLUMNS) == (ROWS.to_pylist(), {})
    # Of other units, as integers of ms, and as what they are in the message.
    columns = {
        "at": pl.Datetime("ms", "UTC"), "took": int, "stops": pa.list_(pa.int64()),
        "user": weir.Nullable(pa.struct([("value", pa.string())])),
    }  # fmt: skip
    found, bad = decode(VALUE, values, columns)
    cut = AT.replace(microsecond=678_000, tzinfo=dt.UTC)
    assert (found[0]["at"], found[0]["took"], found[0]["user"]) == (cut, 1_500, {"value": "ann"})
    assert found[0]["stops"] == [int(cut.timestamp() * 1000)] * 2
    assert (found[1]["took"], found[1]["user"], bad) == (-1, None, {})


def test_integers_of_ms_become_times():
    rows = pa.RecordBatch.from_pylist([{"at": 1_700_000_000_123, "took": 5}])
    values = ValueEncoder(VALUE, "t", "sink s").encode(rows)
    assert decode(VALUE, values, {"at": int, "took": int})[0] == rows.to_pylist()
    wrong = pa.RecordBatch.from_pylist([{"at": "yesterday"}])
    with pytest.raises(InputError, match=r"a value of type str is no google\.protobuf\.Timestamp"):
        ValueEncoder(VALUE, "t", "sink s").encode(wrong)


def test_a_registered_schema_may_import_what_comes_with_protobuf():
    with RegistryServer() as registry:
        text = base64.b64encode(visit_file().SerializeToString()).decode()
        number = registry.add(text, kind="PROTOBUF")
        values = ValueEncoder(VALUE, "t", "sink s").encode(ROWS)
        found, bad = decode(
            weir.Protobuf(registry=registry.url), [framed(number, b"\0" + body) for body in values], COLUMNS
        )
        assert (found, bad) == (ROWS.to_pylist(), {})
    # Here the test has loaded them; a task manager has not.
    code = (
        "from weir.operators.kafka.protobuf_values import _well_known as known\n"
        "assert known('google/protobuf/wrappers.proto').message_type\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"pages": str}, r"column 'pages' is string, but message web\.Visit has int32; correct"),
        ({"pages": pa.list_(pa.int64())}, r"column 'pages' is list.* has int32;"),
        ({"at": str}, r"'at' is string, but message web\.Visit has message google\.protobuf\.Timestamp;"),
        ({"at": pl.Date}, r"'at' is date32"),
        ({"at": pa.struct([("seconds", pa.string())])}, "'at' is struct"),
        ({"stops": int}, r"'stops' is int64, but .* has repeated message google"),
        ({"counts": pa.list_(pa.int64())}, "'counts' is list.* has a map, which needs a struct column"),
        ({"counts": pa.struct([("a", pa.string())])}, "'counts' is struct"),
        ({"user": int}, r"'user' is int64, but .* has message google\.protobuf\.StringValue"),
        ({"no": int}, "has no field no;"),
        ({"x": int}, r"has no field stops\.seconds;"),
    ],
)
def test_a_column_of_another_type_is_refused_when_the_source_starts(columns, message):
    paths = {"x": "stops.seconds"} if "x" in columns else {}
    with pytest.raises(InputError, match=message):
        decode(VALUE, [], columns, paths=paths)
    # What may be null is null where there is no such field.
    if "no" in columns or "x" in columns:
        column = {name: weir.Nullable(dtype) for name, dtype in columns.items()}
        assert decode(VALUE, [b"\x48\x03"], column, paths=paths) == ([dict.fromkeys(columns)], {})
