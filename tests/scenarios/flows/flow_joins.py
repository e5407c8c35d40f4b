"""Orders and payments that come within a second of each other, and those without a partner; and who has paid at all."""

import weir
from experiments.held_source import held

ORDERS = {"order": int, "at": int, "item": str}
PAYMENTS = {"of": int, "at": int, "cents": weir.Nullable(int)}
WITHIN_MS = (-200, 1_000)


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
    return flow
