"""Floats of JSON lines and CSV are those nearest to their digits, bit by bit."""

from __future__ import annotations

import random
import struct
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from tests.weir.operators.sources.json_paths_compared import padded
from weir.operators.sources.csv.csv_decode import CsvDecoder
from weir.operators.sources.csv.csv_format import CsvFormat
from weir.operators.sources.json.json_decode import JsonDecoder

SCHEMA = pa.schema([pa.field("v", pa.float64())])
TIES = [
    # Exactly between two floats, and just beside.
    *(str(2**53 + odd) for odd in (1, 3, 5, 7)),
    *(str((2**53 + odd) * 2**8) for odd in (1, 3)),
    *(f"{2**52 + n}.5" for n in range(6)),
    *(f"{2**51 + n}.25" for n in range(6)),
    *(f"{2**52 + n}.{rest}" for n in range(4) for rest in ("499", "501", "500")),
    *(f"{(2**53 + 1) * 5**n}e-{n}" for n in range(5)),
    *("9007199254740993e1", "9007199254740995e22", "6631236871469758276785396630275967242419927774e3"),
    *("0.0", "-0.0", "-0", "0e5", "-0e-5", "0.000", "1e-99", "9.999999999999999999e99", "-1e22", "1e23"),
    *("8.5070591730234615865843651857942052864e37", "9223372036854775807", "18446744073709551615"),
    *("9999999999999999999", "99999999999999999999", "0.00000000000000000001234567890123456789"),
]


def drawn(rng: random.Random) -> str:
    """A number that JSON has, with an exponent of two digits at most."""
    match rng.randrange(4):
        case 0:
            # Of any bits, and so small or large that it needs no more digits of the exponent.
            (value,) = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))
            return repr(value) if 1e-90 < abs(value) < 1e90 else repr(rng.random())
        case 1:
            return repr(rng.gauss(0, 1) * 10.0 ** rng.randrange(-8, 12))
        case 2:
            digits = str(rng.randrange(1, 10)) + "".join(rng.choices("0123456789", k=rng.randrange(22)))
            point = rng.randrange(1, len(digits) + 1)
            fraction = "." + digits[point:] if point < len(digits) else ""
            return f"{rng.choice(('', '-'))}{digits[:point]}{fraction}e{rng.randrange(-99, 100)}"
        case _:
            return f"0.{'0' * rng.randrange(12)}{rng.randrange(1, 10 ** rng.randrange(1, 20))}"


def bits(values: object) -> list[int]:
    return np.asarray(values, dtype=np.float64).view(np.int64).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_floats_of_json(seed):
    rng = random.Random(seed)
    texts = TIES + [drawn(rng) for _ in range(20_000)]
    decoder = JsonDecoder(SCHEMA)
    decoder._strict = None
    data, stop = padded([b'{"v":%s}' % text.encode() for text in texts])
    found = decoder.decode(data, 0, stop).batch.column(0).to_numpy(zero_copy_only=False)
    # -0 without a point is an integer.
    expected = [0.0 if text == "-0" else float(text) for text in texts]
    assert bits(found) == bits(expected)


def test_few_floats_are_left_to_a_slower_parser():
    rng = random.Random(9)
    texts = [repr(rng.gauss(0, 1) * 10.0 ** rng.randrange(-12, 12)) for _ in range(2_000)]
    decoder = JsonDecoder(SCHEMA)
    assert decoder._columns is not None
    late = []
    batch = decoder._columns.batch
    decoder._columns.batch = lambda data, rows, count: (late.append(count), batch(data, rows, count))[1]
    data, stop = padded([b'{"v":%s}' % text.encode() for text in texts])
    decoder.decode(data, 0, stop)
    assert late == [0]


@pytest.mark.parametrize("kind", [pa.float32(), pa.list_(pa.float32())])
def test_narrow_floats_of_json(kind):
    rng = random.Random(4)
    texts = [text for text in TIES if abs(float(text)) < 3e38 and text != "-0"]
    texts += [repr(rng.gauss(0, 1)) for _ in range(5_000)]
    # Halfway between two, just beside, and small ones.
    texts += [
        "16777217",
        "16777219",
        "1.00000005960464477539",
        "-0.0",
        "1e-40",
        "3e38",
    ]
    schema = pa.schema([pa.field("v", kind)])
    form = b'{"v":%s}' if kind == pa.float32() else b'{"v":[1,%s,null]}'
    lines = [form % text.encode() for text in texts]
    data, stop = padded(lines)
    batches = [JsonDecoder(schema, use_scanner=use).decode(data, 0, stop).batch for use in (True, False)]
    assert batches[0].num_rows == len(texts)
    for batch in batches:
        values = batch.column(0) if kind == pa.float32() else batch.column(0).flatten()[1::3]
        found = values.to_numpy(zero_copy_only=False)
        assert found.view(np.int32).tolist() == [nearest_single(text) for text in texts]


def nearest_single(text: str) -> int:
    """The bits of the float32 nearest to a number."""
    wide = np.float64(text)
    near = np.float32(wide)
    around = {near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))}
    exact = Fraction(text)
    if near == 0:
        return int(near.view(np.int32))
    best = min(around, key=lambda other: (abs(Fraction(float(other)) - exact), other.view(np.int32) & 1))
    return int(best.view(np.int32))


@pytest.mark.parametrize("seed", range(3))
def test_floats_of_csv(seed):
    rng = random.Random(seed)
    texts = TIES + [drawn(rng) for _ in range(20_000)]
    texts += [
        f"+{rng.randrange(10**6)}.{'0' * 25}",
        ".5",
        "5.",
        "000.125",
        "1e-300",
        "2.5e300",
        "4e-320",
        "1e007",
    ]
    decoder = CsvDecoder(SCHEMA, [], ["v"], CsvFormat(",", '"', [""], False, 1 << 20), len(texts))
    data, stop = padded([text.encode() for text in texts])
    decoded = decoder.decode(data, 0, stop, False)
    assert decoded.rejections == []
    found = decoded.batch.column(0).to_numpy(zero_copy_only=False)
    assert bits(found) == bits([float(text) for text in texts])
