"""Whom the rescales of a task manager talk to: subtasks here, other task managers, threads.

Nothing behind these ports is needed to decide anything, so that the glue runs without threads and network too
(``tests/task_manager/rescale``, ``experiments/simulation``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.topology import Topology
from weir.errors import WeirError
from weir.protocol.rescale.relink import RelinkOffer
from weir.protocol.rescale.rescale_owner import HandoverReceived, OwnerEvent
from weir.protocol.routing import GroupMove
from weir.state.tables.cached_entries import CachedChanges
from weir.types import SubtaskId

#: Lets work be done that may wait, in a thread of its own; returns at once.
Spawn = Callable[[Callable[[], None]], None]


class LocalSubtask(Protocol):
    """A subtask of this task manager; implemented by ``running.RunningSubtask``. Any thread may call it."""

    @property
    def group_state(self) -> SubtaskGroupState | None:
        """Return the keyed state; None: the subtask owns no key groups."""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended."""

    def tell(self, event: OwnerEvent) -> Future[None] | None:
        """Let it take an event in, between two batches; None: it has ended.

        Raises:
            HandshakeError: it is a source, which owns nothing.
        """

    def post(self, command: Callable[[], None]) -> Future[None] | None:
        """Run this between two of its batches, and let it fail with what this raises; None: it has ended."""


class Peers(Protocol):
    """The other task managers; implemented by ``peer_calls.PeerCalls``."""

    def hand_over(
        self,
        address: str,
        target: SubtaskId,
        handover: HandoverReceived,
        bytes_shipped: int,
        on_failure: Callable[[WeirError], None],
        offer: RelinkOffer | None = None,
    ) -> None:
        """Give groups to a subtask there, whose state is at ``handover.location``; may wait for the answer.

        Args:
            address: of its task manager.
            target: which subtask.
            handover: groups with their new owner epochs.
            bytes_shipped: state that was sent to its store before.
            on_failure: called, before or after this returns, if it does not take them.
            offer: how their state is to be had without ``handover.location``; None: it is not.
        """


class Copies(Protocol):
    """The cache goes ahead of its groups; implemented by ``cache_copy.CacheCopier``."""

    def copy(self, subtasks: Sequence[SubtaskId], version: int, moves: Sequence[GroupMove]) -> None:
        """Copy what these owners have cached of groups that move; returns when it is done or took too long."""

    def complete(
        self, target: SubtaskId, version: int, groups: Mapping[int, int], changes: CachedChanges
    ) -> None:
        """Send what a new owner of groups (with their new epochs) still needs of the cache; may wait."""


class Switches(Protocol):
    """Upstream subtasks here; implemented by ``switching.Switching``."""

    def switch(
        self,
        subtask: SubtaskId,
        stage_index: int,
        version: int,
        topology: Topology,
        retiring: Sequence[int],
    ) -> Sequence[Future[None]]:
        """Lead a subtask's edges to a stage to the stage's present subtasks; done when each has switched.

        Raises:
            ConnectionLostError, HandshakeError: a new subtask's task manager does not take a channel.
        """


class Shipping(Protocol):
    """Sends state with its groups; implemented by ``peer_calls.Shipper``."""

    def ship(
        self,
        source: SubtaskId,
        address: str,
        groups: Mapping[int, int],
        state_ids: Sequence[int],
        on_group: Callable[[int, int], None],
    ) -> None:
        """Send the state of groups (with their new epochs) to a store; waits.

        Args:
            source: the old owner.
            address: of the new owner's task manager.
            groups: with their new owner epochs.
            state_ids: numbers of the stage's states.
            on_group: called with each group that is there completely, and its bytes.

        Raises:
            WeirError: a store failed; the groups that were not told of are still here.
        """
