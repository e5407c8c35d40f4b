"""Rows of hot keys that are added up before they are sent to running aggregates."""

import datetime as dt
import random
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.errors import CheckpointError
from weir.keys import hot_keys
from weir.keys.hashing import hash_keys, key_bytes
from weir.keys.hot_keys import HotKeySample
from weir.operators.aggregation.fold_classes import made_folds
from weir.operators.keyed import hot_rows
from weir.operators.keyed.hot_rows import HotRows, split_hot_parts
from weir.plan.stages import physical_graph
from weir.rows.records import KEY_PART_COLUMN
from weir.specs import Aggregate, KeyedAggregateSpec

SCHEMA = {
    "k": str,
    "id": int,
    "v": weir.Nullable(int),
    "x": float,
    "day": pl.Date,
    "price": pl.Decimal(12, 2),
}
DAY = dt.date(2026, 1, 1)


def flow_of(emit="per_batch", sources=1, parallelism=3, **aggregates):
    flow = weir.Dataflow("hot")
    rows = flow.source("rows", weir.JsonLines("/absent", schema=SCHEMA), parallelism=sources)
    totals = rows.key_by("k").aggregate("totals", emit=emit, parallelism=parallelism, **aggregates)
    totals.sink("out", weir.Collect())
    return flow


ASSOCIATIVE = {
    "n": weir.count(),
    "known": weir.count("v"),
    "odd": weir.count().where(pl.col("v") % 2 == 1),
    "total": weir.sum("v"),
    "low": weir.min("v"),
    "high": weir.max("v"),
    "late": weir.max("day"),
    "money": weir.sum("price"),
    "price_mean": weir.mean("price"),
}


def told_of(rows):
    """What plain Python makes of the rows of a key."""
    values = [row["v"] for row in rows if row["v"] is not None]
    prices = [row["price"] for row in rows]
    return {
        "n": len(rows),
        "known": len(values),
        "odd": sum(value % 2 == 1 for value in values),
        "total": sum(values) if values else None,
        "low": min(values, default=None),
        "high": max(values, default=None),
        "late": max(row["day"] for row in rows),
        "money": sum(prices),
        "price_mean": (sum(prices) / len(prices)).quantize(Decimal("0.000001"), ROUND_HALF_UP),
    }


@pytest.mark.parametrize(("sources", "seed"), [(1, 1), (2, 3)])
def test_totals_are_those_of_plain_python_whichever_rows_are_added_up(monkeypatch, sources, seed):
    monkeypatch.setattr(hot_rows, "ROWS_MIN", 8)
    monkeypatch.setattr(hot_keys, "_PASSED", 1)
    combined, looks = HotRows.combined, []

    def noted(self, batch, hashes):
        found = combined(self, batch, hashes)
        looks.append(0 if found is None else batch.num_rows - len(found.selection))
        return found

    monkeypatch.setattr(HotRows, "combined", noted)
    draw, given = random.Random(seed), []
    with testing.start(flow_of(sources=sources, **ASSOCIATIVE), seed=seed, state="rocksdb") as job:
        for phase in range(20):
            hot = draw.choice(["", "a", "b", "\N{GREEK SMALL LETTER ALPHA}"])
            rows = [
                {
                    "k": hot if hot and draw.random() < 0.6 else f"key-{draw.randrange(40)}",
                    "id": len(given) + number,
                    "v": draw.choice([None, draw.randrange(-9, 9)]),
                    "x": 0.5,
                    "day": DAY + dt.timedelta(days=draw.randrange(99)),
                    "price": Decimal(draw.randrange(10_000)) / 100,
                }
                for number in range(draw.choice([1, 5, 60, 200]))
            ]
            given += rows
            job.push("rows", rows, subtask=draw.randrange(sources))
            if phase % 7 == 3:
                job.checkpoint(draw.choice(["prepared", "committed"]))
            if phase % 9 == 5:
                job.restart()
        told = list(job.finish()["out"])
    assert sum(looks) > 300
    assert any(not saved for saved in looks)
    by_key = {}
    for row in given:
        by_key.setdefault(row["k"], []).append(row)
    last = {row["k"]: {name: row[name] for name in ASSOCIATIVE} for row in told}
    assert last == {key: told_of(rows) for key, rows in by_key.items()}
    if sources == 1:
        # Each row that leaves is one that came, with the totals as of it.
        for row in told:
            upto = [each for each in by_key[row["k"]] if each["id"] <= row["id"]]
            assert {name: row[name] for name in ASSOCIATIVE} == told_of(upto)
            assert row["v"] == upto[-1]["v"]


@pytest.mark.parametrize(
    ("emit", "aggregates", "is_combined"),
    [
        ("per_batch", ASSOCIATIVE, True),
        ("per_event", ASSOCIATIVE, False),
        ("per_batch", {"total": weir.sum("x")}, False),
        ("per_batch", {"mean": weir.mean("v")}, False),
        ("per_batch", {"n": weir.count(), "first": weir.first("v")}, False),
        ("per_batch", {"kinds": weir.count_distinct("v")}, False),
    ],
)
def test_only_what_says_the_same_is_added_up(emit, aggregates, is_combined):
    (edge,) = physical_graph(flow_of(emit, **aggregates).build()).stages[1].inputs
    assert (edge.combining is not None) == is_combined


def made():
    return HotRows(KeyedAggregateSpec(("k",), (Aggregate("s", "sum", "v"),), "per_batch"))


def rows_of(keys, values):
    batch = pa.record_batch({"k": pa.array(keys), "v": pa.array(values, pa.int64())})
    return batch, hash_keys(key_bytes(batch, ["k"]))


def test_the_last_row_of_a_hot_key_stands_for_the_others():
    keys = ["hot", "b", "hot", "c"] * 1000
    block = made().combined(*rows_of(keys, range(4000)))
    found = block.rows().to_pylist()
    assert [row["k"] for row in found if row[KEY_PART_COLUMN] is None] == []
    assert [(row["k"], row["v"]) for row in found] == [("b", 3997), ("hot", 3998), ("c", 3999)]
    folds = made_folds((Aggregate("s", "sum", "v"),), block.columns.schema)
    _, parts = split_hot_parts("step", block.rows(), 2, folds)
    assert parts.cells.integers[:, 0].tolist() == [
        sum(range(1, 4000, 4)),
        sum(range(0, 4000, 2)),
        sum(range(3, 4000, 4)),
    ]


def test_small_batches_uniform_keys_and_sums_that_pass_64_bits_are_sent_as_they_came():
    assert not made().is_due(100)
    uniform = [f"key-{number}" for number in range(5000)]
    one = made()
    assert one.combined(*rows_of(uniform, range(5000))) is None
    # Now fifteen batches pass.
    assert [one.is_due(5000) for _ in range(17)] == [False] * 15 + [True] * 2
    assert made().combined(*rows_of(["a"] * 2000, [2**62] * 2000)) is None


def test_keys_that_come_in_turn_are_not_taken_for_one_that_is_hot():
    hashes = np.arange(32, dtype=np.uint64)[np.arange(32 * 1024) % 32]
    assert not len(HotKeySample().rows_of_hot_keys(hashes))


def test_rows_that_were_added_up_for_other_aggregates_are_refused():
    rows = made().combined(*rows_of(["a"] * 2000, range(2000))).rows()
    for others in ((Aggregate("s", "max", "v"),), (Aggregate("s", "sum", "v"), Aggregate("n", "count"))):
        with pytest.raises(CheckpointError, match=r"'totals'.*other aggregates.*savepoint"):
            split_hot_parts("totals", rows, 2, made_folds(others, rows.schema))
