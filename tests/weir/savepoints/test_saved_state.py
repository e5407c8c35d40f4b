"""``weir.read_state``: what savepoints have, against plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import CheckpointError, GraphError
from weir.savepoints.contents import state_sizes
from weir.savepoints.saved_state import open_savepoint, opened

SCHEMA = {"user": str, "shop": int, "amount": int, "at": int}


class Kinds(weir.KeyedProcess):
    """One state of each kind."""

    last = weir.ValueState(int, 0)
    brief = weir.ValueState(int, 0, ttl=weir.Ttl("1s"))
    amounts = weir.ListState(int)
    shops = weir.MapState(int, int)
    total = weir.ReducingState(int, lambda a, b: a + b)

    def process(self, key, row, context):
        self.last.value = row["amount"]
        self.brief.value = row["amount"]
        self.amounts.append(row["amount"])
        self.shops[row["shop"]] = row["amount"]
        self.total.add(row["amount"])
        return ()


def flow_of(parallelism: int = 2) -> weir.Dataflow:
    flow = weir.Dataflow("orders", max_parallelism=16)
    rows = flow.source("rows", weir.Parquet("unused", schema=SCHEMA, event_time="at"))
    by_user = rows.key_by("user")
    by_user.aggregate("totals", n=weir.count(), most=weir.max("amount"), parallelism=parallelism)
    rows.key_by("user", "shop").count("pairs", parallelism=parallelism)
    by_user.window(weir.tumbling("10s")).aggregate("windows", n=weir.count())
    by_user.process("kinds", Kinds, schema={"user": str, "x": int}, parallelism=parallelism)
    return flow


def rows_of(count: int) -> list[dict]:
    return [
        {"user": f"u{i * 7 % 13}", "shop": i % 3, "amount": i * i % 101, "at": i * 100} for i in range(count)
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A savepoint of rows, and these."""
    place, rows = tmp_path_factory.mktemp("saved") / "monday", rows_of(200)
    with testing.start(flow_of()) as job:
        job.push("rows", rows[:90])
        job.checkpoint()
        job.push("rows", rows[90:])
        job.advance_watermark("rows", rows[-1]["at"])
        job.savepoint(place)
    return place, rows


def as_dict(frame: pl.DataFrame, *keys: str) -> dict:
    """Values by key; a key is there once."""
    state = next(name for name in frame.columns if name not in keys)
    found = {tuple(row[key] for key in keys): row[state] for row in frame.to_dicts()}
    assert len(found) == frame.height
    return {key[0] if len(keys) == 1 else key: value for key, value in found.items()}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_states_equal_plain_python(saved, parallelism):
    place, rows = saved
    by_user = defaultdict(list)
    for row in rows:
        by_user[row["user"]].append(row)
    with weir.read_state(place, flow_of(parallelism)) as state:
        counts = {user: len(own) for user, own in by_user.items()}
        assert as_dict(state["totals/n"], "user") == counts
        assert as_dict(state["totals/most"], "user") == {
            user: max(row["amount"] for row in own) for user, own in by_user.items()
        }
        pairs = Counter((row["user"], row["shop"]) for row in rows)
        assert as_dict(state["pairs"], "user", "shop") == pairs
        assert state["pairs"].schema == {"user": pl.String, "shop": pl.Int64, "pairs": pl.Int64}
        assert as_dict(state["kinds/last"], "user") == {
            user: own[-1]["amount"] for user, own in by_user.items()
        }
        assert as_dict(state["kinds/amounts"], "user") == {
            user: [row["amount"] for row in own] for user, own in by_user.items()
        }
        assert as_dict(state["kinds/total"], "user") == {
            user: sum(row["amount"] for row in own) for user, own in by_user.items()
        }
        brief = as_dict(state["kinds/brief"], "user")
        assert set(brief) == {row["user"] for row in rows if row["at"] > rows[-1]["at"] - 1_000}
        windows = as_dict(state["windows"], "user")
        last = rows[-1]["at"] // 10_000 * 10_000
        expected = Counter(row["user"] for row in rows if row["at"] >= last)
        assert {user: sum(each["value"] for each in listed) for user, listed in windows.items()} == expected


def test_the_savepoint_stays_as_it_is(saved):
    place, _ = saved
    before = {path: path.stat().st_mtime_ns for path in Path(place).rglob("*")}
    with weir.read_state(place, flow_of()) as state:
        assert state.states[0] == ("kinds", "amounts")
        assert state["pairs"].height
    assert {path: path.stat().st_mtime_ns for path in Path(place).rglob("*")} == before
    assert [path.name for path in Path(place).parent.iterdir()] == ["monday"]


def test_two_savepoints_differ_in_what_came_between(tmp_path):
    rows = rows_of(60)
    with testing.start(flow_of()) as job:
        job.push("rows", rows[:20])
        job.savepoint(tmp_path / "monday")
        job.push("rows", rows[20:25])
        job.savepoint(tmp_path / "tuesday")
    with (
        weir.read_state(tmp_path / "monday", flow_of()) as monday,
        weir.read_state(tmp_path / "tuesday", flow_of()) as tuesday,
    ):
        for name, keys in (
            ("pairs", ("user", "shop")),
            ("totals/n", ("user",)),
            ("kinds/amounts", ("user",)),
        ):
            then, now = as_dict(monday[name], *keys), as_dict(tuesday[name], *keys)
            diff = tuesday.diff(monday, name)
            assert diff.columns[:-2] == list(keys)
            assert diff.columns[-2] == "before"
            told = {row[: len(keys)]: row[len(keys) :] for row in diff.iter_rows()}
            expected = {
                key if isinstance(key, tuple) else (key,): (then.get(key), now.get(key))
                for key in then | now
                if then.get(key) != now.get(key)
            }
            assert expected
            assert told == expected


def test_a_name_that_is_no_state_is_told_with_those_that_are(saved):
    place, _ = saved
    with weir.read_state(place, flow_of()) as state:
        with pytest.raises(KeyError, match="step 'totals' has several states: totals/most, totals/n"):
            state["totals"]
        with pytest.raises(KeyError, match="no state 'pair'; did you mean 'pairs'"):
            state["pair"]


def test_a_job_that_could_not_start_from_it_is_refused(saved):
    place, _ = saved
    flow = weir.Dataflow("orders", max_parallelism=16)
    rows = flow.source("rows", weir.Parquet("unused", schema=SCHEMA, event_time="at"))
    rows.key_by("shop").aggregate("totals", n=weir.count(), most=weir.max("amount"))
    with pytest.raises(CheckpointError, match="totals"):
        weir.read_state(place, flow)["totals/n"]


def test_a_state_that_the_job_had_not_then_is_not_there(saved):
    class MoreKinds(Kinds):
        later = weir.ValueState(int, 0)

    place, rows = saved
    flow = weir.Dataflow("orders", max_parallelism=16)
    by_user = flow.source("rows", weir.Parquet("unused", schema=SCHEMA, event_time="at")).key_by("user")
    by_user.aggregate("totals", least=weir.min("amount"), n=weir.count())
    by_user.process("kinds", MoreKinds, schema={"user": str, "x": int})
    with weir.read_state(place, flow) as state:
        assert ("kinds", "later") not in state.states
        assert as_dict(state["totals/n"], "user") == Counter(row["user"] for row in rows)
        # It begins at its first value, for keys that there are, too.
        assert set(as_dict(state["totals/least"], "user").values()) == {None}
        with pytest.raises(KeyError, match="there is no state 'kinds/later'; did you mean"):
            state["kinds/later"]


def test_no_savepoint_and_no_flow(tmp_path):
    with pytest.raises(CheckpointError, match="no savepoint or checkpoint at"):
        weir.read_state(tmp_path / "nothing", flow_of())
    with pytest.raises(GraphError, match="call your build"):
        weir.read_state(tmp_path, "jobs.counts")


def test_pages_come_in_order_and_once(tmp_path):
    rows = [{"user": f"{i:06}", "shop": 0, "amount": i, "at": i} for i in range(100_500)]
    flow = weir.Dataflow("many", max_parallelism=8)
    source = flow.source("rows", weir.Parquet("unused", schema=SCHEMA, event_time="at"))
    source.key_by("user").count("seen")
    with testing.start(flow) as job:
        job.push("rows", rows)
        job.savepoint(tmp_path / "many")
    with weir.read_state(tmp_path / "many", flow) as state:
        assert [frame.height for frame in state.frames("seen", "seen")] == [100_000, 500]
        assert state["seen"]["user"].to_list() == [row["user"] for row in rows]


def test_sizes_need_no_job(saved):
    place, rows = saved
    store, manifest = open_savepoint(str(place))
    told: list[str] = []
    with opened(store, manifest) as checkpoint:
        sizes = {(size.step, size.state): size for size in state_sizes(checkpoint, told.append)}
    assert sizes["pairs", ""].entries == len({(row["user"], row["shop"]) for row in rows})
    assert sizes["totals", ""].groups <= 13
    assert sizes["totals", ""].largest_bytes <= sizes["totals", ""].size_bytes
    assert told == sorted(manifest.state_ids)
