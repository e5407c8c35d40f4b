"""Broadcast state on real task managers: every subtask keeps all rules, through rescales and kill -9."""

import json

import polars as pl
import pytest

from experiments.soak_check import write_events

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 20_000, 1_000, 300
STAGE = 2


def test_rules_that_were_read_once_are_kept_by_every_subtask(run_disturbed, tmp_path):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 9)
    servers = pl.read_ndjson(events)["server"].unique().sort().to_list()
    rules = tmp_path / "rules.jsonl"
    rules.write_text("".join(json.dumps({"server": name, "rule": f"of {name}"}) + "\n" for name in servers))
    parameters = {"input": events, "rules": rules, "output": tmp_path / "out", "rate": RATE}
    run_disturbed("flow_broadcast", parameters, stage=STAGE, parallelisms=(3, 2), rows=500)
    parts = [part for part in (tmp_path / "out").glob("part-*") if part.stat().st_size]
    found = pl.concat([pl.read_ndjson(part) for part in sorted(parts)]).sort("id")
    assert found.select("id", "server").equals(pl.read_ndjson(events).select("id", "server").sort("id"))
    # The first rows may have come before the rules.
    later = found.filter(pl.col("id").is_in(found["id"].to_list()[500:]))
    assert later["known"].unique().to_list() == [len(servers)]
    assert (later["rule"] == "of " + later["server"]).all()
