"""A task manager's part in rescaling a stage: commands of the coordinator in, handovers and reports out.

Commands come on gRPC threads and go to subtasks' mailboxes; what subtasks decide is carried out on
threads of its own here, so that the data goes on meanwhile. The order of things is in docs/design/0001.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from task_manager.exchange.inboxes import Inboxes
from task_manager.rescale.cache_copy import CacheCopier
from task_manager.rescale.cached_wire import entries_of
from task_manager.rescale.group_ownership import GivenGroups, RescaleReports
from task_manager.subtasks.progress import FINAL_STATES
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.clock import Clock
from weir.config import StateMove, StateStrategy, TaskManagerConfig
from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.graph import Edge
from weir.protocol.rescale_owner import Abort, HandoverReceived, OwnerEvent, Prepare, Proceed
from weir.protocol.routing import GroupMove
from weir.records import EndOfStream, RouteMarker
from weir.rpc import control_pb2, control_pb2_grpc
from weir.rpc.wire import JobIdentity, handshake_to_proto, subtask_to_proto
from weir.state.api import StateBackend
from weir.state.placement.migration import Migrator, ship_groups
from weir.types import SubtaskId

if TYPE_CHECKING:
    from task_manager.exchange.peer_network import PeerNetwork
    from task_manager.rescale.group_state import SubtaskGroupState
    from task_manager.subtasks.running import RunningSubtask
    from task_manager.topology import Topology

log = logging.getLogger(__name__)

#: An owner that is busy with a batch for longer answers later than the command does; that is no failure.
_PREPARE_WAIT_S = 0.25
#: A switch comes between two batches; a subtask that failed or was stopped meanwhile ends the wait.
_REROUTE_WAIT_S = 600.0
_HANDOVER_TIMEOUT_S = 30.0
_TAKE_COPY_WAIT_S = 20.0
_THREADS = 8


class RescaleParticipant:
    """One per deployed job; ``running`` and ``inboxes`` are the job runtime's own."""

    def __init__(
        self,
        identity: JobIdentity,
        address: str,
        running: Mapping[SubtaskId, RunningSubtask],
        inboxes: Inboxes,
        network: PeerNetwork,
        store: StateBackend,
        config: TaskManagerConfig,
        strategy: StateStrategy,
        on_change: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._identity = identity
        self._address = address
        self._running = running
        self._inboxes = inboxes
        self._network = network
        self._store = store
        self._ships = strategy.move is StateMove.SHIPPED
        self._ship_bytes_per_second = config.migration_bytes_per_second
        self._migrator = Migrator(config.migration_bytes_per_second, config.migration_chunk_bytes, clock)
        self._locations: dict[SubtaskId, str] = {}
        # Without a migration the groups are wanted at once, and strategy local ships everything anyway.
        self._copier = CacheCopier(
            identity,
            address,
            running,
            network,
            self._locations,
            clock,
            copies=strategy.move is StateMove.FETCHED,
            hurries=not self._ships,
        )
        self._on_change = on_change
        self._lock = threading.Lock()
        self._reports: dict[SubtaskId, control_pb2.OwnershipReport] = {}
        self._closed = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rescale")

    # --- commands of the coordinator -------------------------------------------------------------------------

    def prepare(
        self,
        subtasks: Sequence[SubtaskId],
        version: int,
        moves: tuple[GroupMove, ...],
        retiring: Sequence[int],
        locations: Mapping[SubtaskId, str],
    ) -> list[SubtaskId]:
        """Tell owners here of a rescale; gives those that have ended already."""
        # Known before any marker can come, which may be sooner than the command to switch.
        self._locations.update(locations)
        self._copier.copy(subtasks, version, moves)
        known: dict[SubtaskId, Future[None] | None] = {
            subtask: self._post(subtask, Prepare(version, moves, retiring=subtask.subtask_index in retiring))
            for subtask in subtasks
        }
        # Wait for the early flush, which makes the handover short, but not for long.
        wait([future for future in known.values() if future is not None], _PREPARE_WAIT_S)
        return [subtask for subtask, future in known.items() if future is None]

    def reroute(
        self,
        upstream: Sequence[SubtaskId],
        owners: Sequence[SubtaskId],
        stage_index: int,
        version: int,
        topology: Topology,
        retiring: Sequence[int],
    ) -> None:
        """Switch upstream subtasks here to the stage's new subtasks, and tell owners that it is certain.

        Raises:
            ConnectionLostError, HandshakeError: a new subtask's task manager does not take a channel.
        """
        self._locations.update(topology.locations)
        for owner in owners:
            self._post(owner, Proceed(version))
        futures = []
        for subtask in upstream:
            for edge in topology.graph.stage(stage_index).inputs:
                if edge.producer_stage == subtask.stage_index:
                    futures.append(self._reroute_one(subtask, edge, version, topology, retiring))
        if wait(futures, _REROUTE_WAIT_S).not_done:
            raise ConnectionLostError(
                f"an upstream subtask on {self._address} did not switch within {_REROUTE_WAIT_S:g} s"
            )
        if any(future.exception() for future in futures):
            raise HandshakeError(f"an upstream subtask on {self._address} ended before it could switch")

    def receive(self, request: control_pb2.HandOverRequest) -> None:
        """Take a handover from an old owner on another task manager."""
        target = SubtaskId(request.target.stage_index, request.target.subtask_index)
        self._count_bytes(target, request.routing_version, request.bytes_shipped)
        groups = {item.key_group: item.owner_epoch for item in request.groups}
        if (
            self._post(target, HandoverReceived(request.routing_version, groups, request.state_location))
            is None
        ):
            raise HandshakeError(f"subtask {target} has ended on task manager {self._address}")

    def take_copy(self, request: control_pb2.TakeCopyRequest) -> None:
        """Take what an owner has cached of groups that it will hand over; returns when it is entered.

        Raises:
            HandshakeError: it is malformed, or the subtask has ended.
        """
        target = SubtaskId(request.target.stage_index, request.target.subtask_index)
        entries = entries_of(request)
        groups = {item.key_group: item.owner_epoch for item in request.groups}
        running = self._running.get(target)
        group_state = None if running is None else running.group_state
        if running is None or group_state is None:
            raise HandshakeError(f"subtask {target} with keyed state is not on task manager {self._address}")
        entered = running.subtask.mailbox.post(
            lambda: group_state.take_copy(
                request.routing_version,
                groups,
                entries,
                anew=request.anew,
                complete=request.complete,
                at_handover=request.at_handover,
            )
        )
        if entered is None or wait([entered], _TAKE_COPY_WAIT_S).not_done or entered.exception():
            raise HandshakeError(
                f"subtask {target} on task manager {self._address} does not take cached state"
            )

    def abort(self, owners: Sequence[SubtaskId], version: int) -> None:
        """Take a rescale back."""
        for owner in owners:
            self._post(owner, Abort(version))

    # --- reports to the coordinator --------------------------------------------------------------------------

    def reports(self) -> list[control_pb2.OwnershipReport]:
        """What the owners here have of the latest rescale; sent with every heartbeat."""
        copies = []
        with self._lock:
            for subtask, report in self._reports.items():
                copy = control_pb2.OwnershipReport()
                copy.CopyFrom(report)
                running = self._running.get(subtask)
                group_state = None if running is None else running.group_state
                if group_state is not None and any(at != self._address for at in report.locations):
                    copy.bytes_moved += self._migrator.progress(group_state.backend).bytes
                copies.append(copy)
        return copies

    def reports_of(self, subtask: SubtaskId) -> RescaleReports:
        """What a subtask calls with its decisions."""
        return _SubtaskReports(self, subtask)

    def owned(self, subtask: SubtaskId, version: int, groups: Iterable[int], location: str) -> None:
        """A subtask took groups over; called by its thread."""
        listed = list(groups)
        with self._lock:
            report = self._report(subtask, version)
            report.owned_groups.extend(listed)
            report.locations.extend([location] * len(listed))
            if location == self._address:
                report.complete_groups.extend(listed)
        self._on_change()

    def adopted(self, subtask: SubtaskId) -> Callable[[SubtaskGroupState], None]:
        """What a subtask calls when groups came whose state may have to be fetched."""

        def fetch(group_state: SubtaskGroupState) -> None:
            if not group_state.backend.migrating():
                return
            self._migrator.add(
                group_state.backend,
                on_complete=lambda group: self._completed(subtask, group),
                on_error=self._failing(subtask),
            )

        return fetch

    def hand_over(
        self,
        subtask: SubtaskId,
        version: int,
        target: int,
        groups: Mapping[int, int],
        given: GivenGroups,
    ) -> None:
        """A subtask gives groups away; called by its thread, after their state was written."""
        group_state = self._running[subtask].group_state
        handover = _Handover(
            subtask,
            version,
            SubtaskId(subtask.stage_index, target),
            dict(groups),
            given,
            () if group_state is None else group_state.state_ids,
        )
        self._threads.submit(self._hand_over, handover)

    def pull(self, address: str) -> int:
        """Let owners here fetch what is in a store that is to go away; gives how many groups are not done.

        Called again and again until that is 0; no rescale runs meanwhile.
        """
        left = 0
        for subtask, running in list(self._running.items()):
            group_state = running.group_state
            if group_state is None or running.subtask.progress.state in FINAL_STATES:
                continue
            backend = group_state.backend
            known = {migrating.group for migrating in backend.migrating()}
            there = [group for group, at in backend.locations().items() if at == address]
            if not known.issuperset(there):
                backend.migrate(there)
                self._migrator.add(backend, on_error=self._failing(subtask))
            left += backend.unsettled_count()
        return left

    def _failing(self, subtask: SubtaskId) -> Callable[[WeirError], None]:
        return lambda error: (
            log.debug("subtask %s: %s", subtask, error) if not self._fail(subtask, error) else None
        )

    def forget(self, subtask: SubtaskId, group_state: SubtaskGroupState | None) -> None:
        """A subtask has ended and is no longer part of the job."""
        with self._lock:
            self._reports.pop(subtask, None)
        if group_state is not None:
            self._migrator.remove(group_state.backend)
        self._locations.pop(subtask, None)

    def close(self) -> None:
        """End the threads; what they still have to do is given up."""
        self._closed = True
        self._migrator.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    # --- parts -----------------------------------------------------------------------------------------------

    def _post(self, subtask: SubtaskId, event: OwnerEvent) -> Future[None] | None:
        """Let a subtask take an event in, in its own thread; None if it has ended."""
        running = self._running.get(subtask)
        if running is None or not isinstance(running.subtask, TaskSubtask):
            raise HandshakeError(f"subtask {subtask} does not run on task manager {self._address}")
        task = running.subtask
        return task.mailbox.post(lambda: task.handle(event))

    def _reroute_one(
        self, subtask: SubtaskId, edge: Edge, version: int, topology: Topology, retiring: Sequence[int]
    ) -> Future[None]:
        running = self._running[subtask]
        table = topology.routing.get(edge.consumer_stage)
        known = set(running.chain.output.consumers(edge))
        added = {
            channel.consumer.subtask_index: self._network.open_channel(
                channel, self._inboxes.of(subtask), topology.locations[channel.consumer]
            )
            for channel in topology.graph.output_channels(subtask, edge)
            if channel.consumer.subtask_index not in known
        }

        def command() -> None:
            group_to_subtask = table.group_to_subtask if table is not None else None
            running.chain.output.reroute(edge, version, group_to_subtask, added, retiring)

        future = running.subtask.mailbox.post_routing(command)
        if future is None:
            # It has ended: its end of stream says everything, also to consumers that are new.
            for channel in added.values():
                channel.send(RouteMarker(version))
                channel.send(EndOfStream())
                channel.close()
            future = Future()
            future.set_result(None)
        return future

    def _hand_over(self, handover: _Handover) -> None:
        try:
            target_address = self._locations[handover.target]
            if target_address == self._address:
                self._hand_over_here(handover)
            elif self._ships:
                self._ship(handover, target_address)
            else:
                self._copier.complete(
                    handover.target, handover.version, handover.groups, handover.given.cached
                )
                for location, groups in handover.by_location().items():
                    self._send(handover, target_address, groups, location, 0)
        except WeirError as error:
            self._handover_failed(handover, error)
        except Exception as error:
            log.exception("handing over groups of subtask %s failed", handover.source)
            self._handover_failed(
                handover, WeirError(f"handing over key groups to {handover.target} failed: {error}")
            )

    def _handover_failed(self, handover: _Handover, error: WeirError) -> None:
        if self._closed or self._fail(handover.source, error):
            return
        with self._lock:
            self._report(handover.source, handover.version).failure = str(error)
        self._on_change()

    def _hand_over_here(self, handover: _Handover) -> None:
        """Both subtasks share the store."""
        for location, groups in handover.by_location().items():
            if self._post(handover.target, HandoverReceived(handover.version, groups, location)) is None:
                raise HandshakeError(f"subtask {handover.target} ended before it got its key groups")

    def _ship(self, handover: _Handover, target_address: str) -> None:
        """Strategy local: the state goes first, and each group follows its last entry."""
        stage_index = handover.source.stage_index
        client = self._network.state_client(stage_index, target_address, handover.groups)

        def shipped(group: int, size_bytes: int) -> None:
            groups = {group: handover.groups[group]}
            self._send(handover, target_address, groups, target_address, size_bytes)

        ship_groups(
            self._store,
            client,
            handover.groups,
            handover.state_ids,
            self._clock,
            on_group=shipped,
            cancelled=lambda: self._closed,
            bytes_per_second=self._ship_bytes_per_second,
        )

    def _send(
        self,
        handover: _Handover,
        target_address: str,
        groups: Mapping[int, int],
        location: str,
        bytes_shipped: int,
    ) -> None:
        request = control_pb2.HandOverRequest(
            handshake=handshake_to_proto(self._identity),
            target=subtask_to_proto(handover.target),
            routing_version=handover.version,
            groups=[
                control_pb2.OwnedGroup(key_group=group, owner_epoch=epoch) for group, epoch in groups.items()
            ],
            state_location=location,
            bytes_shipped=bytes_shipped,
        )
        stub = control_pb2_grpc.TaskManagerStub(self._network.connection(target_address))
        try:
            stub.HandOver(request, timeout=_HANDOVER_TIMEOUT_S)
        except grpc.RpcError as error:
            raise ConnectionLostError(
                f"task manager {target_address} did not take key groups over: {error.details()}"
            ) from error

    def _completed(self, subtask: SubtaskId, group: int) -> None:
        """All state of a group is here; called by the migrator's thread."""
        with self._lock:
            report = self._reports.get(subtask)
            if report is not None:
                report.complete_groups.append(group)
        self._on_change()

    def _fail(self, subtask: SubtaskId, error: WeirError) -> bool:
        """Let a subtask fail with what its handover or migration met; False if it has ended."""

        def command() -> None:
            raise error

        running = self._running.get(subtask)
        return running is not None and running.subtask.mailbox.post(command) is not None

    def _report(self, subtask: SubtaskId, version: int) -> control_pb2.OwnershipReport:
        """The report on the latest rescale; the caller has the lock."""
        report = self._reports.get(subtask)
        if report is None or report.routing_version < version:
            report = control_pb2.OwnershipReport(subtask=subtask_to_proto(subtask), routing_version=version)
            self._reports[subtask] = report
        return report

    def _count_bytes(self, subtask: SubtaskId, version: int, size_bytes: int) -> None:
        with self._lock:
            self._report(subtask, version).bytes_moved += size_bytes


@dataclass(frozen=True)
class _Handover:
    """Groups on their way from one subtask to another."""

    source: SubtaskId
    version: int
    target: SubtaskId
    #: With their new owner epochs.
    groups: Mapping[int, int]
    given: GivenGroups
    state_ids: Sequence[int]

    def by_location(self) -> dict[str, dict[int, int]]:
        """The groups by the store that has their state."""
        grouped: dict[str, dict[int, int]] = {}
        for group, epoch in self.groups.items():
            grouped.setdefault(self.given.locations[group], {})[group] = epoch
        return grouped


class _SubtaskReports:
    """Implements ``RescaleReports`` for one subtask."""

    def __init__(self, participant: RescaleParticipant, subtask: SubtaskId) -> None:
        self._participant = participant
        self._subtask = subtask

    def hand_over(self, version: int, target: int, groups: Mapping[int, int], given: GivenGroups) -> None:
        """See ``RescaleReports``."""
        self._participant.hand_over(self._subtask, version, target, groups, given)

    def owned(self, version: int, groups: Iterable[int], location: str) -> None:
        """See ``RescaleReports``."""
        self._participant.owned(self._subtask, version, groups, location)
