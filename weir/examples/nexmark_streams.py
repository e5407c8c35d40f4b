"""The three streams of the auction, as the queries read them."""

from __future__ import annotations

from dataclasses import dataclass, field

import weir
from weir.nexmark.model import EVENTS_PER_EPOCH, PLACES, StreamName

#: Rows of a split come in order; this is what a user would write who does not know that.
_OUT_OF_ORDERNESS = "2s"
#: Of a stream that is not paced.
_SPLITS = 8


@dataclass
class Auction:
    """Adds each source to the dataflow when a query asks for it first."""

    flow: weir.Dataflow
    events: int
    parallelism: int = 1
    seed: int = 0
    #: Of event time, over all streams.
    events_per_second: int = 10_000
    #: Events of all streams a second, by the clock; 0: as fast as possible.
    rate: float = 0.0
    #: How far, by event time, one stream is read ahead of another that the query joins; "": as far as it comes.
    max_drift: str = ""
    _streams: dict[StreamName, weir.Stream] = field(default_factory=dict)

    @property
    def bids(self) -> weir.Stream:
        """auction, bidder, price, channel, url, date_time, extra."""
        return self._stream("bids", "bid")

    @property
    def auctions(self) -> weir.Stream:
        """id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra."""
        return self._stream("auctions", "auction")

    @property
    def people(self) -> weir.Stream:
        """id, name, email_address, credit_card, city, state, date_time, extra."""
        return self._stream("people", "person")

    def _stream(self, name: str, stream: StreamName) -> weir.Stream:
        if stream not in self._streams:
            first, stop = PLACES[stream]
            source = weir.Nexmark(
                stream,
                events=self.events,
                seed=self.seed,
                events_per_second=self.events_per_second,
                # Splits are blocks of thousands of rows: at a pace one after the other would go through event time.
                splits=1 if self.rate else _SPLITS,
                rate=self.rate * (stop - first) / EVENTS_PER_EPOCH or None,
            )
            together = weir.watermark_alignment(self.max_drift) if self.max_drift else None
            self._streams[stream] = self.flow.source(
                name,
                source,
                parallelism=self.parallelism,
                watermark=weir.bounded_out_of_orderness(_OUT_OF_ORDERNESS, alignment=together),
            )
        return self._streams[stream]
