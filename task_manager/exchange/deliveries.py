"""Elements as they lie in the inbox of their consumer, and which of them may be joined to one batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa

from weir.rows.records import JOINED_BYTES, Element, Idle
from weir.types import ChannelId


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """The first delivery of a channel that was opened while its consumer ran; never sent over the wire."""


#: In place of rows of a delivery that were taken out of it.
GONE = Idle()


@dataclass(slots=True)
class Delivery:
    """An element in an inbox. The consumer calls ``release`` once, when it has finished with it.

    Nothing else changes it, but that the consumer takes rows out before it releases them (:data:`GONE`).
    """

    channel: ChannelId
    element: Element | ChannelOpened
    release: Callable[[], None]
    #: About how many bytes a batch occupies, for metrics.
    size_bytes: int = 0
    #: The checkpoint that holds these rows already, because its barrier has overtaken them; 0: none.
    in_checkpoint: int = 0

    def split(self, rows: int) -> Delivery:
        """Keep the first rows of a batch that has more; returns the others, which now have its credit."""
        batch = self.element
        assert isinstance(batch, pa.RecordBatch)
        first_bytes = self.size_bytes * rows // batch.num_rows
        rest = Delivery(
            self.channel, batch.slice(rows), self.release, self.size_bytes - first_bytes, self.in_checkpoint
        )
        self.element, self.release, self.size_bytes = batch.slice(0, rows), no_release, first_bytes
        return rest


def no_release() -> None:
    """Release of a control element: it took no credit."""


@dataclass(slots=True)
class RowsWanted:
    """How much may be joined with a batch; what is taken is taken off."""

    rows: int
    #: Until there are so many more it pays to join; the last batch may have more than these, but is not large itself.
    bytes: int

    def take(self, delivery: Delivery) -> bool:
        """Take a batch off what is wanted; False: it is too large, or enough is there."""
        assert isinstance(delivery.element, pa.RecordBatch)
        is_large = delivery.size_bytes >= JOINED_BYTES
        if delivery.element.num_rows > self.rows or self.bytes <= 0 or is_large:
            return False
        self.rows -= delivery.element.num_rows
        self.bytes -= delivery.size_bytes
        return True


def take_rows(
    deliveries: deque[Delivery],
    wanted: RowsWanted,
    schema: pa.Schema,
    edge_index: int | None = None,
    but: Collection[ChannelId] = (),
) -> list[Delivery]:
    """Take leading batches of one schema off a queue, as many as are wanted.

    Only batches of other inputs are passed by, and stay in their order: those of one input are one batch then, and not
    as many as arrived in turn with others.

    ``edge_index``: the only input that they may come from; None: any. ``but``: channels that they may not come from.
    """
    taken: list[Delivery] = []
    passed: list[Delivery] = []
    while deliveries:
        element = deliveries[0].element
        if not isinstance(element, pa.RecordBatch) or deliveries[0].channel in but:
            break
        if edge_index is not None and deliveries[0].channel.edge_index != edge_index:
            passed.append(deliveries.popleft())
            continue
        if element.schema is not schema and not element.schema.equals(schema):
            break
        if not wanted.take(deliveries[0]):
            break
        taken.append(deliveries.popleft())
    if passed:
        deliveries.extendleft(reversed(passed))
    return taken
