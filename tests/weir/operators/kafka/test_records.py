"""Records become rows as lines of JSON do; what is none is told with its place, and no row moves for it."""

import json
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from weir.errors import InputError
from weir.operators import registry
from weir.operators.kafka.records import RecordDecoder
from weir.operators.kafka.values import record_values
from weir.specs import SourceSpec
from weir.specs.kafka import HEADER_TYPE


class Record:
    """What the decoder asks of a message of the client library."""

    def __init__(self, value, key=None, offset=0, headers=None):
        self._parts = value, key, offset, headers

    def value(self):
        return self._parts[0]

    def key(self):
        return self._parts[1]

    def offset(self):
        return self._parts[2]

    def headers(self):
        return self._parts[3]

    def topic(self):
        return "words"

    def partition(self):
        return 7

    def timestamp(self):
        return 1, 1_700_000_000_000


def decoder(**settings):
    return RecordDecoder(weir.Kafka(bootstrap="b:1", topics="words", **settings).to_spec(), 100)


def test_every_part_of_a_record_may_be_a_column():
    schema = {"id": int, "k": weir.Nullable(str), "t": str, "p": int, "o": int, "at": int}
    parts = {"k": "key", "t": "topic", "p": "partition", "o": "offset", "at": "timestamp"}
    rows, bad = decoder(schema=schema, parts=parts).decode(
        [Record(b'{"id": 1}', b"a", 5), Record(b'{"id": 2}', None, 6)]
    )
    common = {"t": "words", "p": 7, "at": 1_700_000_000_000}
    assert bad == []
    assert rows.to_pylist() == [{"id": 1, "k": "a", "o": 5} | common, {"id": 2, "k": None, "o": 6} | common]


def test_headers_and_raw_values():
    schema = pa.schema([("text", pa.binary()), ("h", HEADER_TYPE)])
    rows, bad = decoder(schema=schema, value="raw", parts={"h": "headers"}).decode(
        [Record(b"\xff\n", headers=[("a", b"1"), ("a", None)]), Record(None)]
    )
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert rows.to_pylist() == [{"text": b"\xff\n", "h": headers}, {"text": None, "h": []}]
    assert bad == []


class Timeless(Record):
    """As of a producer that leaves the timestamp out, in a topic that takes those of producers."""

    def timestamp(self):
        return 1, -1


def test_a_record_without_a_timestamp_has_none_and_not_the_last_ms_of_1969():
    records = [Record(b'{"id": 1}'), Timeless(b'{"id": 2}')]
    settings = {"parts": {"at": "timestamp"}}
    rows, bad = decoder(schema={"id": int, "at": weir.Nullable(int)}, **settings).decode(records)
    assert (rows.column("at").to_pylist(), bad) == ([1_700_000_000_000, None], [])
    rows, bad = decoder(schema={"id": int, "at": int}, **settings).decode(records)
    assert rows.column("id").to_pylist() == [1]
    assert [item.reason for item in bad] == ["the record has no timestamp, and field at may not be null"]


class OddHeaders(Record):
    """As the client library's, which makes text of the names of headers."""

    def headers(self):
        raise SystemError("returned a result with an exception set")


def test_a_header_whose_name_is_no_text_makes_its_record_bad():
    schema = pa.schema([("id", pa.int64()), ("h", HEADER_TYPE)])
    records = [Record(b'{"id": 1}'), OddHeaders(b'{"id": 2}'), Record(b'{"id": 3}', headers=[("a", b"")])]
    rows, bad = decoder(schema=schema, parts={"h": "headers"}).decode(records)
    assert rows.to_pylist() == [{"id": 1, "h": []}, {"id": 3, "h": [{"key": "a", "value": b""}]}]
    assert [(item.number, item.reason) for item in bad] == [(1, "the name of a header is not UTF-8")]


def test_a_tombstone_is_a_row_where_the_key_is_told_and_the_rest_may_be_null():
    records = [
        Record(b'{"name": "Belgium"}', b"be"),
        Record(None, b"be"),
        Record(b"", b"bg"),
        Record(b'{"name": "\n"}', b"cy"),
        Record(b'{"name": "Austria"}', b"at"),
        Record(None, b"at"),
    ]
    schema, parts = {"code": str, "name": weir.Nullable(str)}, {"code": "key"}
    rows, bad = decoder(schema=schema, parts=parts).decode(records)
    told = [("be", "Belgium"), ("be", None), ("at", "Austria"), ("at", None)]
    assert [(row["code"], row["name"]) for row in rows.to_pylist()] == told
    assert [(record.number, record.reason) for record in bad] == [
        (2, "the record has no value"),
        (3, bad[1].reason),
    ]
    # Else nobody could tell what is gone, or there is nothing to put there.
    needed = {"code": str, "name": str}
    for changed in ({"schema": needed, "parts": parts}, {"schema": {"name": weir.Nullable(str)}}):
        rows, bad = decoder(**changed).decode(records)
        assert (rows.num_rows, [record.number for record in bad]) == (2, [1, 2, 3, 5])


@given(
    st.lists(
        st.sampled_from(
            [
                b'{"id": 4}',
                b'{\n"id":\r\n 4\n}',
                b"nope",
                b"",
                b" \t",
                None,
                b'{"id": "x"}',
                b"\n",
                b'{"id": 1}\n',
                b'{"id": 1}\n{"id": 2}',
                b'{"id": 1, "s": "a\nb"}',
                b'{"id": null}',
                b"[]",
                b'{"id": 5, "id": 5}',
            ]
        ),
        min_size=1,
        max_size=20,
    ),
    st.data(),
)
def test_a_record_is_good_or_told_by_itself(values, data):
    keys = [data.draw(st.sampled_from([b"a", b"\xff", None])) for _ in values]
    schema = {"id": int, "k": str, "o": int}
    decode = decoder(schema=schema, parts={"k": "key", "o": "offset"}).decode
    rows, bad = decode([Record(v, k, n) for n, (v, k) in enumerate(zip(values, keys, strict=True))])
    good = []
    for number, (value, key) in enumerate(zip(values, keys, strict=True)):
        try:
            parsed = json.loads(value) if value else None
            pairs = json.loads(value, object_pairs_hook=list) if value else []
        except ValueError:
            parsed, pairs = None, []
        is_row = (
            isinstance(parsed, dict)
            and isinstance(parsed.get("id"), int)
            and len({k for k, _ in pairs}) == len(pairs)
        )
        if is_row and key == b"a":
            good.append({"id": parsed["id"], "k": "a", "o": number})
    assert rows.to_pylist() == good
    assert sorted([row["o"] for row in good] + [record.number for record in bad]) == list(range(len(values)))
    assert all(record.reason and record.raw == (values[record.number] or b"") for record in bad)


def test_what_is_not_read_is_not_decoded():
    spec = weir.Kafka(
        bootstrap="b:1", topics="words", schema={"id": int, "o": int}, parts={"o": "offset"}
    ).to_spec()
    rows, bad = RecordDecoder(spec.reading(frozenset({"o"})), 10).decode([Record(b"nope", offset=3)])
    assert (rows.to_pylist(), bad) == ([{"o": 3}], [])


def test_rows_become_records():
    rows = pa.RecordBatch.from_pylist(
        [
            {"k": 5, "text": "a\nb", "h": [{"key": "x", "value": b"1"}], "p": 2, "_event_time_ms": 1},
            {"k": None, "text": None, "h": None, "p": 0, "_event_time_ms": 2},
        ],
        schema=pa.schema(
            [
                ("k", pa.int64()),
                ("text", pa.string()),
                ("h", HEADER_TYPE),
                ("p", pa.int32()),
                ("_event_time_ms", pa.int64()),
            ]
        ),
    )
    spec = weir.KafkaSink("t", bootstrap="b:1", key="k", key_in_value=False, headers="h", partition="p")
    made = record_values(rows, spec)
    assert [json.loads(value) for value in made.values] == [{"text": "a\nb"}, {"text": None}]
    assert (made.keys, made.headers, made.partitions) == ([b"5", None], [[("x", b"1")], []], [2, 0])
    chosen = [(None, 1), (0, None)]
    for index, expected in enumerate(([-1, 1], [0, -1])):
        numbers = pa.RecordBatch.from_pydict({"p": pa.array(chosen[index], pa.int32()), "v": ["a", "b"]})
        assert (
            record_values(numbers, weir.KafkaSink("t", bootstrap="b:1", partition="p")).partitions == expected
        )
    for number in (-1, 2**31):
        wrong = pa.RecordBatch.from_pydict({"p": [None, number], "v": ["a", "b"]})
        with pytest.raises(InputError, match=f"topic t has no partition {number}, which is in column 'p'"):
            record_values(wrong, weir.KafkaSink("t", bootstrap="b:1", partition="p"))
    for header in (None, {"key": None, "value": b"1"}, {"key": "a\0b", "value": None}):
        wrong = pa.RecordBatch.from_arrays([pa.array([[], [header]], HEADER_TYPE), ["a", "b"]], ["h", "v"])
        with pytest.raises(
            InputError, match="column 'h', with the headers of records for topic t, has one whose"
        ):
            record_values(wrong, weir.KafkaSink("t", bootstrap="b:1", headers="h"))
        # Rows that are not there are not looked at.
        assert record_values(
            wrong.slice(0, 1), weir.KafkaSink("t", bootstrap="b:1", headers="h")
        ).headers == [[]]
    raw = record_values(rows, weir.KafkaSink("t", bootstrap="b:1", value="text"))
    assert (raw.values, raw.keys) == ([b"a\nb", None], None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topics": ()}, "either topics or a pattern"),
        ({"pattern": "a"}, "either topics or a pattern"),
        ({"topics": (), "pattern": "("}, "no regular expression"),
        ({"bootstrap": "broker"}, "addresses of brokers"),
        ({"parts": {"x": "key"}}, "no column 'x'"),
        ({"parts": {"id": "keys"}}, "'keys'; it is one of key"),
        ({"parts": {"id": "key"}}, "column 'id' with the key is string or large_string or binary, not int64"),
        ({"value": "raw"}, "one column of bytes or text"),
        ({"value": "avro"}, r"it is 'json', 'raw', weir.Avro"),
        ({"value": weir.Avro()}, "a registry, or a schema"),
        ({"start": "begin"}, "it is 'earliest'"),
        ({"start": {"words": {0: -1}}}, "offsets are given"),
        ({"start": {"words": [1]}}, "offsets are given"),
        ({"start": {"word": {0: 1}}}, "topic 'word' is not read; did you mean 'words'"),
        ({"topics": (), "pattern": "w.*", "start": {"x": {0: 1}}}, "'x' is not read; the pattern is 'w.*'"),
        ({"parts": ["id"]}, "parts is .*it is a mapping"),
        ({"properties": "group.id=x"}, "properties is str; give a mapping"),
        ({"discover_ms": "5s"}, "discover_ms is '5s'; it must be a number"),
        ({"on_truncation": "skip"}, "it is 'fail'"),
        ({"properties": {"auto.offset.reset": "latest"}}, "set by Weir"),
        ({"discover_ms": 0}, "above 0"),
    ],
)
def test_wrong_settings_of_the_source(settings, message):
    with pytest.raises(weir.GraphError, match=message):
        weir.Kafka(**{"bootstrap": "b:1", "topics": "words", "schema": {"id": int}} | settings).to_spec()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": ""}, "topic is ''"),
        ({"delivery": "twice"}, "'exactly_once' or 'at_least_once'"),
        ({"transaction_timeout_ms": 10}, "at least 1000"),
        ({"key": "no"}, "key is 'no'"),
        ({"key": "h"}, "it must be a plain value"),
        ({"value": "id"}, "it must be string"),
        ({"partition": "s"}, "it must be int32 or int64"),
        ({"headers": "s"}, "it must be list"),
    ],
)
def test_wrong_settings_of_the_sink(settings, message):
    flow = weir.Dataflow("job")
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("h", pa.list_(pa.int64()))])
    rows = flow.source("rows", weir.JsonLines("rows.jsonl", schema=schema))
    with pytest.raises(weir.GraphError, match=message):
        rows.sink("out", weir.KafkaSink(**{"topic": "t", "bootstrap": "b:1"} | settings))


@pytest.mark.parametrize(
    "spec",
    [
        weir.Kafka(bootstrap="b:1", topics="t", schema={"id": int}).to_spec(),
        weir.KafkaSink("t", bootstrap="b:1"),
    ],
    ids=["source", "sink"],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(spec, monkeypatch):
    # As if it were not there: what has loaded it already is loaded anew.
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for name in [name for name in sys.modules if name.startswith("weir.operators.kafka.")]:
        monkeypatch.delitem(sys.modules, name)
    create = registry.create_reader if isinstance(spec, SourceSpec) else registry.create_operator
    with pytest.raises(InputError, match=r"run: pip install 'weir\[kafka\]'"):
        create(spec)


def test_passwords_are_in_no_plan():
    properties = {"sasl.password": "hush"}
    value = weir.Avro(registry="http://r", auth="me:hush")
    source = weir.Kafka(
        bootstrap="b:1", topics="t", value=value, schema={"id": int}, properties=properties
    ).to_spec()
    sink = weir.KafkaSink("t", bootstrap="b:1", value=value, properties=properties)
    for spec in (source, sink):
        assert "hush" not in str(spec.describe())
        assert "hush" not in repr(spec)
        assert spec.properties["sasl.password"] == "hush"
