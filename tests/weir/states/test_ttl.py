"""TTLs as jobs have them: with a test's clock, over restarts and savepoints, added and taken away, and their bytes."""

import datetime as dt
import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
import weir.testing
from weir.author.operator import OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.errors import StateMismatchError
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.protocol.checkpoints.horizons import Horizon
from weir.rows.records import with_times
from weir.specs import KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.state.ttl import duration_ms
from weir.testing import ManualClock

GOLDEN = Path(__file__).parents[2] / "golden/states"
SCHEMA = pa.schema({"k": pa.string(), "got": pa.string()})


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        (dt.timedelta(hours=1), 3_600_000),
    ],
)
def test_durations(text, ms):
    assert duration_ms(text) == ms
    assert weir.Ttl(text).duration_ms == ms


@pytest.mark.parametrize(
    "value", ["", "0s", "1", "h", "1 hour", "-1s", 5, None, dt.timedelta(microseconds=1)]
)
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(weir.GraphError, match="is not a duration"):
        weir.Ttl(value)


def test_other_words_and_things_are_refused():
    with pytest.raises(weir.GraphError, match="refreshed_by is 'read'"):
        weir.Ttl("1h", refreshed_by="read")
    with pytest.raises(weir.GraphError, match="time is 'wall'"):
        weir.Ttl("1h", time="wall")
    with pytest.raises(weir.GraphError, match=r"write ttl=weir.Ttl\('1h'\)"):
        weir.ValueState(pl.Int64, ttl="1h")


def states_with(ttl):
    class States(weir.KeyedProcess):
        number = weir.ValueState(pl.Int64, default=7, ttl=ttl)
        text = weir.ValueState(pl.String, ttl=ttl)
        items = weir.ListState(pl.Int64, ttl=ttl)
        names = weir.MapState(pl.String, pl.Int64, ttl=ttl)

        def process(self, key, row, context):
            if row["n"]:
                self.number.value = row["n"]
                self.text.value = f"text {row['n']}"
                self.items.append(row["n"])
                self.names[str(row["n"])] = row["n"]
            found = self.number.value, self.text.value, list(self.items), dict(self.names.items())
            assert (len(self.items), len(self.names)) == (len(found[2]), len(found[3]))
            yield {"k": key[0], "got": repr(found)}

    return States


class Operator:
    """One operator with all states over a store, as a checkpoint restores it."""

    def __init__(self, ttl, store, restored=None, clock=None, horizons=()):
        process = states_with(ttl)
        states = process_states("step", process)
        spec = KeyedProcessSpec(("k",), process, SCHEMA, states, horizons=horizons)
        ids = {state.name: number for number, state in enumerate(spec.states, 1)}
        self.tables = StateTables(store, 1 << 20, 4)
        self.operator = KeyedProcessOperator(spec)
        tables = self.tables.of("step", ids)
        more = {} if clock is None else {"clock": clock}
        self.operator.open(
            OperatorContext("job", "step", 1, 0, 1, 4, tables=tables, restored=restored or {}, **more)
        )

    def run(self, n=0, key="a"):
        batch = pa.record_batch({"k": [key], "n": pa.array([n], pa.int64())})
        (out,) = self.operator.process(with_times(batch, 0, 0))
        return eval(out.column("got")[0].as_py())

    def watermark(self, ms):
        list(self.operator.on_watermark(ms))

    def end(self):
        self.tables.flush()
        return {0: json.loads(json.dumps(self.operator.snapshot(1)))}


NOTHING = (7, None, [], {})


def test_a_ttl_that_is_added_counts_from_the_restore():
    store, clock = MemoryBackend(), ManualClock()
    old = Operator(None, store)
    old.run(1)
    ttl = weir.Ttl("1h", time="processing")
    clock.advance_ms(1)
    new = Operator(ttl, store, old.end(), clock)
    assert new.run() == (1, "text 1", [1], {"1": 1})
    clock.advance_ms(1_800_000)
    assert new.run(2) == (2, "text 2", [1, 2], {"1": 1, "2": 2})
    # A further restore is not the one that counts.
    new = Operator(ttl, store, new.end(), clock)
    clock.advance_ms(1_800_000)
    assert new.run() == (2, "text 2", [2], {"2": 2})
    clock.advance_ms(1_800_000)
    assert new.run() == NOTHING


def test_a_ttl_in_event_time_that_is_added_counts_from_the_first_watermark():
    store = MemoryBackend()
    old = Operator(None, store)
    old.run(1)
    new = Operator(weir.Ttl("100ms"), store, old.end())
    assert new.run() == (1, "text 1", [1], {"1": 1})
    new.watermark(5_000)
    new.watermark(5_099)
    assert new.run() == (1, "text 1", [1], {"1": 1})
    new.watermark(5_100)
    assert new.run() == NOTHING
    while new.tables.sweeps.step():
        pass
    assert not list(store.scan())


def changed(ttl, store, snapshots, *, restored=True):
    """Of a changed job: its step reaches back as far as the snapshots say, also where a subtask is not restored."""
    first_ms = {name: at for kept in snapshots.values() for name, at in kept["times"]["first_ms"].items()}
    times = {name: form["stamps"] for name, form in snapshots[0]["codec"]["states"].items()}
    horizons = tuple(Horizon(name, times[name], at) for name, at in first_ms.items())
    return Operator(ttl, store, snapshots if restored else None, horizons=horizons)


@pytest.mark.parametrize("later", [None, weir.Ttl("1d")])
@pytest.mark.parametrize("restored", [True, False])
def test_what_had_expired_stays_so_under_a_longer_ttl_and_under_none(later, restored):
    store = MemoryBackend()
    old = Operator(weir.Ttl("100ms"), store)
    old.watermark(1_000)
    old.run(1)
    old.run(9, key="b")
    old.watermark(1_050)
    old.run(2)
    old.watermark(1_120)
    new = changed(later, store, old.end(), restored=restored)
    assert new.run(key="b") == NOTHING
    assert new.run() == (2, "text 2", [2], {"2": 2})
    # Written before the step knows a watermark, and read long after.
    assert new.run(5, key="c") == (5, "text 5", [5], {"5": 5})
    new.watermark(9_000)
    assert new.run(3) == (3, "text 3", [2, 3], {"2": 2, "3": 3})
    assert new.run(key="c") == (5, "text 5", [5], {"5": 5})
    # And another time, with what was swept and without.
    again = changed(None, store, new.end())
    assert again.run() == (3, "text 3", [2, 3], {"2": 2, "3": 3})
    entries = len(list(store.scan()))
    while again.tables.sweeps.step():
        pass
    assert len(list(store.scan())) < entries
    assert again.run() == (3, "text 3", [2, 3], {"2": 2, "3": 3})
    assert again.run(key="b") == NOTHING


def test_a_ttl_that_is_taken_away_from_a_state_of_an_earlier_version_leaves_what_is_there():
    store = MemoryBackend()
    old = Operator(weir.Ttl("100ms"), store)
    old.watermark(1_000)
    old.run(1)
    old.watermark(1_050)
    old.run(2)
    old.watermark(1_120)
    assert old.run() == (2, "text 2", [2], {"2": 2})
    old.run(9, key="b")
    new = Operator(None, store, old.end())
    new.watermark(9_000)
    assert new.run(3) == (3, "text 3", [2, 3], {"2": 2, "3": 3})
    assert new.run() == (3, "text 3", [2, 3], {"2": 2, "3": 3})
    snapshot = new.end()
    assert Operator(None, store, snapshot).run(key="b") == (9, "text 9", [9], {"9": 9})
    # And added again: from now on.
    again = Operator(weir.Ttl("100ms"), store, snapshot)
    again.watermark(20_000)
    assert again.run() == (3, "text 3", [2, 3], {"2": 2, "3": 3})
    again.watermark(20_100)
    assert again.run() == NOTHING


def test_another_kind_of_time_is_refused():
    store = MemoryBackend()
    old = Operator(weir.Ttl("1h"), store)
    with pytest.raises(StateMismatchError, match="state 'items' has times of event time in the checkpoint"):
        Operator(weir.Ttl("1h", time="processing"), store, old.end())


def test_a_watermark_that_is_not_there_yet_after_a_restore_brings_nothing_back():
    store = MemoryBackend()
    old = Operator(weir.Ttl("100ms"), store)
    old.watermark(1_000)
    old.run(1)
    old.watermark(1_100)
    assert Operator(weir.Ttl("100ms"), store, old.end()).run() == NOTHING


def test_bytes_do_not_change():
    """Of values with and without a TTL, of a clock that a group's former owner left, and of the snapshot."""
    found = {}
    for name, ttl in (("plain", None), ("timed", weir.Ttl("100ms"))):
        store = MemoryBackend()
        operator = Operator(ttl, store)
        operator.run(1)
        operator.watermark(1_000)
        operator.run(2, key="b")
        for table in operator.tables:
            table.flush_groups(range(4))
        snapshot = operator.end()[0]
        if ttl is not None:
            for table in operator.tables:
                table.release_groups(range(1))
        found[name] = {"snapshot": snapshot, "entries": {k.hex(): v.hex() for k, v in store.scan()}}
    assert found == json.loads((GOLDEN / "ttl_v2.json").read_text())
    # What earlier versions wrote does not say before when entries had expired.
    for version in ("ttl_v1.json", "ttl_v2.json"):
        for name, ttl in (("plain", None), ("timed", weir.Ttl("100ms"))):
            store = MemoryBackend()
            golden = json.loads((GOLDEN / version).read_text())[name]
            store.write([(bytes.fromhex(k), bytes.fromhex(v)) for k, v in golden["entries"].items()])
            operator = Operator(ttl, store, {0: golden["snapshot"]})
            assert operator.run() == (1, "text 1", [1], {"1": 1})
            assert operator.run(key="b") == (2, "text 2", [2], {"2": 2})


class Batches(weir.KeyedProcess):
    """The batch form."""

    total = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("10s", time="processing"))
    note = weir.ValueState(pl.String, ttl=weir.Ttl("10s", time="processing", refreshed_by="access"))

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        counts = np.bincount(keys.inverse, minlength=len(keys.distinct))
        before = self.total.get(keys.distinct).to_numpy()
        notes = self.note.get(keys)
        self.total.put(keys.distinct, before + counts)
        if "set" in batch["what"].to_pylist():
            self.note.put(keys, batch["what"], last=True)
        yield (
            batch.select(["k"])
            .append_column("n", pa.array(before[keys.inverse]))
            .append_column("note", notes.to_arrow().cast(pa.string()))
        )


def test_a_job_with_a_test_clock_a_restart_and_a_savepoint():
    flow = weir.Dataflow("ttl")
    source = weir.JsonLines("x.jsonl", schema={"k": str, "what": str})
    columns = {"k": str, "n": int, "note": weir.Nullable(str)}
    flow.source("rows", source).key_by("k").process("count", Batches, columns).sink("out", weir.Blackhole())
    clock = ManualClock()

    def push(job, *whats):
        job.push("rows", [{"k": "a", "what": what} for what in whats])
        row = job.rows("count").to_dicts()[-1]
        return row["n"], row["note"]

    with weir.testing.start(flow, clock=clock, collect_sinks=True) as job:
        assert push(job, "set", "set") == (0, None)
        clock.advance_ms(6_000)
        assert push(job, "look") == (2, "set")
        clock.advance_ms(6_000)
        job.checkpoint()
        job.restart()
        assert push(job, "look") == (3, "set")
        savepoint = job.savepoint()
    clock.advance_ms(10_000)
    with weir.testing.start(flow, clock=clock, collect_sinks=True, from_savepoint=savepoint) as job:
        assert push(job, "look") == (0, None)


class LastWords(weir.KeyedProcess):
    """A timer at the very time of expiry tells the last value, and writes another."""

    n = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("100ms"))

    def process(self, key, row, context):
        self.n.value += 1
        context.timers.register(row["at"] + 100)
        yield {"k": key[0], "n": self.n.value}

    def on_timer(self, key, time_ms, context):
        yield {"k": key[0], "n": -self.n.value}
        self.n.value = 50


def test_a_timer_finds_what_its_watermark_lets_expire_and_what_it_writes_is_of_its_time():
    flow = weir.Dataflow("ttl")
    source = weir.JsonLines("x.jsonl", schema={"k": str, "at": int})
    counted = flow.source("rows", source).key_by("k").process("count", LastWords, {"k": str, "n": int})
    counted.sink("out", weir.Blackhole())
    with weir.testing.start(flow, collect_sinks=True) as job:
        job.advance_watermark("rows", 1_000)
        job.push("rows", [{"k": "a", "at": 1_000, "_event_time_ms": 1_000}])
        # Whether there was a watermark of 1,100 in between makes no difference.
        job.advance_watermark("rows", 5_000)
        job.push("rows", [{"k": "a", "at": 5_000, "_event_time_ms": 5_000}])
        assert [row["n"] for row in job.rows("count").to_dicts()] == [1, -1, 1]
        job.advance_watermark("rows", 5_150)
        job.push("rows", [{"k": "a", "at": 9_000, "_event_time_ms": 5_199}])
        assert [row["n"] for row in job.rows("count").to_dicts()[3:]] == [-1, 51]
        job.push("rows", [{"k": "a", "at": 9_000, "_event_time_ms": 5_299}])
        assert job.rows("count").to_dicts()[-1]["n"] == 1


class ByTheClock(weir.KeyedProcess):
    """A timer by the clock looks at a state by event time, and writes it."""

    n = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("1h"))

    def process(self, key, row, context):
        self.n.value += 1
        context.timers.register_processing(context.timers.now_ms + 1_000)
        yield {"k": key[0], "n": self.n.value}


class OneByOne(ByTheClock):
    def on_timer(self, key, time_ms, context):
        self.n.value += 100
        yield {"k": key[0], "n": self.n.value}


class Together(ByTheClock):
    def on_timers(self, batch, context):
        keys = context.keys(batch).distinct
        told = self.n.get(keys).to_numpy() + 100
        self.n.put(keys, told)
        yield pa.record_batch({"k": batch["k"].take(pa.array(keys.first_rows)), "n": told})


@pytest.mark.parametrize("kind", [OneByOne, Together])
def test_a_timer_by_the_clock_finds_what_has_not_expired_by_event_time(kind):
    flow = weir.Dataflow("ttl")
    source = weir.JsonLines("x.jsonl", schema={"k": str})
    counted = flow.source("rows", source).key_by("k").process("count", kind, {"k": str, "n": int})
    counted.sink("out", weir.Blackhole())
    with weir.testing.start(flow, clock=ManualClock(), collect_sinks=True) as job:

        def push(time_ms):
            job.push("rows", [{"k": "a", "_event_time_ms": time_ms}])

        push(1_000)
        job.advance_time(2_000)
        push(2_000)
        # Its time is that of the last row: it goes with what later ones find gone.
        job.advance_time(2_000)
        job.advance_watermark("rows", 3_601_999)
        push(3_601_999)
        job.advance_watermark("rows", 3_602_000)
        push(3_602_000)
        assert [row["n"] for row in job.rows("count").to_dicts()] == [1, 101, 102, 202, 203, 204]
