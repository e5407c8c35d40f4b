"""Records become rows as lines of JSON do, batch by batch; and rows become batches, which say again what they are."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from weir.errors import GraphError, InputError
from weir.log.batches import RecordBatch, packed_body
from weir.operators.log.held_batches import BatchCutter, read_held
from weir.operators.log.records import RecordDecoder, Records, joined
from weir.operators.log.rows import RowEncoder
from weir.operators.sinks.places import open_place
from weir.operators.sinks.row_logs import RowLogWriter

PARTS = {"o": "offset", "n": "id", "ms": "timestamp", "p": "partition"}


def source(**settings):
    given_settings = {"bootstrap": "b:1", "topic": "words", "schema": {"id": int}} | settings
    return weir.LogSource(**given_settings).to_spec()


def batch(first_offset, values, append_ms=5):
    """As a reader has it: its body was written by a producer."""
    lengths = np.array([len(value) for value in values], dtype=np.uint32)
    ids = np.arange(len(values), dtype=np.int64) + 1000
    body = packed_body(ids, lengths, [b"".join(values)], "none")
    return RecordBatch(first_offset, len(values), body.content, append_ms)


_VALUES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b" ", b"\n", b"{}", b'{"id": 1}', b'{"id":\n 2}', b'{"id": "x"}', b"[1]", b'{"id": 3}\r']
    ),
    st.integers(-(2**70), 2**70).map(lambda number: json.dumps({"id": number}).encode()),
)


@given(st.lists(_VALUES, min_size=1, max_size=20), st.data())
def test_a_record_is_good_or_told_by_itself(values, data):
    cut = data.draw(st.integers(0, len(values)))
    parts = [batch(10, values[:cut])] if cut else []
    # A gap between batches; the first one begins before what is wanted.
    parts += [batch(10 + cut + 3, values[cut:])] if cut < len(values) else []
    first = data.draw(st.integers(0, max(cut - 1, 0)))
    records = joined([Records.of(each, 10 + first) for each in parts])
    spec = source(schema={"id": int, "o": int, "n": int, "p": int}, parts={k: PARTS[k] for k in "onp"})
    rows, bad = RecordDecoder(spec, 100).decode(records, 7)
    wanted = values[first:]
    assert len(records) == len(wanted)
    told = {record.number: record for record in bad}
    offsets = records.offsets.tolist()
    assert sorted([*rows.column("o").to_pylist(), *(offsets[number] for number in told)]) == offsets
    for row in rows.to_pylist():
        number = offsets.index(row["o"])
        assert json.loads(wanted[number])["id"] == row["id"]
        assert row["p"] == 7
        assert row["n"] == records.ids[number]
    for number, record in told.items():
        assert record.raw == wanted[number]
        assert record.reason


def test_what_is_not_read_is_not_decoded():
    spec = source(schema={"id": int, "o": int}, parts={"o": "offset"})
    rows, bad = RecordDecoder(spec.reading(frozenset({"o"})), 10).decode(
        Records.of(batch(3, [b"nope"]), 0), 0
    )
    assert (rows.to_pylist(), bad) == ([{"o": 3}], [])


def test_parts_of_records():
    records = Records.of(batch(5, [b"a", b"bc", b"", b"def"], 77), 0)
    part = records.part(1, 3)
    assert (part.offsets.tolist(), bytes(part.data), len(part)) == ([6, 7], b"bc", 2)
    spec = source(
        schema={"v": str, "t": str, "ms": int}, value="raw", parts={"t": "topic", "ms": "timestamp"}
    )
    rows, bad = RecordDecoder(spec, 10).decode(part, 0)
    assert rows.to_pylist() == [{"v": "bc", "t": "words", "ms": 77}, {"v": "", "t": "words", "ms": 77}]
    assert bad == []


def rows(count, **columns):
    times = {"_event_time_ms": list(range(count)), "_ingest_time_us": [0] * count}
    return pa.RecordBatch.from_pydict(columns | times)


def held(tmp_path, encoder, parts, compression="none"):
    """What is read back from the row log of some batches of rows, with the producer."""
    cutter, place = BatchCutter(77, compression, "sink out"), open_place(str(tmp_path))
    place.prepare(".p")
    writer = RowLogWriter(place, ".rows", 0)
    for part in parts:
        for found in encoder.encode(part):
            if (full := cutter.add(*found)) is not None:
                writer.write(full)
    if (rest := cutter.rest()) is not None:
        writer.write(rest)
    writer.seal()
    producer_id, batches = read_held(place, ".rows", "sink out")
    assert producer_id == 77
    return cutter, list(batches)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_rows_of_many_sizes_become_numbered_batches_in_their_order(tmp_path, compression):
    sizes = [0, 3, 400_000, 700_000, 5, 1_500_000, 10, *[1000] * 3000]
    texts = [f"{number}:" + "x" * size for number, size in enumerate(sizes)]
    spec = weir.LogSink("words", bootstrap="b:1", value="text", key="k", compression=compression)
    parts = [rows(len(texts[a:b]), text=texts[a:b], k=[n % 5 for n in range(a, b)])
             for a, b in ((0, 4), (4, 5), (5, 2000), (2000, len(texts)))]  # fmt: skip
    cutter, batches = held(tmp_path, RowEncoder(spec, "out", 3), parts, compression)
    found = {}
    for partition in range(3):
        of_it = [each for each in batches if each.partition == partition]
        assert [each.sequence for each in of_it] == list(range(len(of_it)))
        assert all(each.body.raw_bytes < 1_600_000 for each in of_it)
        for each in of_it:
            raw = each.body.content
            if each.body.flags:
                raw = pa.decompress(
                    raw, each.body.raw_bytes, {1: "lz4_raw", 2: "zstd"}[each.body.flags], asbytes=True
                )
            records = list(RecordBatch(0, each.body.record_count, raw).records())
            found.setdefault(partition, []).extend(record.data.decode() for record in records)
        last = of_it[-1].sequence if of_it else None
        assert cutter.last_sequences().get(str(partition)) == last
    assert sorted(itertools.chain.from_iterable(found.values())) == sorted(texts)
    for values in found.values():
        numbers = [int(value.partition(":")[0]) for value in values]
        assert numbers == sorted(numbers)
    assert len({n % 5 for values in found.values() for n in [int(values[0].partition(":")[0])]}) == len(found)


def test_without_a_key_batches_go_to_one_partition_after_the_other():
    encoder = RowEncoder(weir.LogSink("words", bootstrap="b:1"), "out", 3)
    found = [[partition for partition, _, _ in encoder.encode(rows(2, a=[1, 2]))] for _ in range(4)]
    assert found == [[1], [2], [0], [1]]
    ((_, ids, values),) = encoder.encode(rows(2, a=["x\ny", None]))
    assert ids.tolist() == [0, 1]
    assert values.to_pylist() == [b'{"a":"x\\ny"}', b'{"a":null}']


def test_a_record_that_is_too_large_is_told(tmp_path):
    encoder = RowEncoder(weir.LogSink("words", bootstrap="b:1", value="text"), "out", 1)
    with pytest.raises(InputError, match=r"sink out: a batch of .* is larger than a batch may be"):
        held(tmp_path, encoder, [rows(1, text=["x" * (9 << 20)])])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": ""}, "topic is ''; give a name"),
        ({"bootstrap": "nowhere"}, "bootstrap is 'nowhere'; give addresses of brokers"),
        ({"start": "first"}, "start is 'first'; it is 'earliest', 'latest', a datetime or a mapping"),
        ({"start": {0: -1}}, "offsets are given as {partition: offset}"),
        ({"on_truncation": "skip"}, "on_truncation is 'skip'"),
        ({"value": "xml"}, "value is 'xml'"),
        (
            {"parts": {"id": "key"}},
            "parts: 'id' is 'key'; it is one of id, topic, partition, offset, timestamp",
        ),
        ({"parts": {"other": "id"}}, "there is no column 'other'"),
        ({"schema": {"id": str}, "parts": {"id": "offset"}}, "column 'id' with the offset is int64, not"),
        ({"value": "raw"}, "needs one column of bytes or text"),
    ],
)
def test_wrong_settings_of_the_source(settings, message):
    with pytest.raises(GraphError, match=message):
        source(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": ""}, "topic is ''; give a name"),
        ({"bootstrap": "b"}, "bootstrap is 'b'"),
        ({"delivery": "once"}, "delivery is 'once'; it is 'exactly_once' or 'at_least_once'"),
        ({"compression": "gzip"}, "compression is 'gzip'; it is 'none', 'lz4' or 'zstd'"),
        ({"key": "a", "partition": "a"}, "key and partition are both given"),
        ({"key": "b"}, "step 'out': key is 'b'; there is a, f"),
        ({"key": "f"}, "floating-point values cannot be keys"),
        ({"id": "f"}, "step 'out': id is the column 'f' of type double; it must be int32 or int64"),
        ({"value": "a"}, "step 'out': value is the column 'a' of type int64; it must be string"),
    ],
)
def test_wrong_settings_of_the_sink(settings, message):
    flow = weir.Dataflow("job")
    lines = flow.source("lines", weir.JsonLines("in", schema={"a": int, "f": float}))

    def build():
        lines.sink("out", weir.LogSink(**{"topic": "t", "bootstrap": "b:1"} | settings))
        flow.build()

    with pytest.raises(GraphError, match=message):
        build()
