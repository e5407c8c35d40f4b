"""A task manager's part in rescaling a stage: commands of the coordinator and of other task managers come in here.

Commands come on gRPC threads and go to subtasks' mailboxes; what subtasks decide is carried out by ``handovers``, so
that the data goes on meanwhile. The order of things is in docs/design/0001.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from task_manager.ownership.group_ownership import GivenGroups, RescaleReports
from task_manager.ownership.group_state import SubtaskGroupState
from task_manager.rescale.copy_pace import AHEAD_AGAIN_S_MAX, AHEAD_S_MAX
from task_manager.rescale.fetching import Fetching
from task_manager.rescale.handovers import Handovers
from task_manager.rescale.ownership_reports import OwnershipReports
from task_manager.rescale.ports import Copies, LocalSubtask, Switches
from task_manager.rescale.relink_sender import RelinkSender
from task_manager.rescale.relinking import Relinking
from task_manager.topology import Topology
from weir import threads
from weir.errors import ConnectionLostError, HandshakeError
from weir.protocol.rescale.cache_copy import CopyArrived
from weir.protocol.rescale.relink import RelinkOffer
from weir.protocol.rescale.rescale_owner import Abort, HandoverReceived, OwnerEvent, Prepare, Proceed
from weir.protocol.routing import GroupMove
from weir.rpc import control_pb2
from weir.state.tables.cached_entries import CachedPart
from weir.types import SubtaskId

log = logging.getLogger(__name__)

#: An owner that is busy with a batch for longer answers later than the command does; that is no failure.
_PREPARE_WAIT_S = 0.25
#: A switch comes between two batches; a subtask that failed or was stopped meanwhile ends the wait.
_REROUTE_WAIT_S = 600.0
_TAKE_COPY_WAIT_S = 20.0
#: Images of a checkpoint that are opened later may still be in time; the coordinator waits for 5 s.
_OPENING_WAIT_S = 3.5


class RescaleParticipant:
    """The part of a deployed job in rescales; made by ``rescale_opening``."""

    def __init__(
        self,
        address: str,
        subtasks: Mapping[SubtaskId, LocalSubtask],
        locations: dict[SubtaskId, str],
        copies: Copies,
        switches: Switches,
        handovers: Handovers,
        fetching: Fetching,
        reports: OwnershipReports,
        close: Callable[[], None],
        relinks: tuple[RelinkSender, Relinking] | None = None,
    ) -> None:
        """``subtasks`` are the job's own and change; ``locations`` (of all subtasks) is kept up to date here.

        ``close`` ends the threads behind the ports. ``relinks``: the sides of old and new owners; None: state is never
        relinked.
        """
        self._address = address
        self._subtasks = subtasks
        self._locations = locations
        self._copies = copies
        self._switches = switches
        self._handovers = handovers
        self._fetching = fetching
        self._reports = reports
        self._close = close
        self._relinks = relinks
        #: By stage: the images that new owners here wait for in its latest rescale, and until when.
        self._opening: dict[int, tuple[Future[None], float]] = {}

    # --- commands of the coordinator -------------------------------------------------------------------------

    def prepare(
        self,
        subtasks: Sequence[SubtaskId],
        version: int,
        moves: tuple[GroupMove, ...],
        retiring: Sequence[int],
        locations: Mapping[SubtaskId, str],
        relink_checkpoint_id: int = 0,
    ) -> list[SubtaskId]:
        """Tell owners here of a rescale; returns those that have ended already.

        ``relink_checkpoint_id``: groups may be taken over from its images; 0: from none.
        """
        # Known before any marker can come, which may be sooner than the command to switch.
        self._locations.update(locations)
        if self._relinks is not None and subtasks:
            self._relinks[0].prepare(subtasks[0].stage_index, version, relink_checkpoint_id)
        if self._relinks is not None and relink_checkpoint_id:
            sender = self._relinks[0]
            # Most of the time either waits: for rows to be processed, and for the new owner's store.
            with threads.beside(
                lambda: self._send_ahead(subtasks, version, moves, sender, AHEAD_S_MAX), "relink-ahead"
            ):
                self._copies.copy(subtasks, version, moves)
            self._send_ahead(subtasks, version, moves, sender, AHEAD_AGAIN_S_MAX)
        else:
            self._copies.copy(subtasks, version, moves)
        known: dict[SubtaskId, Future[None] | None] = {
            subtask: self._tell(subtask, Prepare(version, moves, retiring=subtask.subtask_index in retiring))
            for subtask in subtasks
        }
        # Wait for the early flush, which makes the handover short, but not for long.
        threads.wait([future for future in known.values() if future is not None], _PREPARE_WAIT_S)
        if self._relinks is not None and subtasks:
            # They were opened while old owners sent ahead.
            opening, until_s = self._opening.pop(subtasks[0].stage_index, (None, 0.0))
            if opening is not None:
                threads.wait([opening], max(0.0, until_s - self._relinks[0].clock.monotonic_s()))
        return [subtask for subtask, future in known.items() if future is None]

    def open_images(
        self,
        subtasks: Sequence[SubtaskId],
        version: int,
        checkpoint_id: int,
        moves: Sequence[GroupMove],
        locations: Mapping[SubtaskId, str],
    ) -> None:
        """Begin to open images of a checkpoint that have groups which come to owners here; :meth:`prepare` waits.

        Called before any owner is prepared, because what is here of these groups is deleted, and old owners begin to
        send when they are.
        """
        if self._relinks is not None and subtasks and checkpoint_id:
            opening = self._relinks[1].prepare(subtasks, version, checkpoint_id, moves, locations)
            if opening is not None:
                until_s = self._relinks[0].clock.monotonic_s() + _OPENING_WAIT_S
                self._opening[subtasks[0].stage_index] = opening, until_s

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
            self._tell(owner, Proceed(version))
        futures = [
            future
            for subtask in upstream
            for future in self._switches.switch(subtask, stage_index, version, topology, retiring)
        ]
        if not threads.wait(futures, _REROUTE_WAIT_S):
            raise ConnectionLostError(
                f"an upstream subtask on {self._address} did not switch within {_REROUTE_WAIT_S:g} s"
            )
        error = next(filter(None, (future.exception() for future in futures)), None)
        if error is not None:
            raise HandshakeError(
                f"an upstream subtask on {self._address} ended before it could switch: {error}"
            )

    def abort(self, owners: Sequence[SubtaskId], version: int) -> None:
        """Take a rescale back."""
        for owner in owners:
            self._tell(owner, Abort(version))
            if self._relinks is not None:
                self._relinks[1].abort(owner.stage_index, version)
                self._opening.pop(owner.stage_index, None)

    def pull(self, address: str) -> int:
        """Let owners here fetch what is in a store that is to go away; see ``Fetching.pull``."""
        return self._fetching.pull(address)

    # --- calls of other task managers ------------------------------------------------------------------------

    def receive(
        self,
        target: SubtaskId,
        handover: HandoverReceived,
        bytes_shipped: int,
        offer: RelinkOffer | None = None,
    ) -> None:
        """Take a handover from an old owner elsewhere, which has sent this many bytes of state before.

        ``offer``: the rest of the state is in images of a checkpoint, too.

        Raises:
            HandshakeError: the subtask has ended, or is not here.
        """
        self._reports.count_bytes(target, handover.version, bytes_shipped)
        relinked = self._relink(target, handover, offer)
        self._reports.count_sent(target, handover.version, bytes_shipped, relinked)
        told = self._tell(target, handover)
        if told is None:
            raise HandshakeError(f"subtask {target} has ended on task manager {self._address}")
        if self._relinks is not None:
            came = partial(self._relinks[1].came, target, handover.version, tuple(handover.groups))
            told.add_done_callback(lambda _: came())

    def take_copy(self, target: SubtaskId, arrived: CopyArrived, entries: CachedPart | None) -> None:
        """Take what an owner has cached of groups that it will hand over; returns when it is entered.

        Raises:
            HandshakeError: the subtask has ended, or is busy for long.
        """
        local = self._subtasks.get(target)
        group_state = None if local is None else local.group_state
        if local is None or group_state is None:
            raise HandshakeError(f"subtask {target} with keyed state is not on task manager {self._address}")
        if entries is not None:
            self._reports.count_sent(target, arrived.version, entries.size_bytes)
        entered = local.post(lambda: group_state.take_copy(arrived, entries))
        if entered is None or not threads.wait([entered], _TAKE_COPY_WAIT_S) or entered.exception():
            raise HandshakeError(
                f"subtask {target} on task manager {self._address} does not take cached state"
            )

    # --- subtasks and reports ---------------------------------------------------------------------------------

    def reports(self) -> list[control_pb2.OwnershipReport]:
        """Returns what the owners here have of the latest rescale; sent with every heartbeat."""
        return self._reports.current(self._fetching.bytes_pulled)

    def reports_of(self, subtask: SubtaskId) -> RescaleReports:
        """Returns what a subtask calls with its decisions."""
        return _SubtaskReports(self._handovers, self._reports, subtask)

    def adopted(self, subtask: SubtaskId) -> Callable[[SubtaskGroupState], None]:
        """Returns what a subtask calls when groups came whose state may have to be fetched."""
        return self._fetching.adopted(subtask)

    def forget(self, subtask: SubtaskId, group_state: SubtaskGroupState | None) -> None:
        """A subtask has ended and is no longer part of the job."""
        self._reports.forget(subtask)
        if group_state is not None:
            self._fetching.forget(group_state)
        self._locations.pop(subtask, None)

    def close(self) -> None:
        """End the threads; what they still have to do is given up."""
        self._handovers.close()
        self._fetching.close()
        self._close()
        if self._relinks is not None:
            self._relinks[1].close()

    def _send_ahead(
        self,
        subtasks: Sequence[SubtaskId],
        version: int,
        moves: Sequence[GroupMove],
        sender: RelinkSender,
        seconds: float,
    ) -> None:
        """Send what has changed since a checkpoint in groups that will move, before rows wait for it."""
        until_s = sender.clock.monotonic_s() + seconds
        for source in subtasks:
            local = self._subtasks.get(source)
            group_state = None if local is None else local.group_state
            if group_state is None:
                continue
            ownership = group_state.backend.ownership
            changed, epochs = ownership.changed(), ownership.epochs()
            for target in sorted({move.target for move in moves if move.source == source.subtask_index}):
                address = self._locations.get(SubtaskId(source.stage_index, target), self._address)
                groups = {
                    move.group: epochs[move.group] + 1
                    for move in moves
                    if (move.source, move.target) == (source.subtask_index, target) and move.group in epochs
                }
                if address != self._address and groups:
                    sender.send_ahead(source, version, address, groups, changed, until_s)

    def _relink(self, target: SubtaskId, handover: HandoverReceived, offer: RelinkOffer | None) -> int:
        """Tell the new owner of groups, before it gets them, that it finds them in images; returns of how many."""
        local = self._subtasks.get(target)
        group_state = None if local is None else local.group_state
        if self._relinks is None or local is None or group_state is None:
            return 0
        copy_at = str(handover.location)
        relinked = self._relinks[1].accept(target, handover.version, handover.groups, offer, copy_at)
        if relinked is None:
            return 0
        log.info(
            "subtask %s: %d key groups are relinked to checkpoint %d",
            target,
            len(relinked),
            0 if offer is None else offer.checkpoint_id,
        )
        local.post(partial(group_state.will_relink, relinked))
        return len(relinked)

    def _tell(self, subtask: SubtaskId, event: OwnerEvent) -> Future[None] | None:
        local = self._subtasks.get(subtask)
        if local is None:
            raise HandshakeError(f"subtask {subtask} does not run on task manager {self._address}")
        return local.tell(event)


class _SubtaskReports:
    """Implements ``RescaleReports`` for one subtask."""

    def __init__(self, handovers: Handovers, reports: OwnershipReports, subtask: SubtaskId) -> None:
        self._handovers = handovers
        self._reports = reports
        self._subtask = subtask

    def hand_over(self, version: int, target: int, groups: Mapping[int, int], given: GivenGroups) -> None:
        """Begin to hand groups over, as ``RescaleReports`` says."""
        self._handovers.begin(self._subtask, version, target, groups, given)

    def owned(self, version: int, groups: Iterable[int], location: str) -> None:
        """Report the groups that are owned, as ``RescaleReports`` says."""
        self._reports.owned(self._subtask, version, groups, location)
