"""The events of the auction: the same however they are cut, with the reference's proportions and hot keys."""

import numpy as np
import polars as pl
import pytest

from weir.errors import GraphError
from weir.nexmark import model
from weir.nexmark.events import Events
from weir.nexmark.model import EVENTS_PER_EPOCH, SCHEMAS, STREAMS, stream_numbers
from weir.nexmark.specs import FIRST_MS, Nexmark

EPOCHS = 4_000


def frame(stream, columns=None, first_epoch=0, epochs=EPOCHS, seed=3):
    numbers = stream_numbers(stream, first_epoch, epochs, 10**12)
    events = Events(numbers, seed, FIRST_MS, 10_000)
    return pl.from_arrow(events.batch(stream, columns or list(SCHEMAS[stream])))


@pytest.mark.parametrize("stream", STREAMS)
def test_events_depend_on_nothing_but_their_numbers(stream):
    whole = frame(stream)
    parts = [frame(stream, first_epoch=first, epochs=500) for first in range(0, EPOCHS, 500)]
    assert pl.concat(parts).equals(whole)
    assert dict(whole.schema) == SCHEMAS[stream]
    assert whole.null_count().sum_horizontal().item() == 0
    some = list(SCHEMAS[stream])[::2]
    assert frame(stream, some).equals(whole.select(some))
    assert not frame(stream, seed=4).equals(whole)


def test_the_streams_share_the_events():
    numbers = [stream_numbers(stream, 0, 10, 487) for stream in STREAMS]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(487))
    assert [len(some) for some in numbers] == [10, 30, 447]


def test_ids_are_of_people_and_auctions_that_are_there_or_about_to_be():
    people, auctions, bids = (frame(stream) for stream in ("person", "auction", "bid"))
    assert people["id"].to_list() == list(range(1_000, 1_000 + EPOCHS))
    assert auctions["id"].to_list() == list(range(1_000, 1_000 + 3 * EPOCHS))
    opened_ms = dict(zip(auctions["id"].to_list(), auctions["date_time"].to_list(), strict=True))
    # Ten auctions ahead of the newest one, which is three an epoch of 5 ms.
    early = [
        opened_ms.get(auction, 0) - at for auction, at in bids.select("auction", "date_time").iter_rows()
    ]
    assert max(early) <= 25
    assert bids["bidder"].min() >= 1_000
    assert bids["bidder"].max() < 1_000 + EPOCHS + 10
    assert set(auctions["category"].unique().to_list()) == set(range(10, 15))


def test_half_of_the_bids_are_on_a_hot_auction_and_three_of_four_by_a_hot_bidder():
    bids = frame("bid")
    assert (bids["auction"] % 100 == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert (bids["bidder"] % 100 == 1).mean() == pytest.approx(0.75, abs=0.02)
    assert bids["channel"].is_in(["Google", "Facebook", "Baidu", "Apple"]).mean() == pytest.approx(
        0.5, abs=0.02
    )
    assert bids["url"].str.contains("channel_id=").mean() == pytest.approx(0.45, abs=0.02)
    logs = bids["price"].log10()
    assert (logs.min(), logs.max()) == (pytest.approx(2, abs=0.1), pytest.approx(8, abs=0.1))
    assert logs.mean() == pytest.approx(5, abs=0.1)


def test_times_follow_the_rate_and_auctions_end_after_they_begin():
    bids, auctions = frame("bid"), frame("auction")
    assert bids["date_time"][0] == FIRST_MS
    assert bids["date_time"][-1] == FIRST_MS + (EVENTS_PER_EPOCH * EPOCHS - 1) // 10
    assert bids["date_time"].is_sorted()
    assert (auctions["expires"] > auctions["date_time"]).all()


def test_auctions_have_a_reserve_above_their_first_bid():
    auctions = frame("auction")
    assert (auctions["reserve"] > auctions["initial_bid"]).all()


def test_the_newest_ids_before_the_first_auction():
    numbers = np.arange(5)
    assert model.last_auction(numbers).tolist() == [-1, 0, 1, 2, 2]
    assert model.last_person(numbers).tolist() == [0] * 5


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"stream": "bids"}, "'bids' is no stream of the auction; there are person, auction, bid"),
        ({"events": -1}, "events is -1"),
        ({"splits": 0}, "splits is 0"),
        ({"events_per_second": 0.5}, "events_per_second is 0.5"),
    ],
)
def test_wrong_settings(settings, told):
    with pytest.raises(GraphError, match=told):
        Nexmark(**{"stream": "bid", "events": 10, **settings})
