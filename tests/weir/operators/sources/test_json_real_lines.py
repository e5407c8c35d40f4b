"""Lines as systems write them, of 50 bytes to 1 MB: what is read of them is what orjson reads."""

from __future__ import annotations

import random

import orjson
import pyarrow as pa
import pytest

from tests.effort import cases
from tests.weir.operators.sources.json_paths_compared import decode

WORDS = [
    "edit",
    "naïve",
    "日本語",
    "Москва",
    "🚀",
    'a "quoted" word',
    "C:\\temp",
    "tab\there",
    "",
    "x" * 70,
    "\u2028",
]
ACTOR = pa.struct(
    [pa.field("name", pa.string()), pa.field("roles", pa.list_(pa.string())), pa.field("age", pa.int16())]
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("actor", ACTOR),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("changes", pa.list_(pa.struct([pa.field("from", pa.int64()), pa.field("to", pa.int64())]))),
        pa.field("domain", pa.string()),
        pa.field("new", pa.int64()),
        pa.field("deep", pa.list_(pa.list_(pa.int64()))),
    ]
)
PATHS = {"domain": ("meta", "domain"), "new": ("length", "new"), "deep": ("meta", "stats", "deep")}


def text(rng, words=4):
    return " ".join(rng.choices(WORDS, k=rng.randrange(words + 1)))


def anything(rng, depth=0):
    """A value that nobody wants."""
    kind = rng.randrange(4 if depth > 3 else 6)
    if kind == 0:
        return text(rng)
    if kind == 1:
        return rng.choice([0, -7, 2**53, 1.5, -2.5e-9, 1e30])
    if kind == 2:
        return rng.choice([True, False, None])
    if kind == 3:
        return text(rng, 300) if rng.random() < 0.1 else ""
    inner = [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    # Names of wanted columns, where they are not wanted.
    return (
        inner
        if kind == 4
        else {rng.choice(["id", "meta", "new", "tags", "é", "k"]): value for value in inner}
    )


def event(rng, number):
    """Keys come and go, in any order; wanted ones are null, absent, or have a part of their fields."""
    actor = {
        "name": text(rng),
        "roles": [text(rng) for _ in range(rng.randrange(3))],
        "age": rng.randrange(99),
    }
    for key in rng.sample(sorted(actor), rng.randrange(3)):
        del actor[key]
    fields = {
        "title": text(rng, 12),
        "score": rng.choice([rng.random(), 0, -1e-7, 12345678901234567, 2.5]),
        "actor": actor | {"other": anything(rng)},
        "tags": rng.choice([[], [text(rng), None], ["a"] * 40]),
        "changes": [{"from": n, "to": -n, "x": anything(rng)} for n in range(rng.randrange(3))],
        "meta": rng.choice(
            [
                {"domain": text(rng), "stats": {"deep": [[1, None], [], None]}, "id": anything(rng)},
                {"stats": {"n": 1}},
                {"domain": None, "stats": None},
                {},
            ]
        ),
        "length": rng.choice([{"old": 1, "new": rng.randrange(10**12)}, {"old": 2}, {"new": None}]),
        "payload": anything(rng),
        "more": {"meta": {"domain": "not this one"}, "rest": anything(rng)},
    }
    kept = [
        (key, None if rng.random() < 0.1 else value) for key, value in fields.items() if rng.random() < 0.8
    ]
    kept.append(("id", number))
    rng.shuffle(kept)
    return dict(kept)


def wanted(value, path):
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def as_type(value, data_type):
    """What orjson has read as a column of the type has it."""
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        return {field.name: as_type(value.get(field.name), field.type) for field in data_type}
    if pa.types.is_list(data_type):
        return [as_type(item, data_type.value_type) for item in value]
    return float(value) if pa.types.is_floating(data_type) else value


@pytest.mark.parametrize("seed", range(cases(3)))
def test_lines_of_all_lengths_are_read_as_orjson_reads_them(seed):
    rng = random.Random(seed)
    rows = [event(rng, number) for number in range(300)]
    rows[7]["payload"] = text(rng, 30) + "語" * rng.randrange(300_000) + '"' * 9
    rows[8] = {"id": 8}
    lines = [orjson.dumps(row) for row in rows]
    if seed % 2:
        # Escaped, as systems write that know ASCII only.
        lines = [escaped(line) for line in lines]
    assert min(map(len, lines)) < 50
    expected = [
        {
            field.name: as_type(wanted(row, PATHS.get(field.name, (field.name,))), field.type)
            for field in SCHEMA
        }
        for row in map(orjson.loads, lines)
    ]
    got, rejected = decode(lines, SCHEMA, paths=PATHS, line_bytes_max=8 << 20)
    assert rejected == []
    assert got == expected
    # One of the columns alone: everything else is passed over.
    for name in ("id", rng.choice(SCHEMA.names[1:])):
        alone = pa.schema([SCHEMA.field(name)])
        paths = {key: path for key, path in PATHS.items() if key == name}
        assert decode(lines, alone, paths=paths)[0] == [{name: row[name]} for row in expected]


def escaped(line):
    """The line with an escape for every character beyond ASCII."""
    units = line.decode().encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 0x80 else f"\\u{code:04x}" for code in codes).encode()
