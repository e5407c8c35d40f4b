"""On real task managers a join gives what a batch join gives, exactly once, through rescales and kill -9."""

import json
import random

import polars as pl
import pytest

from tests.scenarios.flows.flow_joins import FEW, WITHIN_MS
from weir.testing import folded

pytestmark = pytest.mark.scenario

ROWS, RATE, KEYS = 20_000, 1_000, 400
SETTINGS = {
    "taskManager.batch_size": 100,
    # Barriers overtake rows of the input that is ahead.
    "controlPlane.checkpoint_alignment_timeout_ms": 20,
    # No row is late, however the machine's pace: neither source is taken for idle.
    "controlPlane.idle_timeout_ms": 120_000,
}


def write(path, make):
    path.write_text("".join(json.dumps(make(number)) + "\n" for number in range(ROWS)))
    return pl.read_ndjson(path)


def test_a_full_join_is_that_of_a_batch_through_rescales_and_the_loss_of_a_task_manager(
    run_disturbed, tmp_path
):
    chance = random.Random(5)
    orders = write(
        tmp_path / "orders.jsonl",
        lambda number: {"order": chance.randrange(KEYS), "at": number, "item": f"item {number}"},
    )
    payments = write(
        tmp_path / "payments.jsonl",
        lambda number: {
            "of": chance.randrange(KEYS),
            "at": number,
            "cents": None if number % 7 == 0 else number,
        },
    )
    parameters = {
        "orders": tmp_path / "orders.jsonl",
        "payments": tmp_path / "payments.jsonl",
        "output": tmp_path / "out",
        "rate": RATE,
    }
    run_disturbed("flow_joins", parameters, stages=[2], parallelisms=(3, 2), rows=2_000, settings=SETTINGS)
    columns = {"order": pl.Int64, "at": pl.Int64, "item": pl.String, "at_right": pl.Int64, "cents": pl.Int64}
    found = read(tmp_path / "out", columns)
    expected = batch_join(orders, payments).select(list(columns))
    assert found.sort(*columns).equals(expected.sort(*columns))
    # The changelog leads to what a batch makes of all rows.
    told = read(
        tmp_path / "out-told", {"order": pl.Int64, "n": pl.Int64, "cents": pl.Int64, "_change": pl.String}
    )
    few = pl.col("at") % FEW == 0
    pairs = orders.filter(few).join(payments.filter(few), left_on="order", right_on="of", how="left")
    cents = pl.when(pl.col("cents").count() > 0).then(pl.col("cents").sum())
    totals = pairs.group_by("order").agg(n=pl.len().cast(pl.Int64), cents=cents)
    assert folded(told).sort("order").equals(totals.sort("order"))


def read(directory, columns):
    parts = [part for part in sorted(directory.glob("part-*")) if part.stat().st_size]
    return pl.concat([pl.read_ndjson(part, schema=columns) for part in parts])


def batch_join(orders, payments):
    """The full join by Polars, which has no intervals: pairs, then what is in none of them."""
    orders, payments = orders.with_row_index("left"), payments.with_row_index("right")
    pairs = orders.join(payments, left_on="order", right_on="of").filter(
        (pl.col("at_right") - pl.col("at")).is_between(*WITHIN_MS)
    )
    lefts = orders.filter(~pl.col("left").is_in(pairs["left"].implode()))
    rights = payments.filter(~pl.col("right").is_in(pairs["right"].implode()))
    rights = rights.rename({"of": "order", "at": "at_right"})
    return pl.concat([pairs, lefts, rights], how="diagonal")
