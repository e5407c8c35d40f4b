"""Records with a text that is not UTF-8 are put aside, with the field, whatever their values are coded in."""

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

import weir
from tests.weir.operators.kafka.test_coded_values import avro, decode
from tests.weir.operators.kafka.test_records import Record
from weir.operators.kafka.records import RecordDecoder

BROKEN = b"b\xe4d"
COLUMNS = {
    name: weir.Nullable(dtype)
    for name, dtype in {
        "id": int,
        "t": str,
        "l": pa.list_(pa.string()),
        "s": pa.struct([("t", pa.string()), ("b", pa.binary())]),
        "words": pa.struct([("a", pa.string())]),
        "b": bytes,
    }.items()
}


def part(number, body):
    return bytes([number << 3 | 2, len(body)]) + body


def message_type(syntax):
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="n.proto", package="n", syntax=syntax)
    kinds = {"t": "STRING", "b": "BYTES", "key": "STRING", "value": "STRING", "id": "INT32"}
    inner, whole = file.message_type.add(name="In"), file.message_type.add(name="M")
    entry = whole.nested_type.add(name="WordsEntry")
    entry.options.map_entry = True
    for message, names in ((inner, "t b"), (entry, "key value"), (whole, "id t b")):
        for number, name in enumerate(names.split(), 1):
            message.field.add(name=name, number=number, type=f"TYPE_{kinds[name]}", label="LABEL_OPTIONAL")
    whole.field.add(name="l", number=4, type="TYPE_STRING", label="LABEL_REPEATED")
    whole.field.add(name="s", number=5, type="TYPE_MESSAGE", type_name=".n.In", label="LABEL_OPTIONAL")
    whole.field.add(
        name="words", number=6, type="TYPE_MESSAGE", type_name=".n.M.WordsEntry", label="LABEL_REPEATED"
    )
    return weir.Protobuf("n.M", descriptors=files.SerializeToString())


#: Bodies of messages after their ids, and which field is wrong.
BODIES = [
    (part(2, "für".encode()), None),
    (part(2, BROKEN), "t"),
    (part(4, b"right") + part(4, BROKEN), "l"),
    (part(5, part(2, BROKEN)), None),
    (part(5, part(1, BROKEN)), "s.t"),
    (part(6, part(1, b"a") + part(2, BROKEN)), "words.a"),
    (part(6, part(1, BROKEN) + part(2, b"x")), "words"),
    (part(3, BROKEN), None),
]


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_protobuf(syntax):
    """The parser refuses such texts of proto3 itself."""
    values = [bytes([8, number + 1]) + body for number, (body, _) in enumerate(BODIES)]
    rows, bad = decode(message_type(syntax), values, COLUMNS)
    wrong = {number: path for number, (_, path) in enumerate(BODIES) if path is not None}
    assert [row["id"] for row in rows] == [n + 1 for n in range(len(BODIES)) if n not in wrong]
    assert rows[0]["t"] == "für"
    assert bad.keys() == wrong.keys()
    if syntax == "proto2":
        assert bad == {number: f"field {path} is not UTF-8" for number, path in wrong.items()}
    else:
        assert all("bad UTF-8" in reason for reason in bad.values())


def test_bytes_of_protobuf_in_a_column_of_texts():
    values = [part(3, b"right"), part(3, BROKEN)]
    rows, bad = decode(message_type("proto3"), values, {"b": weir.Nullable(str)})
    assert (rows, bad) == ([{"b": "right"}], {1: "field b is not UTF-8"})


def test_avro():
    schema = {"type": "record", "name": "R", "fields": [{"name": "t", "type": "string"}]}
    values = [avro({"t": "bed"}, schema), avro({"t": "bed"}, schema).replace(b"bed", BROKEN)]
    rows, bad = decode(weir.Avro(schema=schema), values, {"t": str})
    assert rows == [{"t": "bed"}]
    assert list(bad) == [1]
    assert "utf-8" in bad[1].lower()


def test_values_and_keys_that_are_texts():
    columns, parts = {"v": str, "k": str}, {"k": "key"}
    spec = weir.Kafka(bootstrap="b:1", topics="t", schema=columns, value="raw", parts=parts).to_spec()
    records = [Record(b"right", key=b"k"), Record(BROKEN, key=b"k"), Record(b"right", key=BROKEN)]
    rows, bad = RecordDecoder(spec, 100, "source s").decode(records)
    assert rows.num_rows == 1
    assert [item.number for item in bad] == [1, 2]
