"""Lookups in an external store: bounds, order, the cache, time-outs, errors."""

import asyncio
import datetime as dt
from zoneinfo import ZoneInfo

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import GraphError, UserFunctionError
from weir.testing import ManualClock

BIDS = {"auction": weir.Nullable(int), "at": int}
NAMES = {1: "lamp", 2: "chair"}


class Store:
    """Answers after a moment, the first key last; counts what is asked for at a time."""

    def __init__(self):
        self.asked = []
        self.now = self.most = 0

    async def find(self, auction):
        self.asked.append(auction)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.002 if len(self.asked) == 1 else 0)
        self.now -= 1
        return {"name": NAMES[auction], "n": auction} if auction in NAMES else None


def flow_of(function, schema=None, **arguments):
    flow = weir.Dataflow("lookups")
    bids = flow.source("bids", weir.JsonLines("/absent", schema=BIDS, event_time="at"))
    bids.lookup("named", function, "auction", schema or {"name": str, "n": int}, **arguments).sink(
        "out", weir.Collect()
    )
    return flow


def bids(*auctions):
    return [{"auction": auction, "at": at} for at, auction in enumerate(auctions)]


def test_rows_keep_their_order_and_each_key_is_asked_for_once():
    store = Store()
    result = testing.run(flow_of(store.find), {"bids": bids(2, 1, None, 3, 2)})
    assert result["named"].to_polars().rows() == [
        (2, 0, "chair", 2),
        (1, 1, "lamp", 1),
        (None, 2, None, None),
        (3, 3, None, None),
        (2, 4, "chair", 2),
    ]
    assert sorted(store.asked) == [1, 2, 3]


def test_an_inner_lookup_leaves_out_what_is_not_found():
    result = testing.run(flow_of(Store().find, how="inner"), {"bids": bids(3, 1, None, 2)})
    assert result["named"].to_polars()["name"].to_list() == ["lamp", "chair"]


def test_no_more_requests_than_allowed_are_under_way():
    store = Store()
    testing.run(flow_of(store.find, in_flight_max=3), {"bids": bids(*range(50))})
    assert (len(store.asked), store.most) == (50, 3)


def test_answers_are_remembered_for_their_time_and_the_oldest_forgotten():
    store, clock = Store(), ManualClock()
    with testing.start(flow_of(store.find, cache_rows=2, cache_ttl="10s"), clock=clock) as job:
        job.push("bids", bids(1, 3))
        job.push("bids", bids(3, 1))
        assert store.asked == [1, 3]
        job.push("bids", bids(2))
        job.push("bids", bids(1))
        assert store.asked == [1, 3, 2, 1]
        job.advance_time(10_001)
        job.push("bids", bids(1))
        assert store.asked == [1, 3, 2, 1, 1]


async def slow(auction):
    await asyncio.sleep(60)


async def raising(auction):
    raise OSError("store is down")


async def other(auction):
    return {"name": "x"}


async def wrong(auction):
    return {"name": 5, "n": "x"}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (slow, r"function slow took longer than 0\.05 s for \(1,\)"),
        (raising, r"function raising raised OSError for \(1,\): store is down"),
        (other, r"function other returned another row than declared for \(1,\): missing \['n'\]"),
        (wrong, r"function wrong returned a value of another type than declared"),
    ],
)
def test_what_goes_wrong_names_the_step_and_the_key(function, message):
    with pytest.raises(UserFunctionError, match=f"step 'named': {message}"):
        testing.run(flow_of(function, timeout="50ms"), {"bids": bids(1)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": {"at": int}}, r"column 'at' of the lookup is there already"),
        ({"in_flight_max": 0}, r"in_flight_max is 0; it must be a whole number from 1 to 10,000"),
        ({"timeout": "soon"}, r"'soon' is not a duration"),
        ({"how": "full"}, r"how is 'full'; it is left or inner"),
    ],
)
def test_what_is_wrong_is_said_when_the_step_is_written_down(arguments, message):
    with pytest.raises(GraphError, match=f"^step 'named': {message}"):
        flow_of(Store().find, **arguments)
    with pytest.raises(GraphError, match=r"^step 'named': lookup takes an async function"):
        flow_of(lambda auction: None)


def test_the_two_hours_that_a_zone_has_twice_are_two_keys():
    zone = ZoneInfo("Europe/Berlin")
    both = [dt.datetime(2025, 10, 26, hour, 30, tzinfo=dt.UTC).astimezone(zone) for hour in (0, 1)]

    async def find(at):
        return {"hour": at.astimezone(dt.UTC).hour}

    flow = weir.Dataflow("lookups")
    rows = flow.source("rows", weir.JsonLines("/absent", schema={"at": pl.Datetime("us", "Europe/Berlin")}))
    rows.lookup("named", find, "at", {"hour": int}).sink("out", weir.Collect())
    result = testing.run(flow, {"rows": [{"at": at} for at in (*both, *both)]})
    assert result["named"].to_polars()["hour"].to_list() == [0, 1, 0, 1]
