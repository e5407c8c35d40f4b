"""Makes the rows of each stream, column by column, only those that are asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from weir.nexmark import model, texts
from weir.nexmark.model import StreamName
from weir.nexmark.randomness import Draws

#: Of ten draws this many less one are of a hot bidder or seller; of an auction half.
_HOT_PEOPLE, _HOT_AUCTIONS, _HOT_CHANNELS = 4, 2, 2


class Events:
    """A stream's events of some numbers. Columns are made when they are asked for."""

    def __init__(self, numbers: np.ndarray, seed: int, first_ms: int, events_per_second: int) -> None:
        """Make nothing yet.

        Args:
            numbers: of the events, int64.
            seed: other random values for another one.
            first_ms: event time of event 0, ms since the epoch.
            events_per_second: of event time, over all streams.
        """
        self.numbers = numbers
        self._seed = seed
        self._first_ms, self._events_per_second = first_ms, events_per_second
        self._draws = Draws(numbers, seed)

    def batch(self, stream: StreamName, columns: Sequence[str]) -> pa.RecordBatch:
        """The events with these columns, in order."""
        makers = self._COLUMNS[stream]
        return pa.RecordBatch.from_arrays([makers[name](self) for name in columns], names=list(columns))

    def time_ms(self) -> np.ndarray:
        """Event times; int64, ascending."""
        return self._first_ms + self.numbers * 1_000 // self._events_per_second

    def _text(self, field: int, choice: pa.StringArray) -> pa.Array:
        return choice.take(pa.array(self._draws.below(field, len(choice))))

    def _letters(self, field: int, shortest: int, longest: int) -> pa.Array:
        return self._text(field, texts.letters(self._seed + field, shortest, longest))

    def _extra(self, field: int, about: int) -> pa.Array:
        """Padding of about this many letters, a fifth more or less."""
        return self._letters(field, about - about // 5, about + about // 5)

    # --- bids -----------------------------------------------------------------------------------------------

    def _bid_auction(self) -> pa.Array:
        return pa.array(model.some_auction(self._draws, 0, 1, self.numbers, _HOT_AUCTIONS))

    def _bidder(self) -> pa.Array:
        return pa.array(model.some_person(self._draws, 2, 3, self.numbers, _HOT_PEOPLE, hot=1))

    def _price(self) -> pa.Array:
        return pa.array(model.prices(self._draws, 4))

    def _channels(self) -> pa.Array:
        hot = len(texts.HOT_CHANNELS)
        is_hot = self._draws.below(5, _HOT_CHANNELS) > 0
        return pa.array(
            np.where(is_hot, self._draws.below(6, hot), hot + self._draws.below(7, texts.CHANNELS))
        )

    def _channel(self) -> pa.Array:
        return texts.channel_names().take(self._channels())

    def _url(self) -> pa.Array:
        return texts.channel_urls(self._seed).take(self._channels())

    # --- auctions -------------------------------------------------------------------------------------------

    def _auction_id(self) -> pa.Array:
        return pa.array(model.FIRST_AUCTION_ID + model.last_auction(self.numbers))

    def _reserve(self) -> pa.Array:
        return pa.array(model.prices(self._draws, 4) + model.prices(self._draws, 10))

    def _expires(self) -> pa.Array:
        # About as many auctions are open as events speak of.
        ahead = self.numbers + model.ACTIVE_AUCTIONS * model.EVENTS_PER_EPOCH // 3
        now_ms = self.time_ms()
        horizon_ms = self._first_ms + ahead * 1_000 // self._events_per_second - now_ms
        return pa.array(now_ms + 1 + self._draws.below(11, np.maximum(2 * horizon_ms, 1)))

    def _seller(self) -> pa.Array:
        return pa.array(model.some_person(self._draws, 2, 3, self.numbers, _HOT_PEOPLE, hot=0))

    def _category(self) -> pa.Array:
        return pa.array(model.FIRST_CATEGORY_ID + self._draws.below(12, model.CATEGORIES))

    # --- people ---------------------------------------------------------------------------------------------

    def _person_id(self) -> pa.Array:
        return pa.array(model.FIRST_PERSON_ID + model.last_person(self.numbers))

    def _email_address(self) -> pa.Array:
        return self._text(16, texts.email_addresses(self._seed))

    def _credit_card(self) -> pa.Array:
        return self._text(17, texts.credit_cards(self._seed))

    def _date_time(self) -> pa.Array:
        return pa.array(self.time_ms())

    _COLUMNS: ClassVar[dict[StreamName, dict[str, Callable[[Events], pa.Array]]]] = {
        "bid": {
            "auction": _bid_auction,
            "bidder": _bidder,
            "price": _price,
            "channel": _channel,
            "url": _url,
            "date_time": _date_time,
            "extra": functools.partial(_extra, field=8, about=68),
        },
        "auction": {
            "id": _auction_id,
            "item_name": functools.partial(_letters, field=13, shortest=3, longest=20),
            "description": functools.partial(_letters, field=14, shortest=3, longest=100),
            "initial_bid": _price,
            "reserve": _reserve,
            "date_time": _date_time,
            "expires": _expires,
            "seller": _seller,
            "category": _category,
            "extra": functools.partial(_extra, field=8, about=380),
        },
        "person": {
            "id": _person_id,
            "name": functools.partial(_text, field=15, choice=texts.full_names()),
            "email_address": _email_address,
            "credit_card": _credit_card,
            "city": functools.partial(_text, field=18, choice=pa.array(texts.CITIES)),
            "state": functools.partial(_text, field=19, choice=pa.array(texts.STATES)),
            "date_time": _date_time,
            "extra": functools.partial(_extra, field=8, about=120),
        },
    }
