"""Triggers as code, and early sessions as changes after them, equal plain Python through rescales and kill -9."""

import json
import random
from collections import defaultdict

import polars as pl
import pytest

from tests.scenarios.flows.flow_triggers import GAP_MS, ROWS, WAIT_MS
from weir.testing import folded

pytestmark = pytest.mark.scenario

EVENTS, RATE = 4_000, 500
#: Rows of a key come within so many ms: so a timer finds all rows that its window will have.
BURST_MS, KEYS_AT_ONCE = 100, 10


def test_triggers_and_early_sessions_equal_plain_python_through_rescales_and_a_loss(run_disturbed, tmp_path):
    made = random.Random(7)
    names = [f"{number // BURST_MS}-{made.randrange(KEYS_AT_ONCE)}" for number in range(EVENTS)]
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps({"id": at, "server": name}) + "\n" for at, name in enumerate(names)))
    parameters = {"input": events, "output": tmp_path / "out", "rate": RATE}
    run_disturbed("flow_triggers", parameters, stages=[1], parallelisms=(3, 2), rows=70)
    parts = [part for part in sorted((tmp_path / "out").glob("part-*")) if part.stat().st_size]
    found = pl.concat([pl.read_ndjson(part) for part in parts])
    expected = list(sessions_of(parts_of(names)))
    assert sorted(folded(found).rows()) == sorted(expected)
    # Sessions were told before they were complete, and replaced.
    assert found.filter(pl.col("_change") == "update_before").height > 100
    assert min(row[3] for row in expected) == 1 < max(row[3] for row in expected)


def parts_of(names):
    """By key what the trigger tells: event time and ids of each result."""
    ids = defaultdict(list)
    for at, name in enumerate(names):
        ids[name].append(at)
    told = defaultdict(list)
    for name, each in ids.items():
        for start in range(0, len(each), ROWS):
            rows = each[start : start + ROWS]
            told[name].append((rows[-1] if len(rows) == ROWS else rows[0] + WAIT_MS, rows))
    return told


def sessions_of(told):
    """Rows as the job writes them, without what they change."""
    for name, results in told.items():
        session = []
        for at, rows in [*results, (float("inf"), [])]:
            if session and at - session[-1][0] > GAP_MS:
                ids = [number for _, each in session for number in each]
                bounds = (session[0][0], session[-1][0] + GAP_MS)
                yield (name, *bounds, len(session), len(ids), sum(ids), max(ids))
                session = []
            session.append((at, rows))
