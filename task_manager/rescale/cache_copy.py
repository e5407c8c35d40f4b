"""What an owner has cached goes to the new owner before the handover, so that it need not be fetched at first use.

First a copy, while the owner goes on, and what changed meanwhile; then, at the handover, what changed since
(docs/design/0001), or all of it if there was no time for the copy. It is a favour: without it, groups are handed over
all the same, and their state is fetched when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from task_manager.rescale.copy_pace import COPIED_BYTES_MAX, COPY_TIMES, CopyTimes
from task_manager.rescale.copy_rounds import GroupsCopy
from task_manager.rescale.copy_sender import CopySender
from weir import threads
from weir.clock import Clock
from weir.protocol.routing import GroupMove
from weir.rpc import control_pb2_grpc
from weir.rpc.wire import JobIdentity
from weir.state.tables.cached_entries import CachedChanges
from weir.types import SubtaskId

if TYPE_CHECKING:
    from task_manager.exchange.peer_network import PeerNetwork
    from task_manager.subtasks.running import RunningSubtask

#: The rescale waits for a copy, and the coordinator for the answer to its command: 5 s in all.
_COPY_TIMEOUT_S = 1.0
#: At a handover a busy new owner has more time: without the cache it would stay busy.
_HANDOVER_TIMEOUT_S = 10.0
#: Of writing where nothing is copied.
_WRITE_S_MAX = 2.0
#: Copies of what changed meanwhile; each should find much less than the one before.
_ROUNDS_MAX = 4


class CacheCopier:
    """The part of old owners on one task manager; called by gRPC threads and by those that hand over."""

    def __init__(
        self,
        identity: JobIdentity,
        address: str,
        running: Mapping[SubtaskId, RunningSubtask],
        network: PeerNetwork,
        locations: Mapping[SubtaskId, str],
        clock: Clock,
        *,
        copies: bool,
        hurries: bool,
        bytes_max: int = COPIED_BYTES_MAX,
        times: CopyTimes = COPY_TIMES,
        sleep: Callable[[float], None] = threads.sleep,
    ) -> None:
        """``running`` and ``locations`` are the job's own and change; ``address`` is this task manager's.

        ``copies``: whether what is cached is copied; else dirty entries are only written. ``hurries``: then without
        pauses, because the new owner can begin as soon as they are. ``bytes_max``: of what is copied at first to
        one new owner; ``times``: for how long, at most. ``sleep`` passes this many seconds of the clock.
        """
        self._identity = identity
        self._address = address
        self._running = running
        self._network = network
        self._locations = locations
        self._clock = clock
        self._copies = copies
        self._hurries = hurries
        self._bytes_max = bytes_max
        self._times = times
        self._sleep = sleep

    def copy(self, subtasks: Sequence[SubtaskId], version: int, moves: Sequence[GroupMove]) -> None:
        """Write dirty entries of groups that these owners will give away, and copy what is cached to the new owners.

        Some groups at a time, so that rows are processed in between. What changed during a copy is copied and written
        once more, so that little is left for the handover: that would be 20,000 entries after a copy of a second, 20 ms
        for which all rows would wait, and those of the groups for much longer.
        """
        copies = [copy for subtask in subtasks for copy in self._copies_of(subtask, version, moves)]
        changing = away = [copy for copy in copies if copy.is_away]
        self._copy_all(away)
        until_s = self._clock.monotonic_s() + self._times.changes_s
        for _ in range(_ROUNDS_MAX):
            changing = [copy for copy in changing if copy.copy_changes(until_s)]
        until_s = self._clock.monotonic_s() + (self._times.rest_s if away else _WRITE_S_MAX)
        for copy in copies:
            copy.write(until_s)

    def _copies_of(
        self, subtask: SubtaskId, version: int, moves: Sequence[GroupMove]
    ) -> Iterator[GroupsCopy]:
        """Yields the copies for the new owners of the groups that one owner gives away."""
        running = self._running.get(subtask)
        if running is None or running.group_state is None:
            return
        gives: dict[int, list[int]] = {}
        for move in moves:
            if move.source == subtask.subtask_index:
                gives.setdefault(move.target, []).append(move.group)
        targets = {index: SubtaskId(subtask.stage_index, index) for index in gives}
        away = {index for index, target in targets.items() if self._copies and self._is_away(target)}
        wanted = [group for index in away for group in gives[index]]
        running.subtask.mailbox.post(partial(running.group_state.want_copy, version, wanted))
        for index, groups in gives.items():
            sender = self._sender(targets[index], version, _COPY_TIMEOUT_S) if index in away else None
            yield GroupsCopy(
                running,
                running.group_state,
                sender,
                version,
                groups,
                self._clock,
                self._sleep,
                hurries=self._hurries,
                bytes_max=self._bytes_max,
            )

    def _copy_all(self, copies: Sequence[GroupsCopy]) -> None:
        """Copy what is cached, each in its share of the time."""
        until_s = self._clock.monotonic_s() + self._times.copy_s
        groups_left = sum(len(copy.groups) for copy in copies)
        for copy in copies:
            now_s = self._clock.monotonic_s()
            copy.copy_all(now_s + (until_s - now_s) * len(copy.groups) / groups_left)
            groups_left -= len(copy.groups)

    def _is_away(self, target: SubtaskId) -> bool:
        return self._locations.get(target, self._address) != self._address

    def complete(
        self, target: SubtaskId, version: int, groups: Mapping[int, int], changes: CachedChanges
    ) -> None:
        """Send what a new owner of groups (with their new epochs) still needs of the cache."""
        if changes.groups:
            meant = {group: groups[group] for group in changes.groups}
            self._sender(target, version, _HANDOVER_TIMEOUT_S, at_handover=True).send(
                meant, changes.entries, anew=changes.anew, complete=True
            )

    def _sender(
        self,
        target: SubtaskId,
        version: int,
        timeout_s: float,
        *,
        at_handover: bool = False,
    ) -> CopySender:
        stub = self._network.stub(self._locations[target], control_pb2_grpc.TaskManagerStub)
        return CopySender(stub, self._identity, target, version, self._clock, timeout_s, at_handover)
