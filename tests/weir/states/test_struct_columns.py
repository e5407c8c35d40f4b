"""Structs of a whole column: the same bytes as one by one, and the same values again."""

import datetime as dt
import random

import numpy as np
import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import StateMismatchError
from weir.state.types import value_type

PLAIN = pl.Struct({"i": pl.Int64, "u": pl.UInt64, "b": pl.Boolean, "s": pl.String, "small": pl.Int8})
ROWS = [
    {"i": -(2**63), "u": 2**64 - 1, "b": True, "s": 'ä"\n\0', "small": -128},
    {"i": 2**63 - 1, "u": 0, "b": False, "s": "", "small": 127},
    {"i": None, "u": None, "b": None, "s": None, "small": None},
    None,
    {"i": 2**53 + 1, "u": 2**53 + 1, "b": None, "s": "x" * 5000, "small": 0},
]
OTHERS = {
    "floats": (
        pl.Struct({"f": pl.Float64, "i": pl.Int64}),
        [{"f": float("inf"), "i": 1}, None, {"f": -0.5, "i": None}],
    ),
    "dates": (pl.Struct({"d": pl.Date}), [{"d": dt.date(2020, 2, 3)}, None]),
    "nested": (pl.Struct({"l": pl.List(pl.Int64)}), [{"l": [1, None]}, {"l": None}]),
}


@pytest.mark.parametrize(("dtype", "rows"), [(PLAIN, ROWS), *OTHERS.values()], ids=["plain", *OTHERS])
def test_a_column_has_the_bytes_of_its_values(dtype, rows):
    kind = value_type(dtype)
    expected = [None if row is None else kind.encode(row) for row in rows]
    assert kind.encode_many(rows) == expected
    assert kind.encode_many(pl.Series(rows, dtype=dtype)) == expected
    for found in (expected, [data for data in expected if data is not None], []):
        values = kind.decode_many(found)
        assert values.dtype == dtype
        assert values.to_list() == [None if data is None else kind.decode(data) for data in found]


def test_fields_that_came_later_are_null():
    before = value_type(pl.Struct({"i": pl.Int64})).encode({"i": 7})
    now = value_type(pl.Struct({"i": pl.Int64, "s": pl.String}))
    assert now.decode_many([before]).to_list() == [{"i": 7, "s": None}]


def test_another_format_is_refused():
    with pytest.raises(StateMismatchError):
        value_type(PLAIN).decode_many([b"\x07[]"])


def test_items_of_some_rows():
    """``take`` names the rows of a batch again, in any order; each item is where its row's key is."""
    chance, expected = random.Random(3), {}

    class Items(weir.KeyedProcess):
        items = weir.MapState(int, pl.Struct({"n": pl.Int64, "s": pl.String}))

        def process_batch(self, batch, context):
            keys, users = context.keys(batch), batch["user"].to_pylist()
            rows = [row for row in range(len(users)) if chance.random() < 0.6]
            chance.shuffle(rows)
            chosen = keys.take(rows)
            assert chosen.user_keys == [keys.user_keys[row] for row in rows]
            numbers = [chance.randrange(3) for _ in rows]
            texts = [str(row) for row in rows]
            self.items.put(chosen, numbers, pl.DataFrame({"n": rows, "s": texts}).to_struct())
            for row, number, text in zip(rows, numbers, texts, strict=True):
                expected[users[row], number] = {"n": row, "s": text}
            found = self.items.get(keys, np.ones(len(users), np.int64)).to_list()
            assert found == [expected.get((user, 1)) for user in users]
            for index in context.visit(keys):
                user = users[keys.first_rows[index]]
                mine = {number: value for (other, number), value in expected.items() if other == user}
                assert dict(self.items.items()) == mine
                assert len(self.items) == len(mine)
            return ()

    flow = weir.Dataflow("items")
    events = flow.source("events", weir.JsonLines("/absent", schema={"user": str}))
    events.key_by("user").process("made", Items).sink("out", weir.Collect())
    batches = [pl.DataFrame({"user": [f"u{chance.randrange(5)}" for _ in range(30)]}) for _ in range(8)]
    testing.run(flow, {"events": batches})
    assert expected
