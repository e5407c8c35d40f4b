"""Where channels end on this task manager: the inbox of each subtask, and which channels were opened."""

from __future__ import annotations

from collections.abc import Iterable

from task_manager.exchange.inbox import ChannelOpened, Delivery, Inbox, no_release
from task_manager.topology import Topology
from weir.clock import Clock
from weir.errors import HandshakeError
from weir.rows.records import EndOfStream
from weir.types import ChannelId, SubtaskId


class Inboxes:
    """The inboxes of a deployed job; producers' threads find them while deployments add some."""

    def __init__(self, address: str, topology: Topology, clock: Clock | None = None) -> None:
        """Make room for inboxes.

        Args:
            address: of this task manager, for messages.
            topology: is replaced when a stage is rescaled.
            clock: of the inboxes; None: the machine's.
        """
        self._address, self._clock = address, clock
        self.topology = topology
        self._inboxes: dict[SubtaskId, Inbox] = {}
        #: Channels that a subtask was made with and that were not opened yet.
        self._expected: dict[SubtaskId, set[ChannelId]] = {}
        self._opened: set[ChannelId] = set()
        #: Producers that are gone before they sent a row; no other subtask of this deployment has their index.
        self._gone: set[SubtaskId] = set()

    def add(self, subtask: SubtaskId) -> Inbox:
        """Make the inbox of a subtask; called before the subtask is made, because its consumers may be asked for it."""
        self._expected[subtask] = set(self.topology.input_channels(subtask))
        self._inboxes[subtask] = Inbox(self._clock)
        return self._inboxes[subtask]

    def of(self, subtask: SubtaskId) -> Inbox:
        """Returns the inbox of a subtask that was added."""
        return self._inboxes[subtask]

    def queue_depth(self, subtask: SubtaskId) -> int:
        """Returns how many elements wait; 0 for a subtask that has gone."""
        inbox = self._inboxes.get(subtask)
        return 0 if inbox is None else len(inbox)

    def open(self, channel: ChannelId) -> Inbox:
        """Returns the inbox in which a channel ends, for a producer here or on another task manager.

        A consumer that runs already learns of a channel that it did not expect.

        Raises:
            HandshakeError: no such channel ends here.
        """
        consumer = channel.consumer
        inbox = self._inboxes.get(consumer)
        stage = self.topology.graph.stage(consumer.stage_index)
        name_of = self.topology.graph.name_of
        edges = [edge for edge in stage.inputs if edge.index == channel.edge_index]
        if inbox is None or not edges or edges[0].producer_stage != channel.producer.stage_index:
            raise HandshakeError(
                f"the channel to {name_of(consumer)} does not end on task manager {self._address}"
            )
        if channel.producer in self._gone:
            # What it sent last took longer than the news of its end.
            raise HandshakeError(
                f"the channel from {name_of(channel.producer)} to {name_of(consumer)}: "
                "its producer was given up for lost"
            )
        if channel not in self._expected[consumer]:
            # In order before everything that comes on the channel, and before any later end of another input.
            inbox.put(Delivery(channel, ChannelOpened(), no_release))
        # It is opened once more by a producer that did not hear that it was.
        self._expected[consumer].discard(channel)
        self._opened.add(channel)
        return inbox

    def end_channels_of(self, producers: Iterable[SubtaskId]) -> None:
        """End the channels of producers that are gone before they sent a row; harmless if it was said before."""
        gone = set(producers)
        self._gone |= gone
        for channel in [channel for channel in list(self._opened) if channel.producer in gone]:
            self._opened.discard(channel)
            self._inboxes[channel.consumer].put(Delivery(channel, EndOfStream(), no_release))

    def forget(self, subtask: SubtaskId, *, has_failed: bool) -> None:
        """Drop the inbox of a subtask that is not part of the job any more; of one that failed end the channels."""
        if has_failed:
            # The order to end them may be on its way, and would find none.
            self.end_channels_of([subtask])
        del self._inboxes[subtask], self._expected[subtask]
        ended = [channel for channel in list(self._opened) if subtask in (channel.producer, channel.consumer)]
        self._opened.difference_update(ended)
