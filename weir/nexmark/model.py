"""Proportions, ids and times of the auction: what an event's number says about it.

Of 50 events the first is a person, the next three are auctions, the rest are bids. Names follow the reference's.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import polars as pl

from weir.nexmark.randomness import Draws

StreamName = Literal["person", "auction", "bid"]
STREAMS: tuple[StreamName, ...] = get_args(StreamName)

EVENTS_PER_EPOCH = 50
#: By stream: where its events lie in an epoch, from and up to.
PLACES: dict[StreamName, tuple[int, int]] = {"person": (0, 1), "auction": (1, 4), "bid": (4, 50)}
_AUCTIONS_PER_EPOCH = 3
#: Ids begin here.
FIRST_PERSON_ID = 1_000
FIRST_AUCTION_ID = 1_000
FIRST_CATEGORY_ID = 10
CATEGORIES = 5
#: People and auctions that events are about, among the latest; and how far ahead of them.
ACTIVE_PEOPLE = 1_000
ACTIVE_AUCTIONS = 100
_PERSON_LEAD = 10
_AUCTION_LEAD = 10
#: Every so many ids one is hot.
_HOT_EVERY = 100

SCHEMAS: dict[StreamName, dict[str, object]] = {
    "person": {
        "id": pl.Int64,
        "name": pl.String,
        "email_address": pl.String,
        "credit_card": pl.String,
        "city": pl.String,
        "state": pl.String,
        "date_time": pl.Int64,
        "extra": pl.String,
    },
    "auction": {
        "id": pl.Int64,
        "item_name": pl.String,
        "description": pl.String,
        "initial_bid": pl.Int64,
        "reserve": pl.Int64,
        "date_time": pl.Int64,
        "expires": pl.Int64,
        "seller": pl.Int64,
        "category": pl.Int64,
        "extra": pl.String,
    },
    "bid": {
        "auction": pl.Int64,
        "bidder": pl.Int64,
        "price": pl.Int64,
        "channel": pl.String,
        "url": pl.String,
        "date_time": pl.Int64,
        "extra": pl.String,
    },
}


def stream_numbers(stream: StreamName, first_epoch: int, epochs: int, events: int) -> np.ndarray:
    """Numbers of a stream's events in some epochs, ascending, below ``events``; int64."""
    first, stop = PLACES[stream]
    starts = np.arange(first_epoch, first_epoch + epochs, dtype=np.int64) * EVENTS_PER_EPOCH
    numbers = (starts[:, None] + np.arange(first, stop, dtype=np.int64)).ravel()
    return numbers[: np.searchsorted(numbers, events)]


def last_person(numbers: np.ndarray) -> np.ndarray:
    """The newest person at each event, counted from 0; int64."""
    return numbers // EVENTS_PER_EPOCH


def last_auction(numbers: np.ndarray) -> np.ndarray:
    """The newest auction at each event, counted from 0; int64. Before the first one -1."""
    epochs, places = np.divmod(numbers, EVENTS_PER_EPOCH)
    first, stop = PLACES["auction"]
    newest: np.ndarray = epochs * _AUCTIONS_PER_EPOCH + np.clip(places - first, -1, stop - first - 1)
    return newest


def some_person(
    draws: Draws, hot_field: int, field: int, numbers: np.ndarray, hot_ratio: int, hot: int
) -> np.ndarray:
    """Ids of people: of ``hot_ratio`` draws all but one are of a hot person, ``hot`` after every hundredth."""
    last = last_person(numbers)
    active = np.minimum(last + 1, ACTIVE_PEOPLE)
    cold = last + 1 - active + draws.below(field, active + _PERSON_LEAD)
    is_hot = draws.below(hot_field, hot_ratio) > 0
    return FIRST_PERSON_ID + np.where(is_hot, last // _HOT_EVERY * _HOT_EVERY + hot, cold)


def some_auction(draws: Draws, hot_field: int, field: int, numbers: np.ndarray, hot_ratio: int) -> np.ndarray:
    """Ids of auctions that are open: of ``hot_ratio`` draws all but one are of the hot one."""
    last = last_auction(numbers)
    first = np.maximum(last - ACTIVE_AUCTIONS, 0)
    cold = first + draws.below(field, last - first + 1 + _AUCTION_LEAD)
    is_hot = draws.below(hot_field, hot_ratio) > 0
    return FIRST_AUCTION_ID + np.where(is_hot, last // _HOT_EVERY * _HOT_EVERY, cold)


def prices(draws: Draws, field: int) -> np.ndarray:
    """Cents: 100 to 100 million, as many of each magnitude; int64."""
    return np.rint(10.0 ** (draws.shares(field) * 6.0) * 100.0).astype(np.int64)
