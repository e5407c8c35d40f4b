"""Timers of keyed processes in jobs of one process: when they fire, in which order, and what a restart keeps."""

import datetime
import random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.errors import CheckpointError, GraphError, UserFunctionError
from weir.rows.records import BATCH_BYTES_MAX

SCHEMA = {"user": str, "at": int}
OUT = {"user": str, "what": str, "n": int}
NOW_MS = 1_700_000_000_000


class Sessions(weir.KeyedProcess):
    """Closes a user's session 10 ms after the last event."""

    events = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def process(self, key, row, context):
        self.events.value += 1
        if self.ends.value is not None:
            context.timers.delete(self.ends.value)
        self.ends.value = row["at"] + 10
        context.timers.register(row["at"] + 10)

    def on_timer(self, key, time_ms, context):
        assert context.event_time_ms == time_ms
        assert not context.timers.is_processing
        yield {"user": key[0], "what": "session", "n": self.events.value}
        self.events.clear()
        self.ends.clear()


#: What a timer that fires does, by its user and its time.
ON_FIRE = {}


class Later(weir.KeyedProcess):
    """Does what each row says; each timer is told."""

    fired = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        perform(context.timers, row["what"], row["n"])

    def on_timer(self, key, time_ms, context):
        self.fired.value += 1
        kind = "clock" if context.timers.is_processing else "event"
        yield {"user": key[0], "what": f"{kind} {self.fired.value}", "n": time_ms}
        for what, time in ON_FIRE.get((key[0], time_ms), ()):
            perform(context.timers, what, time)


def perform(timers, what, time):
    {
        "register": timers.register,
        "delete": timers.delete,
        "clock": timers.register_processing,
        "no clock": timers.delete_processing,
    }[what](time)


def flow_of(process, columns=SCHEMA, *, parallelism=1):
    flow = weir.Dataflow("timed")
    events = flow.source("events", weir.JsonLines("/absent", schema=columns, event_time="at"))
    events.key_by("user").process("timed", process, OUT, parallelism=parallelism).sink("out", weir.Collect())
    return flow


ORDERS = {"user": str, "at": int, "what": str, "n": int}


def order(user, what, n, at=0):
    return {"user": user, "at": at, "what": what, "n": n}


def fired(job):
    return [(row["user"], row["what"], row["n"]) for row in job.rows("out")]


def test_sessions_close_when_the_watermark_passes_and_the_rest_at_the_end():
    with testing.start(flow_of(Sessions), {"events": []}) as job:
        job.push("events", [{"user": "ann", "at": 5}, {"user": "bob", "at": 7}, {"user": "ann", "at": 11}])
        job.advance_watermark("events", 16)
        assert fired(job) == []
        job.advance_watermark("events", 17)
        assert fired(job) == [("bob", "session", 1)]
        job.push("events", [{"user": "bob", "at": 30}])
        job.advance_watermark("events", 21)
        assert fired(job)[1:] == [("ann", "session", 2)]
        result = job.finish()
    assert [row["n"] for row in result["out"]] == [1, 2, 1]


class LongRows(weir.KeyedProcess):
    """20 MB when its timers fire."""

    def process(self, key, row, context):
        for time_ms in range(1, 21):
            context.timers.register(time_ms)

    def on_timer(self, key, time_ms, context):
        yield {"user": key[0], "what": "x" * 1_000_000, "n": time_ms}


def test_long_rows_of_timers_leave_in_batches_of_bounded_bytes():
    sizes = []

    def measured(batch):
        sizes.append(batch.nbytes)
        return batch

    flow = weir.Dataflow("timed")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    rows = events.key_by("user").process("timed", LongRows, OUT).map_batches("sizes", measured)
    rows.sink("out", weir.Collect())
    with testing.start(flow, {"events": [{"user": "ann", "at": 0}]}) as job:
        assert [row["n"] for row in job.finish()["out"]] == list(range(1, 21))
    assert max(sizes) < BATCH_BYTES_MAX + 1_100_000


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_timers_are_one_for_each_key_and_time_and_fire_in_the_order_of_time(state, monkeypatch):
    then = {
        # Before the next one, long due, the next one itself (it is one), not yet due.
        ("ann", 10): [("register", 15), ("register", 3), ("register", 20), ("register", 90)],
        ("bob", 10): [("delete", 20)],
        ("bob", 30): [("register", 30 + 1), ("delete", 30 + 1)],
    }
    for at, orders in then.items():
        monkeypatch.setitem(ON_FIRE, at, orders)
    with testing.start(flow_of(Later, ORDERS), {"events": []}, state=state) as job:
        job.push("events", [order("ann", "register", n) for n in (20, 10, 10, 80)])
        job.push("events", [order("bob", "register", n) for n in (30, 10, 20, 20)])
        job.checkpoint()
        job.push("events", [order("ann", "register", 20), order("bob", "delete", 999)])
        job.advance_watermark("events", 50)
        told = fired(job)
        assert [(n, what) for user, what, n in told if user == "ann"] == [
            (10, "event 1"),
            (3, "event 2"),
            (15, "event 3"),
            (20, "event 4"),
        ]
        assert [(n, what) for user, what, n in told if user == "bob"] == [(10, "event 1"), (30, "event 2")]
        # Late ones fire at once: before the next row.
        job.push(
            "events",
            [order("bob", "register", 40), order("bob", "register", 50), order("bob", "register", 7)],
        )
        assert fired(job)[len(told) :] == [
            ("bob", "event 3", 40),
            ("bob", "event 4", 50),
            ("bob", "event 5", 7),
        ]
        rows = job.finish()["out"]
    assert [(row["user"], row["n"]) for row in rows][-2:] == [("ann", 80), ("ann", 90)]


def test_timers_by_the_clock_fire_when_it_reaches_them():
    with testing.start(flow_of(Later, ORDERS), {"events": []}) as job:
        job.push(
            "events",
            [order("ann", "clock", NOW_MS + n) for n in (100, 50, 50, 300, 70)]
            + [order("ann", "no clock", NOW_MS + 70)],
        )
        job.advance_time(49)
        assert fired(job) == []
        job.advance_time(1)
        assert fired(job) == [("ann", "clock 1", NOW_MS + 50)]
        job.checkpoint()
        job.advance_time(60)
        assert fired(job)[1:] == [("ann", "clock 2", NOW_MS + 100)]
        job.restart()
        # The restart lost that it had fired; it was due meanwhile.
        assert fired(job)[1:] == [("ann", "clock 2", NOW_MS + 100)]
        job.push("events", [order("bob", "clock", 5)])
        assert fired(job)[2:] == [("bob", "clock 1", 5)]


def test_what_is_left_by_the_clock_at_the_end_is_told(caplog):
    with testing.start(flow_of(Later, ORDERS), {"events": []}) as job:
        job.push("events", [order("ann", "clock", NOW_MS + n) for n in (100, 200)])
        rows = job.finish()["out"]
    assert list(rows) == []
    assert "step 'timed': the input has ended; 2 timers by the clock do not fire any more" in caplog.text


class InBatches(weir.KeyedProcess):
    """As Sessions, but every event has a timer of its own."""

    events = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        context.timers.register(batch["at"].to_numpy() + 10, keys)
        context.timers.delete(pa.array([12] * len(keys)), keys)
        return ()

    def on_timers(self, batch, context):
        assert batch.schema.names == ["user", "_event_time_ms", "_ingest_time_us"]
        keys = context.keys(batch)
        self.events.put(keys.distinct, self.events.get(keys.distinct) + 1)
        if not context.timers.is_processing and max(batch["_event_time_ms"].to_pylist()) < 40:
            context.timers.register([40] * len(keys.distinct), keys.distinct)
            context.timers.register_processing(pl.Series([NOW_MS + 7] * len(keys)), keys)
        totals = self.events.get(keys)
        yield pa.record_batch(
            {"user": batch["user"], "what": ["timer"] * len(keys), "n": batch["_event_time_ms"]}
        )
        assert totals.min() >= 1


def test_timers_in_batches():
    with testing.start(flow_of(InBatches), {"events": []}) as job:
        job.push(
            "events", [{"user": user, "at": at} for user, at in (("a", 5), ("b", 1), ("a", 2), ("b", 1))]
        )
        job.advance_watermark("events", 20)
        assert sorted(fired(job)) == [("a", "timer", 15), ("b", "timer", 11)]
        job.advance_watermark("events", 40)
        assert {row for row in fired(job) if row[2] == 40} == {("a", "timer", 40), ("b", "timer", 40)}
        job.advance_time(7)
        assert {row for row in fired(job) if row[2] > 40} == {(user, "timer", NOW_MS + 7) for user in "ab"}
        assert len(fired(job)) == 6


class ByClock(weir.KeyedProcess):
    """Tells how many rows come at once; its timers go by the clock only."""

    timer_time = "processing"
    rows = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        counts = self.rows.get(keys.distinct).to_numpy() + np.bincount(keys.inverse)
        self.rows.put(keys.distinct, counts)
        context.timers.register_processing(batch["at"].to_numpy() + NOW_MS, keys)
        yield pa.record_batch(
            {"user": batch["user"], "what": ["rows"] * len(keys), "n": [batch.num_rows] * len(keys)}
        )

    def on_timer(self, key, time_ms, context):
        assert context.timers.is_processing
        yield {"user": key[0], "what": "timer", "n": self.rows.value}


class WronglyByClock(ByClock):
    def process_batch(self, batch, context):
        context.timers.register(batch["at"].to_numpy(), context.keys(batch))
        return ()


class OtherTime(ByClock):
    timer_time = "event"


def test_timers_that_all_go_by_the_clock_leave_batches_whole():
    flow = flow_of(ByClock)
    others = flow.source("others", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    # For its sake rows of the job have watermarks.
    others.key_by("user").process("sessions", Sessions, OUT).sink("other", weir.Collect())
    with testing.start(flow, {"events": [], "others": []}) as job:
        job.push(
            "events", [{"user": user, "at": at} for user, at in (("a", 9), ("a", 3), ("b", 3), ("a", 9))]
        )
        assert fired(job) == [("a", "rows", 4), ("a", "rows", 4), ("b", "rows", 4), ("a", "rows", 4)]
        job.advance_watermark("events", 100)
        job.checkpoint()
        job.restart()
        assert len(fired(job)) == 4
        job.advance_time(3)
        assert sorted(fired(job)[4:]) == [("a", "timer", 3), ("b", "timer", 1)]
        job.advance_time(6)
        assert fired(job)[6:] == [("a", "timer", 3)]
        job.push("events", [{"user": "a", "at": 1}])
        assert fired(job)[7:] == [("a", "rows", 1), ("a", "timer", 4)]


def test_a_class_whose_timers_go_by_the_clock_registers_no_others():
    with pytest.raises(
        GraphError, match=r"step 'timed': WronglyByClock calls timers.register, but declares timer_time"
    ):
        testing.run(flow_of(WronglyByClock), {"events": [{"user": "ann", "at": 1}]})
    with pytest.raises(GraphError, match="OtherTime: timer_time is 'event'; it is 'any' or 'processing'"):
        flow_of(OtherTime)


class Without(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        context.timers.register(5)


class Wrong(Without):
    def on_timer(self, key):
        pass


def test_a_class_without_on_timer_or_with_a_wrong_one_is_refused():
    with pytest.raises(
        GraphError, match=r"step 'timed': Without uses context.timers, but has no on_timer\(self, key"
    ):
        testing.run(flow_of(Without), {"events": [{"user": "ann", "at": 1}]})
    with pytest.raises(
        GraphError, match=r"step 'timed': Wrong: on_timer is called with \(self, key, time_ms, context\)"
    ):
        flow_of(Wrong)


@pytest.mark.parametrize(
    ("time", "told"),
    [
        (None, "was given None; it takes a time in ms since the epoch, an integer"),
        (True, "was given True"),
        (1.5, "was given 1.5"),
        (datetime.datetime(2024, 1, 1), "was given datetime"),
        (NOW_MS * 1000, "is not between the years 1 and 9999 in ms since the epoch; is it in another unit?"),
        (-(2**63), "is not between the years"),
    ],
)
@pytest.mark.parametrize("method", ["register", "delete", "register_processing", "delete_processing"])
def test_what_is_no_time_is_refused(method, time, told):
    class Given(Later):
        def process(self, key, row, context):
            getattr(context.timers, method)(time)

    with pytest.raises(
        UserFunctionError, match=rf"step 'timed': process raised .*timers.{method}.*"
    ) as caught:
        testing.run(flow_of(Given), {"events": [{"user": "ann", "at": 1}]})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([1], "given 1 times for 2 keys"),
        ([1, None], "given a null"),
        ([1.0, 2.0], "given times as float64"),
        ([1, NOW_MS * 1000], "is it in another unit"),
    ],
)
def test_times_that_are_none_are_refused(times, told):
    class Given(InBatches):
        def process_batch(self, batch, context):
            context.timers.register(times, context.keys(batch))

    with pytest.raises(UserFunctionError, match=told):
        testing.run(flow_of(Given), {"events": [{"user": user, "at": 1} for user in "ab"]})


def test_an_error_in_on_timer_names_step_key_and_time_and_the_restart_fires_it_again():
    class Fails(Sessions):
        fails = True

        def on_timer(self, key, time_ms, context):
            self.events.value = 77
            context.timers.register(1000)
            if Fails.fails and key == ("bob",):
                raise ValueError("no bob")
            return super().on_timer(key, time_ms, context)

    with testing.start(flow_of(Fails), {"events": []}) as job:
        job.push("events", [{"user": "bob", "at": 1}])
        job.checkpoint()
        with pytest.raises(
            UserFunctionError,
            match=r"step 'timed': on_timer for key \('bob',\) at 11 raised ValueError: no bob",
        ):
            job.advance_watermark("events", 30)
        Fails.fails = False
        job.restart()
        job.advance_watermark("events", 31)
        assert fired(job) == [("bob", "session", 77)]


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_timers_survive_restarts_and_a_savepoint_with_other_parallelism(tmp_path, state):
    """The result is that of plain Python."""
    chance = random.Random(3)
    given = [order(f"u{chance.randrange(30)}", "register", chance.randrange(1000), at) for at in range(1000)]
    expected = sorted({(row["user"], row["n"]) for row in given})
    seen = []
    with testing.start(flow_of(Later, ORDERS, parallelism=2), {"events": []}, state=state) as job:
        job.push("events", given[:500])
        job.checkpoint()
        job.push("events", given[500:700])
        job.restart()
        job.push("events", given[700:])
        job.advance_watermark("events", 400)
        job.checkpoint()
        job.advance_watermark("events", 600)
        job.restart()
        job.advance_watermark("events", 500)
        savepoint = job.savepoint(tmp_path / "savepoint")
        seen += fired(job)
    with testing.start(
        flow_of(Later, ORDERS, parallelism=3), {"events": []}, state=state, from_savepoint=str(savepoint)
    ) as job:
        seen += [(row["user"], row["what"], row["n"]) for row in job.finish()["out"]]
    assert sorted((user, n) for user, _, n in seen) == expected
    assert len({(user, what) for user, what, _ in seen}) == len(seen), "fired states of a key count on"


class CountOnly(weir.KeyedProcess):
    events = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64)

    def process(self, key, row, context):
        self.events.value += 1


def test_a_class_that_gains_timers_reads_an_older_savepoint_and_one_that_loses_them_says_so(tmp_path):
    with testing.start(flow_of(CountOnly), {"events": []}) as job:
        job.push("events", [{"user": "ann", "at": 1}] * 3)
        older = job.savepoint(tmp_path / "older")
    with testing.start(flow_of(Sessions), {"events": []}, from_savepoint=older) as job:
        job.push("events", [{"user": "ann", "at": 5}])
        newer = job.savepoint(tmp_path / "newer")
        job.advance_watermark("events", 20)
        assert fired(job) == [("ann", "session", 4)]
    with pytest.raises(CheckpointError, match=r"timed \(its timers\)"):
        testing.start(flow_of(CountOnly), {"events": []}, from_savepoint=newer)
    with testing.start(
        flow_of(CountOnly), {"events": []}, from_savepoint=newer, allow_dropped_state=True
    ) as job:
        job.push("events", [{"user": "ann", "at": 5}])


KEYS = {
    "user": [("ann", None), pl.String],
    "at": [(7, None), pl.Int64],
    "day": [(datetime.date(2024, 1, 2), None), pl.Date],
    "yes": [(True, False), pl.Boolean],
}


def test_keys_of_every_type_come_back_as_they_were():
    class Echo(weir.KeyedProcess):
        def process(self, key, row, context):
            context.timers.register(10)
            yield {**dict(zip(KEYS, key, strict=True)), "what": repr(key)}

        def on_timer(self, key, time_ms, context):
            yield {**dict(zip(KEYS, key, strict=True)), "what": repr(key)}

    columns = {name: weir.Nullable(dtype) for name, (_, dtype) in KEYS.items()}
    flow = weir.Dataflow("keys")
    events = flow.source("events", weir.JsonLines("/absent", schema=columns))
    keyed = events.key_by(*KEYS).process("timed", Echo, {**columns, "what": str})
    keyed.sink("out", weir.Collect())
    rows = [{name: values[index] for name, (values, _) in KEYS.items()} for index in range(2)]
    told = [row["what"] for row in testing.run(flow, {"events": rows})["out"]]
    assert len(told) == 4
    assert sorted(told)[::2] == sorted(told)[1::2]
    assert len(set(told)) == 2
