"""Broadcast state on real task managers: every subtask has all rules that came, through rescales and kill -9."""

import json

import polars as pl
import pytest

from experiments.soak_check import write_events
from tests.scenarios.conftest import EVENTS_THAT_DISTURB, KEPT_BACK

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 20_000, 1_000, 300
STAGE = 2
#: Each server has a rule in each; the last ones come with the rows that were kept back.
ROUNDS = 8


def test_rules_that_came_before_between_and_after_rescales_are_known_to_every_subtask(
    run_disturbed, tmp_path
):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 9)
    rows = pl.read_ndjson(events).select("id", "server")
    servers = rows["server"].unique().sort().to_list()
    rules = tmp_path / "rules.jsonl"
    made = ({"server": name, "round": number} for number in range(ROUNDS) for name in servers)
    rules.write_text("".join(json.dumps(rule) + "\n" for rule in made))
    parameters = {"input": events, "rules": rules, "output": tmp_path / "out", "rate": RATE}
    run_disturbed("flow_broadcast", parameters, stages=[STAGE], parallelisms=(3, 2), rows=500)
    parts = [part for part in (tmp_path / "out").glob("part-*") if part.stat().st_size]
    found = pl.concat([pl.read_ndjson(part) for part in sorted(parts)]).sort("id")
    assert found.select("id", "server").equals(rows.sort("id"))
    # Rules and rows of a part of the input come side by side; those of the part before that came before an event ended.
    part = pl.col("id") * ROUNDS // EVENTS
    is_kept_back = part >= round((1 - KEPT_BACK * EVENTS_THAT_DISTURB) * ROUNDS)
    later = found.filter(is_kept_back)
    assert later["known"].unique().to_list() == [len(servers)]
    assert later.filter(pl.col("round") < part - 2).is_empty()
    # No subtask goes back to an older rule while the rows of a key follow each other.
    assert later.filter(pl.col("round").diff().over("server") < 0).is_empty()
    assert later["round"].max() == ROUNDS - 1
