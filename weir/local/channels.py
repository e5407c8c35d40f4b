"""What leaves a subtask in this process: rows are routed as between task managers and handed over by a call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Protocol

import numpy as np
import pyarrow as pa

from weir.keys.division import HotRowCombiner, narrowed, split_by_owner, with_key_hash
from weir.plan.graph import Edge, Exchange
from weir.rows.records import Block, ControlElement, Element
from weir.types import ChannelId

#: Elements that wait in one channel of a seeded run before their producer has to wait.
_WAITING_MAX = 8

#: Takes an element of a channel in; called by channels.
Take = Callable[[ChannelId, Element], None]


class Channel(Protocol):
    """A link to a consumer; elements arrive in order."""

    def send(self, element: Element) -> None:
        """Hand an element over."""


class DirectChannel:
    """The consumer takes each element before the producer goes on: nothing ever waits."""

    def __init__(self, channel: ChannelId, take: Take) -> None:
        self._channel = channel
        self._take = take

    def send(self, element: Element) -> None:
        """Hand an element over."""
        self._take(self._channel, element)


class Interleaving:
    """Channels whose elements wait until chance lets their consumer take them; the seed decides.

    So the elements of different channels meet in many orders, as between threads; those of one channel never do.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._channels: list[WaitingChannel] = []

    def channel(self, channel: ChannelId, take: Take) -> WaitingChannel:
        """A new channel."""
        made = WaitingChannel(channel, take)
        self._channels.append(made)
        return made

    def forget(self) -> None:
        """The subtasks are gone, and with them what was under way."""
        self._channels.clear()

    def settle(self, *, everything: bool) -> None:
        """Let consumers take elements, until no channel is overfull; with ``everything``: until all are empty."""
        while True:
            waiting = [channel for channel in self._channels if channel.waiting]
            if not waiting:
                return
            crowded = any(len(channel.waiting) > _WAITING_MAX for channel in waiting)
            if not everything and not crowded and self.random.random() < 1 / (1 + len(waiting)):
                return
            self.random.choice(waiting).deliver()


class WaitingChannel:
    """A channel that waits in an :class:`Interleaving`."""

    def __init__(self, channel: ChannelId, take: Take) -> None:
        self._channel = channel
        self._take = take
        self.waiting: deque[Element] = deque()

    def send(self, element: Element) -> None:
        """Put an element after those that wait."""
        self.waiting.append(element)

    def deliver(self) -> None:
        """Let the consumer take the first one."""
        self._take(self._channel, self.waiting.popleft())


class LocalEdge:
    """The channels from one subtask to one consumer stage, by the consumer's subtask index, ascending."""

    def __init__(
        self,
        edge: Edge,
        channels: Mapping[int, Channel],
        group_to_subtask: np.ndarray | None,
        combiner: HotRowCombiner | None = None,
    ) -> None:
        """``group_to_subtask`` is needed with HASH: int32, shape (max_parallelism,), keys of ``channels``.

        ``combiner``: adds up rows of hot keys; None: all rows are sent as they come.
        """
        self._edge = edge
        self._combiner = combiner
        self._channels = dict(channels)
        self._in_order = list(self._channels.values())
        self._group_to_subtask = group_to_subtask
        self._next = 0

    @property
    def output(self) -> str:
        """The side output that it carries (``step/output``); empty: what leaves the last step."""
        return self._edge.output

    def add(self, batch: pa.RecordBatch) -> None:
        """Route one batch."""
        batch = narrowed(batch, self._edge.sent_columns)
        if self._edge.exchange is Exchange.HASH:
            self._add_hashed(batch)
        elif self._edge.exchange is Exchange.ROUND_ROBIN:
            self._next = (self._next + 1) % len(self._in_order)
            self._in_order[self._next].send(batch)
        else:
            self.broadcast(batch)

    def broadcast(self, element: Element) -> None:
        """Send to every consumer."""
        for channel in self._in_order:
            channel.send(element)

    def _add_hashed(self, batch: pa.RecordBatch) -> None:
        assert self._group_to_subtask is not None
        rows, hashes = with_key_hash(batch, self._edge.key_columns)
        block = Block(rows)
        if self._combiner is not None and self._combiner.is_due(rows.num_rows):
            block = self._combiner.combined(rows, hashes) or block
        if len(self._in_order) == 1:
            self._in_order[0].send(block.rows())
            return
        for part in split_by_owner(block, hashes, self._group_to_subtask, list(self._channels)):
            self._channels[part.consumer].send(part.rows)


class LocalOutput:
    """Everything that leaves one subtask."""

    def __init__(self, edges: Sequence[LocalEdge]) -> None:
        self._edges = list(edges)
        self._main = [edge for edge in self._edges if not edge.output]
        #: By side output (``step/output``).
        self._sides: dict[str, list[LocalEdge]] = {}
        for edge in self._edges:
            if edge.output:
                self._sides.setdefault(edge.output, []).append(edge)
        #: Rows sent, each once however many edges there are.
        self.rows = 0

    @property
    def has_channels(self) -> bool:
        """Return whether anybody consumes what leaves the last step."""
        return bool(self._main)

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send a batch on every edge of the chain's end."""
        self.rows += batch.num_rows
        for edge in self._main:
            edge.add(batch)

    def emit_side(self, output: str, batch: pa.RecordBatch) -> None:
        """Send a batch on every edge of a side output."""
        self.rows += batch.num_rows
        for edge in self._sides[output]:
            edge.add(batch)

    def broadcast(self, element: ControlElement, but: Collection[str] = ()) -> None:
        """Send a control element on every channel, after all rows; not on those of the side outputs ``but``."""
        for edge in self._edges:
            if edge.output not in but:
                edge.broadcast(element)

    def tell_sides(self, sides: Collection[str], element: ControlElement) -> None:
        """Send a control element, on the channels of these side outputs only."""
        for edge in self._edges:
            if edge.output in sides:
                edge.broadcast(element)
