"""Timestamps, dates and decimals in JSON lines: the scanner reads the usual forms as pyarrow does."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.effort import cases
from tests.weir.operators.sources.json_paths_compared import decode, mutate, padded
from weir.operators.sources.json.json_decode import JsonDecoder
from weir.operators.sources.json.json_strict import StrictDecoder

TYPES = [
    *(
        pa.timestamp(unit, zone)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin")
    ),
    pa.date32(),
    pa.decimal128(18, 2),
    pa.decimal128(5, 5),
    pa.decimal128(3, 0),
    pa.decimal128(30, 2),
]
TIMES = [
    '"2026-11-23T10:00:00Z"',
    '"2026-11-23 10:00:00"',
    '"2026-11-23T10:00"',
    '"2026-11-23T10"',
    '"2026-11-23"',
    '"1969-12-31T23:59:59.999+01:00"',
    '"2000-02-29T00:00:00.123456-1130"',
    '"1900-02-29T00:00:00"',
    '"2026-11-23T23:59:59.123456789+23"',
    '"0001-01-01T00:00:00Z"',
    '"0000-03-01T00:00:00Z"',
    '"9999-12-31T23:59:59.999999"',
    '"1677-09-21T00:12:43.145224193Z"',
    '"1677-09-21T00:13:00Z"',
    '"2262-04-11T23:47:16.854775807Z"',
    '"2262-04-11T23:47:17Z"',
    '"2026-11-23T24:00:00Z"',
    '"2026-11-23T10:00:60"',
    '"2026-11-23T10:00:00.Z"',
    '"2026-11-23T10:00:00+24:00"',
    '"2026-11-23T10:00:00+01:60"',
    '"2026-11-23T10:00:00.1234567891Z"',
    '"2026-11-23T10:00:00.000000000Z"',
    '"2026-11-23Z"',
    '"2026-11-23T10:00:00\\u005a"',
    '"2026-13-01"',
    '"2026-00-10"',
    '"2026-04-31"',
    '"2026-1-02"',
    "1764000000000",
    "null",
]
DECIMALS = [
    *("1", "-1", "-0", "0.0", "12.5", '"12.50"', '"-0.01"', '"1e2"', "1e2", "1.555", '"1.555"', "0.12345", "0.123456"),
    *("999", "1000", "-999.00", '"+1"', '".5"', '"01"', '" 1"', '""', '"1', "true", "null"),
    *("123456789012345678", "1234567890123456.78", "12345678901234567.89", "9999999999999999.99"),
    *("10000000000000000", "1234567890123456789012345678.5"),
]  # fmt: skip


def read(line: str, kind: pa.DataType, *, use_scanner: bool) -> pa.Array | str:
    """The value of a line, or why it is rejected."""
    decoder = JsonDecoder(pa.schema([pa.field("v", kind)]), use_scanner=use_scanner)
    data, stop = padded([line.encode()])
    result = decoder.decode(data, 0, stop)
    result.batch.validate(full=True)
    return result.batch.column(0) if result.batch.num_rows else result.rejections[0].reason


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_scanned_values_are_those_of_pyarrow(kind):
    texts = DECIMALS if pa.types.is_decimal(kind) else TIMES
    rng = random.Random(5)
    lines = [f'{{"v": {text}}}' for text in texts]
    for line in lines + [mutate(rng.choice(lines).encode(), rng).decode("latin-1") for _ in range(cases(15))]:
        expected = read(line, kind, use_scanner=False)
        assert read(line, kind, use_scanner=True) == expected, line


@pytest.mark.parametrize("kind", TYPES[:12], ids=str)
def test_all_days_and_fractions_are_scanned(kind):
    rng = random.Random(6)
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
    texts = []
    for _ in range(cases(250)):
        # As nanoseconds, years from 1678 to 2261 fit.
        seconds = rng.randrange(-9_200_000_000, 9_200_000_000)
        text = pc.strftime(pa.scalar(seconds, pa.timestamp("s")), "%Y-%m-%dT%H:%M:%S").as_py()
        shown = rng.randrange(digits + 1)
        fraction = "." + "".join(rng.choices("0123456789", k=shown)) if shown else ""
        texts.append(text + fraction + rng.choice(["", "Z", "+05:30", "-0900", "+01"]))
    data, stop = padded([json.dumps({"v": text}).encode() for text in texts])
    schema = pa.schema([pa.field("v", kind)])
    scanner = JsonDecoder(schema)
    scanner._strict = None
    scanned = scanner.decode(data, 0, stop).batch
    assert scanned.equals(JsonDecoder(schema, use_scanner=False).decode(data, 0, stop).batch)


def test_times_within_objects_and_null_ones():
    inner = pa.struct([pa.field("at", pa.timestamp("ms")), pa.field("day", pa.date32())])
    schema = pa.schema([pa.field("o", inner), pa.field("price", pa.decimal128(9, 3))])
    lines = [
        b'{"o": {"at": "2026-11-23T10:00:00.5", "day": "2026-11-23"}, "price": -1.25}',
        b'{"o": {"at": null}, "price": "7"}',
        b'{"price": null}',
        b'{"o": {"day": "1969-12-31"}}',
    ] * 300
    rows, rejected = decode(lines, schema)
    assert (len(rows), rejected) == (1_200, [])
    assert (rows, rejected) == decode(lines, schema, use_scanner=False)
    assert [str(row["price"]) for row in rows[:4]] == ["-1.250", "7.000", "None", "None"]


@pytest.mark.parametrize("use_scanner", [True, False])
def test_few_bad_values_that_only_pyarrow_converts_cost_few_calls(monkeypatch, use_scanner):
    calls = []
    bulk = StrictDecoder._bulk
    monkeypatch.setattr(StrictDecoder, "_bulk", lambda self, raw: (calls.append(raw), bulk(self, raw))[1])
    lines = [b'{"at": "%d", "raw": "x"}' % number for number in range(300)]
    lines[77] = b'{"raw": 1}'
    schema = pa.schema([pa.field("raw", pa.binary())])
    rows, rejected = decode(lines, schema, use_scanner=use_scanner)
    assert len(rows) == 299
    assert rejected == [(sum(len(line) + 1 for line in lines[:77]), "field raw is not of type binary")]
    assert len(calls) < 50
