"""Timers that register timers for ever are told of: they would keep barriers, or the end of the job, waiting."""

import logging

import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.author import timer_sides
from weir.operators.keyed import firing

SCHEMA = {"k": str, "at": int}


class Earlier(weir.KeyedProcess):
    def process(self, key, row, context):
        context.timers.register(row["at"])

    def on_timer(self, key, time_ms, context):
        context.timers.register(time_ms - 1)


class EarlierInBatches(weir.KeyedProcess):
    def process_batch(self, batch, context):
        context.timers.register(batch["at"].to_numpy(), context.keys(batch))

    def on_timers(self, batch, context):
        context.timers.register(batch["_event_time_ms"].to_numpy() - 1, context.keys(batch))


class Later(weir.KeyedProcess):
    def process(self, key, row, context):
        context.timers.register(row["at"])

    def on_timer(self, key, time_ms, context):
        if time_ms < 300:
            context.timers.register(time_ms + 1)
        yield {"k": key[0], "at": time_ms}


def run(kind):
    flow = weir.Dataflow("endless")
    rows = flow.source("rows", weir.JsonLines("unused", schema=SCHEMA, event_time="at"))
    rows.key_by("k").process("timers", kind).sink("out", weir.Collect())
    return testing.run(flow, {"rows": pa.table({"k": ["a"], "at": [5]})})["out"].to_dicts()


@pytest.mark.parametrize("kind", [Earlier, EarlierInBatches])
def test_a_chain_of_ever_earlier_timers_fails_with_its_step(kind, monkeypatch):
    monkeypatch.setattr(timer_sides, "EARLIER_MAX", 50)
    with pytest.raises(
        weir.WeirError, match=r"step 'timers': on_timer.*more than 50 timers in a row.*register later"
    ):
        run(kind)


def test_a_chain_of_later_ones_at_the_end_of_the_input_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(firing, "_MANY_TIMERS", 100)
    with caplog.at_level(logging.WARNING):
        assert len(run(Later)) == 296
    (told,) = (record.getMessage() for record in caplog.records if "at_end" in record.getMessage())
    assert told.startswith("step 'timers': 296 timers have fired")
