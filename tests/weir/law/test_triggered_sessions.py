"""Sessions of what a trigger as code tells, where one watermark makes many of its timers due."""

from __future__ import annotations

import random

import pytest

import weir
from tests.scenarios.flows.flow_triggers import GAP_MS, SCHEMA, RowsOrWait
from tests.scenarios.test_triggers import BURST_MS, KEYS_AT_ONCE, parts_of, sessions_of
from weir import testing


@pytest.mark.parametrize(("seed", "rows_a_push"), [(1, 1_500), (2, 37)])
def test_results_of_many_keys_come_in_the_order_of_time(seed, rows_a_push):
    made = random.Random(seed)
    names = [f"{number // BURST_MS}-{made.randrange(KEYS_AT_ONCE)}" for number in range(700)]
    flow = weir.Dataflow("triggers")
    source = weir.JsonLines("/absent", schema=SCHEMA, event_time="id")
    told = flow.source("events", source).key_by("server").triggered_window(RowsOrWait)
    parts = told.aggregate("parts", n=weir.count(), total=weir.sum("id"), last=weir.max("id"))
    visits = parts.key_by("server").window(
        weir.session(GAP_MS), early=weir.every("100ms", time="event"), results="changelog"
    )
    columns = {"n": weir.sum("n"), "total": weir.sum("total"), "last": weir.max("last")}
    visits.aggregate("visits", parts=weir.count(), **columns).sink("out", weir.Collect())
    with testing.start(flow) as job:
        rows = [{"id": at, "server": name} for at, name in enumerate(names)]
        for first in range(0, len(rows), rows_a_push):
            job.push("events", rows[first : first + rows_a_push])
        found = job.finish()["out"].to_polars()
    assert sorted(testing.folded(found).rows()) == sorted(sessions_of(parts_of(names)))
