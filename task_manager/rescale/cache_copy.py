"""What an owner has cached goes to the new owner before the handover, so that it need not be fetched at first use.

First a copy, while the owner goes on; then, at the handover, what changed since (docs/design/0001), or all of it if
there was no time for the copy. It is a favour: without it, groups are handed over all the same, and their state is
fetched when it is needed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc

from task_manager.rescale.cached_wire import put_entries
from weir import threads
from weir.clock import Clock
from weir.protocol.routing import GroupMove
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.wire import JobIdentity, handshake_to_proto, subtask_to_proto
from weir.state.tables.cached_entries import CachedChanges, CachedPart
from weir.types import SubtaskId

if TYPE_CHECKING:
    from task_manager.exchange.peer_network import PeerNetwork
    from task_manager.rescale.group_state import SubtaskGroupState
    from task_manager.subtasks.running import RunningSubtask

log = logging.getLogger(__name__)

#: Keys of a message: the new owner's rows wait 1 to 2 ms while they are entered.
_KEYS_MAX = 8_192
#: Bound of a message's keys, or of keys and values of any length, in bytes; a single one may be longer.
_BYTES_MAX = 256 << 10
_IN_FLIGHT = 4
#: The rescale waits for a copy, and the coordinator for the answer to its command: 5 s in all.
_COPY_TIMEOUT_S = 1.0
#: At a handover a busy new owner has more time: without the cache it would stay busy.
_HANDOVER_TIMEOUT_S = 10.0
_COPY_S_MAX = 2.0
#: The same of writing what changed meanwhile.
_WRITE_S_MAX = 0.5
#: An owner that is busy with a batch for longer than this does without.
_PART_S_MAX = 0.25
#: Groups whose cached state is written and copied between two batches, at first.
_COPIED_AT_FIRST = 2
#: Groups that are only written between two batches, at first.
_WRITTEN_AT_FIRST = 16
#: How long rows should wait for that.
_PART_S_WANTED = 0.002
#: Rows have the owner for themselves for this many times as long as writing or copying a part took.
_PAUSE_FACTOR = 3.0


@dataclass(frozen=True)
class CopySender:
    """Sends to one new owner what was cached of groups that go to it in one rescale."""

    stub: control_pb2_grpc.TaskManagerStub
    identity: JobIdentity
    target: SubtaskId
    version: int
    clock: Clock
    #: Of one call.
    timeout_s: float
    #: Whether the groups are being handed over; else this is a copy ahead of that.
    at_handover: bool = False
    #: No call takes longer than until then.
    deadline_s: float = float("inf")

    def send(
        self,
        groups: Mapping[int, int],
        cached: Sequence[CachedPart],
        *,
        anew: Sequence[int] = (),
        complete: bool = False,
    ) -> bool:
        """Send entries of groups (with their new epochs); False: the new owner did not take all of them.

        Returns when all are entered. What came of the groups ``anew`` before is void. ``complete``: nothing more
        of these groups follows.
        """
        waiting: deque[grpc.Future[control_pb2.TakeCopyReply]] = deque()
        try:
            if anew:
                first = self._request({group: groups[group] for group in anew})
                first.anew = True
                self.stub.TakeCopy(first, timeout=self._timeout_s())
            for request in self._requests(groups, cached):
                if len(waiting) == _IN_FLIGHT:
                    waiting.popleft().result()
                waiting.append(self.stub.TakeCopy.future(request, timeout=self._timeout_s()))
            while waiting:
                waiting.popleft().result()
            if complete:
                last = self._request(groups)
                last.complete = True
                self.stub.TakeCopy(last, timeout=self._timeout_s())
        except (grpc.RpcError, ValueError) as error:
            log.info("subtask %s did not take cached state of key groups: %s", self.target, error)
            return False
        return True

    def _timeout_s(self) -> float:
        return max(0.0, min(self.timeout_s, self.deadline_s - self.clock.monotonic_s()))

    def _request(self, groups: Mapping[int, int]) -> control_pb2.TakeCopyRequest:
        return control_pb2.TakeCopyRequest(
            handshake=handshake_to_proto(self.identity),
            target=subtask_to_proto(self.target),
            routing_version=self.version,
            at_handover=self.at_handover,
            groups=[
                control_pb2.OwnedGroup(key_group=group, owner_epoch=epoch) for group, epoch in groups.items()
            ],
        )

    def _requests(
        self, groups: Mapping[int, int], cached: Sequence[CachedPart]
    ) -> Iterator[control_pb2.TakeCopyRequest]:
        for entries in cached:
            for piece in entries.pieces(_KEYS_MAX, _BYTES_MAX):
                request = self._request(groups)
                put_entries(request, piece)
                yield request


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
        sleep: Callable[[float], None] = threads.sleep,
    ) -> None:
        """``running`` and ``locations`` are the job's own and change; ``address`` is this task manager's.

        ``copies``: whether what is cached is copied; else dirty entries are only written. ``hurries``: then without
        pauses, because the new owner can begin as soon as they are. ``sleep`` passes this many seconds of the clock.
        """
        self._identity = identity
        self._address = address
        self._running = running
        self._network = network
        self._locations = locations
        self._clock = clock
        self._copies = copies
        self._pause_factor = 0.0 if hurries else _PAUSE_FACTOR
        self._sleep = sleep

    def copy(self, subtasks: Sequence[SubtaskId], version: int, moves: Sequence[GroupMove]) -> None:
        """Write dirty entries of groups that these owners will give away, and copy what is cached to the new owners.

        Some groups at a time, so that rows are processed in between. What changed during a copy is written once more:
        that would be 20,000 entries after a copy of a second, 20 ms for which rows would wait. Little is then left for
        the handover.
        """
        deadline_s = self._clock.monotonic_s() + _COPY_S_MAX
        for subtask in subtasks:
            running = self._running.get(subtask)
            if running is None or running.group_state is None:
                continue
            gives: dict[int, list[int]] = {}
            for move in moves:
                if move.source == subtask.subtask_index:
                    gives.setdefault(move.target, []).append(move.group)
            away = {
                target: groups
                for target, groups in gives.items()
                if self._copies and self._is_away(SubtaskId(subtask.stage_index, target))
            }
            wanted = [group for groups in away.values() for group in groups]
            running.subtask.mailbox.post(partial(running.group_state.want_copy, version, wanted))
            for target_index, groups in gives.items():
                target = SubtaskId(subtask.stage_index, target_index)
                if target_index in away:
                    self._copy_to(running, running.group_state, target, version, groups, deadline_s)
                    written_s = self._clock.monotonic_s() + _WRITE_S_MAX
                    self._write(running, running.group_state, groups, written_s)
                else:
                    self._write(running, running.group_state, groups, deadline_s)

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

    def _copy_to(
        self,
        running: RunningSubtask,
        group_state: SubtaskGroupState,
        target: SubtaskId,
        version: int,
        groups: Sequence[int],
        deadline_s: float,
    ) -> None:
        """Copy what is cached of groups until all is copied, the time is over or the new owner does not take it."""
        sender = self._sender(target, version, _COPY_TIMEOUT_S, deadline_s=deadline_s)
        epochs = group_state.backend.ownership.epochs()
        # A command that comes late finds groups that are gone.
        groups = [group for group in groups if group in epochs]
        at_once = _COPIED_AT_FIRST
        while groups:
            part, groups = groups[:at_once], groups[at_once:]
            entries: list[CachedPart] = []
            copying = _Timed(partial(_copy, group_state, part, entries), self._clock)
            if not _is_done(running.subtask.mailbox.post(copying), deadline_s, self._clock):
                break
            began_s = self._clock.monotonic_s()
            if not sender.send({group: epochs[group] + 1 for group in part}, entries):
                break
            running.subtask.mailbox.post(partial(group_state.copy_taken, version, part))
            at_once = next_part(at_once, copying.duration_s)
            self._sleep(max(0.0, began_s + _PAUSE_FACTOR * copying.duration_s - self._clock.monotonic_s()))

    def _write(
        self,
        running: RunningSubtask,
        group_state: SubtaskGroupState,
        groups: Sequence[int],
        deadline_s: float,
    ) -> None:
        """Write dirty entries of groups, some groups at a time; what is left is written with the rest."""
        at_once = _WRITTEN_AT_FIRST
        while groups:
            part, groups = groups[:at_once], groups[at_once:]
            writing = _Timed(partial(group_state.flush_groups, part), self._clock)
            if not _is_done(running.subtask.mailbox.post(writing), deadline_s, self._clock):
                return
            self._sleep(self._pause_factor * writing.duration_s)
            at_once = next_part(at_once, writing.duration_s)

    def _sender(
        self,
        target: SubtaskId,
        version: int,
        timeout_s: float,
        *,
        at_handover: bool = False,
        deadline_s: float = float("inf"),
    ) -> CopySender:
        stub = self._network.stub(self._locations[target], control_pb2_grpc.TaskManagerStub)
        return CopySender(
            stub, self._identity, target, version, self._clock, timeout_s, at_handover, deadline_s
        )


def next_part(groups: int, duration_s: float) -> int:
    """How many groups to take next, after so many took so long between two batches; at least 1.

    With little state all of them soon go at once. Called for each part.
    """
    wanted = groups * _PART_S_WANTED / max(duration_s, 1e-6)
    return max(1, round(min(max(wanted, groups / 2), groups * 2)))


class _Timed:
    """A command that notes how long it took."""

    def __init__(self, command: Callable[[], None], clock: Clock) -> None:
        self._clock = clock
        self._command = command
        self.duration_s = 0.0

    def __call__(self) -> None:
        began_s = self._clock.monotonic_s()
        self._command()
        self.duration_s = self._clock.monotonic_s() - began_s


def _is_done(command: Future[None] | None, deadline_s: float, clock: Clock) -> bool:
    """Wait for a command to a subtask, but not for long; False also if it failed or the subtask has ended."""
    left_s = min(_PART_S_MAX, max(0.0, deadline_s - clock.monotonic_s()))
    return command is not None and threads.wait([command], left_s) and command.exception() is None


def _copy(group_state: SubtaskGroupState, groups: Sequence[int], entries: list[CachedPart]) -> None:
    entries += group_state.copy_groups(groups)
