"""Orders and payments that come within a second of each other, and those without a partner; and who has paid at all.

Besides, without bounds in time and so as a changelog: what a few of the orders have been paid, and how often.
"""

import polars as pl

import weir
from experiments.held_source import held

ORDERS = {"order": int, "at": int, "item": str}
PAYMENTS = {"of": int, "at": int, "cents": weir.Nullable(int)}
WITHIN_MS = (-200, 1_000)
#: Of so many rows one is joined without bounds.
FEW = 10


def build(orders: str, payments: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("joins")
    left = flow.source(
        "orders", held(weir.JsonLines(orders, schema=ORDERS, event_time="at", rate=rate), release)
    )
    right = flow.source(
        "payments", held(weir.JsonLines(payments, schema=PAYMENTS, event_time="at", rate=rate), release)
    )
    joined = left.key_by("order").join("joined", right.key_by("of"), within=WITHIN_MS, how="full")
    joined.rebalance().sink("out", weir.JsonLinesSink(output))
    few_orders = left.filter("few_orders", pl.col("at") % FEW == 0).select("ordered", "order", "item")
    few_payments = right.filter("few_payments", pl.col("at") % FEW == 0).select("paid", "of", "cents")
    known = few_orders.key_by("order").join("known", few_payments.key_by("of"), how="left")
    totals = known.key_by("order").aggregate("totals", n=weir.count(), cents=weir.sum("cents"))
    totals.rebalance().sink("told", weir.JsonLinesSink(f"{output}-told"))
    return flow
