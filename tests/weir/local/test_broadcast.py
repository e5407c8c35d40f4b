"""``connect_broadcast``: rules that every subtask has, kept once in checkpoints, and handed on in a rescale."""

import datetime as dt

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.broadcast import BroadcastTable

EVENTS = {"user": str, "n": int}
RULES = {"user": str, "limit": weir.Nullable(int)}
RESULT = {"user": str, "n": int, "limit": weir.Nullable(int)}


class Limits(weir.BroadcastProcess):
    def on_broadcast(self, row, rules):
        if row["limit"] is None:
            rules.pop(row["user"], None)
        else:
            rules[row["user"]] = row["limit"]

    def process(self, row, rules):
        yield {**row, "limit": rules.get(row["user"])}


class LimitBatches(Limits):
    def process_batch(self, batch, rules):
        limits = [rules.get(user) for user in batch.column("user").to_pylist()]
        yield batch.append_column("limit", pa.array(limits, pa.int64()))


def job(factory=Limits, parallelism=3, *, explicit=False):
    flow = weir.Dataflow("job")
    events = flow.source("events", weir.JsonLines("none", schema=EVENTS))
    rules = flow.source("rules", weir.JsonLines("none", schema=RULES))
    rules = rules.broadcast() if explicit else rules
    limited = events.key_by("user").connect_broadcast(
        "limited", rules, factory, RESULT, parallelism=parallelism
    )
    limited.sink("out", weir.Collect())
    return flow


USERS = [f"u{n}" for n in range(20)]


def events(start):
    return [{"user": user, "n": start + n} for n, user in enumerate(USERS)]


def limits_of(rows):
    return {row["n"]: row["limit"] for row in rows}


@pytest.mark.parametrize(("factory", "explicit"), [(Limits, False), (LimitBatches, True)])
def test_every_subtask_has_the_rules_also_after_restarts_and_with_other_parallelism(factory, explicit):
    with testing.start(job(factory, explicit=explicit), {"events": events(0), "rules": []}) as running:
        running.push("rules", [{"user": user, "limit": n} for n, user in enumerate(USERS)])
        running.push("events", events(100))
        running.checkpoint()
        running.push("rules", [{"user": "u3", "limit": None}, {"user": "u4", "limit": 44}])
        running.restart()
        running.push("events", events(200))
        savepoint = running.savepoint()
        found = limits_of(running.rows("limited"))
    assert [found[n] for n in range(20)] == [None] * 20
    assert [found[100 + n] for n in range(20)] == list(range(20))
    changed = [*range(3), None, 44, *range(5, 20)]
    assert [found[200 + n] for n in range(20)] == changed
    with testing.start(
        job(factory, 5), {"events": events(300), "rules": []}, from_savepoint=savepoint
    ) as running:
        found = limits_of(running.rows("limited"))
    assert [found[300 + n] for n in range(20)] == changed


def test_a_checkpoint_has_the_rules_once():
    with testing.start(job(), {"events": [], "rules": [{"user": "a", "limit": 1}]}) as running:
        running.checkpoint()
        snapshots = running._generations.deployment.snapshots
        kept = [found["limited"] for found in snapshots.values() if "limited" in found]
    assert [value["items"] for value in kept] == [{"a": 1}]


def test_a_subtask_that_a_rescale_adds_gets_the_rules_with_its_groups():
    backend = MemoryBackend()
    old, other = BroadcastTable(backend, 1, range(64)), BroadcastTable(backend, 1, range(64, 128))
    new = BroadcastTable(backend, 1, ())
    for table in (old, other):
        table.items.update({"a": 1, "b": 2, "c": 3})
    # What comes meanwhile is later than what comes with the groups.
    before = dict(new.items)
    new.items["a"] = 10
    new.changed(before)
    before = dict(new.items)
    new.items["c"] = 30
    new.changed(before)
    before = dict(new.items)
    del new.items["c"]
    new.changed(before)
    assert (old.is_keeper, new.is_keeper, new.is_whole) == (True, False, False)
    old.release_groups([0, 7])
    new.adopt_groups([0, 7])
    other.release_groups([100])
    new.adopt_groups([100])
    assert new.items == {"a": 10, "b": 2}
    assert (old.is_keeper, new.is_keeper, new.is_whole) == (False, True, True)
    # Nothing is left in the store, and a group that comes back changes nothing.
    assert list(backend.scan_prefix(b"")) == []
    new.release_groups([0])
    old.adopt_groups([0])
    assert (old.items, old.is_keeper, new.is_keeper) == ({"a": 1, "b": 2, "c": 3}, True, False)
    # A new subtask does not begin with what the job once began with.
    third = BroadcastTable(backend, 1, ())
    third.restore({"stale": 1})
    assert third.items == {}


def test_the_form_in_which_rules_go_to_a_new_subtask():
    backend = MemoryBackend()
    old = BroadcastTable(backend, 1, range(64))
    old.restore({"a": [1, None]}, lets_rows_go=True)
    old.release_groups([5])
    ((key, value),) = backend.scan_prefix(b"")
    assert (key, value) == (b"\x00\x05\x00\x01\x03all", b'[{"a":[1,null]},true]')
    # Before rows could wait it was the dict alone.
    for kept, lets_rows_go in ((value, True), (b'{"a":[1,null]}', False)):
        backend.write([(key, kept)])
        new = BroadcastTable(backend, 1, ())
        new.adopt_groups([5])
        assert (new.items, new.lets_rows_go, new.groups) == ({"a": [1, None]}, lets_rows_go, {5})


class NoRules(weir.BroadcastProcess):
    def process(self, row, rules):
        return ()


class NoProcess(weir.BroadcastProcess):
    def on_broadcast(self, row, rules):
        pass


def connect(factory, *, keyed=True, rules=None):
    flow = weir.Dataflow("job")
    stream = flow.source("events", weir.JsonLines("none", schema=EVENTS)).key_by("user")
    stream = stream if keyed else stream.filter("f", pl.col("n") > 0)
    other = flow.source("rules", weir.JsonLines("none", schema=RULES)) if rules is None else rules
    return stream.connect_broadcast("c", other, factory, RESULT)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: connect(Limits, keyed=False), "step 'c': call key_by right before connect_broadcast"),
        (lambda: connect(Limits, rules=3), "step 'c': connect_broadcast takes a stream of the same Dataflow"),
        (lambda: connect(NoRules), "step 'c': NoRules has no on_broadcast; write"),
        (lambda: connect(NoProcess), "step 'c': NoProcess has neither process nor process_batch; write"),
        (lambda: connect(weir.Operator), "step 'c': Operator is no weir.BroadcastProcess; write"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(mistake, message):
    with pytest.raises(weir.GraphError, match=message):
        mistake()


class Raises(Limits):
    def on_broadcast(self, row, rules):
        if row["limit"] == 7:
            raise ValueError("no seven")
        odd = {8: {1}, 9: dt.date(2026, 11, 23), 10: (1, 2), 11: float("nan")}
        rules[row["user"]] = odd.get(row["limit"], row["limit"])


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (7, "step 'limited': on_broadcast raised ValueError: no seven"),
        (8, "step 'limited': broadcast state is not text -> JSON after on_broadcast: .*set"),
        (9, "step 'limited': broadcast state is not text -> JSON after on_broadcast: .*date"),
        (10, r"item 'a' is \(1, 2\), and would be \[1, 2\] after a restart"),
        (11, "item 'a' is nan, and would be None after a restart"),
    ],
)
def test_rules_that_cannot_be_fail_the_step(limit, message):
    with pytest.raises(weir.WeirError, match=message):
        testing.run(job(Raises), {"events": [], "rules": [{"user": "a", "limit": limit}]})
