"""Lists and maps as arrays: several keys at once, keys that repeat, and what ``visit`` did before."""

import random
from collections import defaultdict

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing

SCHEMA = {"user": str, "at": int}


def run(process, given):
    flow = weir.Dataflow("columns")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    events.key_by("user").process("made", process, {"user": str, "n": int}).sink("out", weir.Collect())
    testing.run(flow, {"events": given})


def batches(count, rows, users, seed=3):
    chance = random.Random(seed)
    return [
        pl.DataFrame({"user": [f"u{chance.randrange(users)}" for _ in range(rows)], "at": [number] * rows})
        for number in range(count)
    ]


TTLS = [None, weir.Ttl("400d"), weir.Ttl("400d", refreshed_by="access")]


@pytest.mark.parametrize("ttl", TTLS)
def test_arrays_agree_with_plain_python(ttl):
    """A key, and an item, occurs in a batch again and again."""
    settings = {} if ttl is None else {"ttl": ttl}
    lists, maps = defaultdict(list), defaultdict(dict)
    chance = random.Random(5)
    seen = []

    class Columns(weir.KeyedProcess):
        items = weir.ListState(pl.Int64, **settings)
        counts = weir.MapState(pl.Int64, pl.Int64, **settings)

        def process_batch(self, batch, context):
            keys = context.keys(batch)
            users = batch["user"].to_pylist()
            for index in context.visit(keys):
                if chance.random() < 0.2:
                    self.items.append(-1)
                    lists[users[keys.first_rows[index]]].append(-1)
            values = np.arange(len(users))
            self.items.extend(keys, values)
            for user, value in zip(users, values.tolist(), strict=True):
                lists[user].append(value)
            found = self.items.get(keys)
            assert found.dtype == pl.List(pl.Int64)
            assert found.to_list() == [lists[user] for user in users]

            places = [chance.randrange(6) for _ in users]
            before = self.counts.get(keys, pl.Series(places))
            assert before.dtype == pl.Int64
            assert before.to_list() == [
                maps[user].get(place) for user, place in zip(users, places, strict=True)
            ]
            new = [None if chance.random() < 0.3 else chance.randrange(100) for _ in users]
            self.counts.put(keys, places, pa.array(new, pa.int64()))
            for user, place, value in zip(users, places, new, strict=True):
                maps[user].pop(place, None)
                if value is not None:
                    maps[user][place] = value
            for index in context.visit(keys):
                user = users[keys.first_rows[index]]
                assert dict(self.counts.items()) == maps[user]
                assert len(self.counts) == len(maps[user])
                assert len(self.items) == len(lists[user])
            seen.append(len(users))
            return ()

    run(Columns, batches(20, 60, 12))
    assert sum(seen) == 1_200


def test_mistakes_are_told_and_change_nothing():
    told = []

    class Wrong(weir.KeyedProcess):
        items = weir.ListState(pl.Int64)
        counts = weir.MapState(pl.String, pl.Int64)

        def process_batch(self, batch, context):
            keys = context.keys(batch)
            with pytest.raises(ValueError, match="2 values for 3 keys"):
                self.items.extend(keys, [1, 2])
            with pytest.raises(TypeError, match="declared as int64"):
                self.items.extend(keys, [1, 2, "x"])
            with pytest.raises(TypeError, match="None"):
                self.items.extend(keys, [1, 2, None])
            with pytest.raises(ValueError, match="1 values for 3 keys"):
                self.counts.get(keys, ["a"])
            with pytest.raises(TypeError, match="declared as string"):
                self.counts.put(keys, ["a", "b", 3], [1, 2, 3])
            told.append((self.items.get(keys).to_list(), self.counts.get(keys, ["a"] * 3).to_list()))
            return ()

    run(Wrong, pl.DataFrame({"user": ["a", "b", "a"], "at": [1, 2, 3]}))
    assert told == [([[], [], []], [None, None, None])]
