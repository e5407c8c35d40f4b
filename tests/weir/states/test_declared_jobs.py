"""Jobs with declared state: the obvious counting job, restarts, savepoints, and checkpoints with other types."""

import dataclasses
import functools
import random
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.errors import CheckpointError, StateError

SCHEMA = {"user": str, "at": int}


class Count(weir.KeyedProcess):
    total = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.total.value += 1
        yield {"user": key[0], "n": self.total.value}


class CountInBatches(weir.KeyedProcess):
    total = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        counts = np.bincount(keys.inverse, minlength=len(keys.distinct))
        totals = self.total.get(keys.distinct) + counts
        self.total.put(keys.distinct, totals)
        yield batch.select(["user"]).append_column("n", pa.array(totals.to_numpy()[keys.inverse]))


@dataclasses.dataclass
class Seen:
    first: int
    last: int
    places: list[str]
    note: str | None = None


class Everything(weir.KeyedProcess):
    total = weir.ValueState(pl.Int64, default=0)
    seen = weir.ValueState(Seen)
    ats = weir.ListState(pl.Int64)
    minutes = weir.MapState((pl.Int64, pl.String), pl.Int64)

    def process(self, key, row, context):
        assert context.event_time_ms == row["at"]
        self.total.value += 1
        self.ats.append(row["at"])
        if len(self.ats) > 3:
            self.ats.popleft()
        minute = row["at"] // 60, key[0]
        self.minutes[minute] = self.minutes.get(minute, 0) + 1
        if self.seen.value is None:
            self.seen.value = Seen(row["at"], row["at"], [])
        self.seen.value.last = row["at"]
        self.seen.value.places.append("x")
        told = [
            self.total.value,
            list(self.ats),
            list(self.minutes.items()),
            dataclasses.astuple(self.seen.value),
        ]
        return [{"user": key[0], "n": self.total.value, "told": repr(told)}]


class Less(weir.KeyedProcess):
    """Everything without the list, and with one more."""

    total = weir.ValueState(pl.Int64, default=0)
    seen = weir.ValueState(Seen)
    minutes = weir.MapState((pl.Int64, pl.String), pl.Int64)
    added = weir.ListState(pl.Int64)

    def process(self, key, row, context):
        self.total.value += 1
        assert len(self.added) < self.total.value, "a new state begins empty"
        yield {"user": key[0], "n": self.total.value, "told": str(len(self.added))}


def flow_of(process, columns=None, *, parallelism=1):
    flow = weir.Dataflow("declared")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    made = events.key_by("user").process(
        "made", process, columns or {"user": str, "n": int}, parallelism=parallelism
    )
    made.sink("out", weir.Collect())
    return flow


def events(count, users, seed=1):
    chance = random.Random(seed)
    return [{"user": f"u{chance.randrange(users)}", "at": number} for number in range(count)]


@pytest.mark.parametrize("process", [Count, CountInBatches])
def test_the_obvious_counting_job_is_right(process):
    """A user occurs in a batch again and again."""
    given = pl.DataFrame(events(300_007, 5_000))
    frame = testing.run(flow_of(process, parallelism=2), {"events": given})["out"].to_polars()
    found = dict(frame.group_by("user").agg(pl.col("n").max()).iter_rows())
    assert found == Counter(given["user"].to_list())
    if process is Count:
        assert frame.group_by("user").agg(pl.col("n").n_unique())["n"].sum() == 300_007


TOLD = {"user": str, "n": int, "told": str}


@pytest.mark.parametrize("on_disk", [False, True])
def test_state_survives_restarts_and_a_savepoint_with_other_parallelism(tmp_path, on_disk):
    given = events(900, 20)
    expected = testing.run(flow_of(Everything, TOLD), {"events": given})["out"]
    told = {(row["user"], row["n"]): row["told"] for row in expected}
    with testing.start(
        flow_of(Everything, TOLD, parallelism=2), {"events": []}, state="rocksdb" if on_disk else "memory"
    ) as job:
        job.push("events", given[:300])
        job.checkpoint()
        job.push("events", given[300:400])
        job.restart()
        job.push("events", given[400:600])
        savepoint = job.savepoint(tmp_path / "savepoint")
    path = getattr(savepoint, "path", tmp_path / "savepoint")
    with testing.start(
        flow_of(Everything, TOLD, parallelism=3),
        {"events": []},
        state="rocksdb" if on_disk else "memory",
        from_savepoint=path,
    ) as job:
        job.push("events", given[600:])
        rows = list(job.rows("out"))
    assert len(rows) == 300
    assert {(row["user"], row["n"]): row["told"] for row in rows}.items() <= told.items()


def savepoint_of(process, columns, path, given):
    with testing.start(flow_of(process, columns), {"events": []}) as job:
        job.push("events", given)
        job.savepoint(path)
    return path


def test_a_state_that_is_gone_needs_permission_and_its_number_is_not_used_again(tmp_path):
    path = savepoint_of(Everything, TOLD, tmp_path / "savepoint", events(100, 5))
    with pytest.raises(CheckpointError, match=r"do not have: made/ats; .* --allow-dropped-state"):
        testing.start(flow_of(Less, TOLD), {"events": []}, from_savepoint=path)
    with testing.start(
        flow_of(Less, TOLD, parallelism=2), {"events": []}, from_savepoint=path, allow_dropped_state=True
    ) as job:
        job.push("events", events(100, 5))
        rows = list(job.rows("out"))
    assert max(row["n"] for row in rows) == max(Counter(row["user"] for row in events(100, 5)).values()) * 2
    assert {row["told"] for row in rows} == {"0"}


def typed(dtype, kind=weir.ValueState):
    def process(self, key, row, context):
        if kind is weir.ValueState:
            yield {"user": key[0], "n": int(self.held.value or 0)}
            self.held.value = 5
        else:
            yield {"user": key[0], "n": len(self.held)}
            self.held.append(5)

    return type("Typed", (weir.KeyedProcess,), {"held": kind(dtype), "process": process})


def start_with(tmp_path, before, after):
    path = savepoint_of(before, None, tmp_path / "savepoint", events(1, 1))
    with testing.start(flow_of(after), {"events": []}, from_savepoint=path) as job:
        job.push("events", events(1, 1))
        return [row["n"] for row in job.rows("out")]


@pytest.mark.parametrize(
    ("before", "after"),
    [(pl.Int32, pl.Int64), (pl.Float32, pl.Float64), (pl.UInt8, pl.Int16), (pl.Int64, pl.Int64)],
)
def test_a_wider_type_is_read(tmp_path, before, after):
    assert start_with(tmp_path, typed(before), typed(after)) == [5]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            typed(pl.Int64),
            typed(pl.Int32),
            r"'held' is a value of int64 in the checkpoint, the job declares a value of int32",
        ),
        (typed(pl.Int64), typed(pl.Float64), r"value of int64 .* value of float64"),
        (typed(pl.Int64), typed(pl.Int64, weir.ListState), r"value of int64 .* a list of list<int64>"),
    ],
)
def test_another_type_is_refused_with_both_forms(tmp_path, before, after, told):
    with pytest.raises(StateError, match=told):
        start_with(tmp_path, before, after)


def test_a_batch_with_a_key_twice_says_which_value_counts():
    told = []

    class Twice(weir.KeyedProcess):
        held = weir.ValueState(pl.Int64)
        seen = weir.ListState(pl.Int64)
        single = weir.ValueState(pl.Float32)

        def process_batch(self, batch, context):
            keys = context.keys(batch)
            with pytest.raises(StateError, match=r"3 values for 2 distinct keys; .*last=True"):
                self.held.put(keys, [1, 2, 3])
            self.held.put(keys, np.array([1, 2, 3]), last=True)
            for index in context.visit(keys):
                self.seen.append(index)
                assert len(self.seen) == 1
                self.held.value += 10
            told.append(self.held.get(keys).to_list())
            with pytest.raises(StateError, match="has no current key here"):
                _ = self.held.value
            with pytest.raises(TypeError, match="put was given Float64, it is declared as int64"):
                self.held.put(keys.distinct, [0.5, 1.5])
            with pytest.raises(ValueError, match="'single': a number is out of range for float32"):
                self.single.put(keys.distinct, [0.5, 1e39])
            self.held.put(keys.distinct, [None, 4])
            told.append(self.held.get(keys).to_list())
            return ()

    given = pl.DataFrame({"user": ["a", "b", "a"], "at": [1, 2, 3]})
    testing.run(flow_of(Twice), {"events": given})
    assert told == [[13, 12, 13], [None, 4, None]]


def test_values_of_another_type_are_refused_where_they_are_set():
    class Wrong(weir.KeyedProcess):
        small = weir.ValueState(pl.Int8)
        texts = weir.ListState(pl.String)

        def process(self, key, row, context):
            for value, error in (
                (1.5, TypeError),
                ("x", TypeError),
                (True, TypeError),
                (200, ValueError),
            ):
                with pytest.raises(error):
                    self.small.value = value
            with pytest.raises(TypeError, match="declared as string"):
                self.texts.append(3)
            with pytest.raises(AttributeError, match=r"self\.small\.value = \.\.\."):
                self.small = 3
            with pytest.raises(IndexError):
                self.texts.pop()
            assert self.small.value is None
            assert not self.texts

    testing.run(flow_of(Wrong), {"events": events(3, 1)})


def test_declarations_are_checked_when_the_job_is_built():
    with pytest.raises(weir.GraphError, match="cannot be the type of a state"):
        weir.ValueState(pl.Categorical)
    with pytest.raises(weir.GraphError, match="the default of a state"):
        weir.ValueState(pl.Int64, default="x")
    with pytest.raises(weir.GraphError, match="cannot be the type of a map's keys"):
        weir.MapState(pl.Float64, pl.Int64)

    factories = (Count, functools.partial(Count), lambda: Count())
    assert {flow_of(factory).build().node("made").spec.states for factory in factories} == {
        flow_of(CountInBatches).build().node("made").spec.states
    }


def test_numbers_stay_when_states_are_added():
    before = flow_of(Count).build().state_ids({})
    assert before == {"made/total": 0}
    after = flow_of(Everything, TOLD).build().state_ids(before)
    assert after["made/total"] == 0
    assert sorted(after.values()) == [0, 1, 2, 3]
    assert flow_of(Less, TOLD).build().state_ids(after)["made/added"] == 4, (
        "not the number of a state that is gone"
    )
