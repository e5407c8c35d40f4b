"""Carries out what old owners decide: groups go to their new owner, here or elsewhere, with or after their state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from task_manager.ownership.group_ownership import GivenGroups
from task_manager.rescale.ownership_reports import OwnershipReports
from task_manager.rescale.ports import Copies, LocalSubtask, Peers, Shipping, Spawn
from task_manager.rescale.relink_sender import RelinkSender
from weir import threads
from weir.errors import HandshakeError, WeirError
from weir.protocol.rescale.rescale_owner import HandoverReceived
from weir.types import SubtaskId

log = logging.getLogger(__name__)


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


class Handovers:
    """The handovers of a deployed job; called by subtasks' threads."""

    def __init__(
        self,
        address: str,
        subtasks: Mapping[SubtaskId, LocalSubtask],
        locations: Mapping[SubtaskId, str],
        peers: Peers,
        copies: Copies,
        shipping: Shipping | None,
        reports: OwnershipReports,
        spawn: Spawn,
        relinks: RelinkSender | None = None,
    ) -> None:
        """``subtasks`` (those here) and ``locations`` (of all) are the job's own and change; see ``ports``.

        ``shipping``: state goes with its groups; None: it stays where it is. ``relinks``: new owners open images of
        checkpoints; None: they do not.
        """
        self._address = address
        self._subtasks = subtasks
        self._locations = locations
        self._peers = peers
        self._copies = copies
        self._shipping = shipping
        self._reports = reports
        self._spawn = spawn
        self._relinks = relinks
        self._closed = False

    def begin(
        self, source: SubtaskId, version: int, target: int, groups: Mapping[int, int], given: GivenGroups
    ) -> None:
        """A subtask gives groups away, whose state it has written; returns at once."""
        group_state = self._subtasks[source].group_state
        state_ids = () if group_state is None else group_state.state_ids
        to = SubtaskId(source.stage_index, target)
        handover = _Handover(source, version, to, dict(groups), given, state_ids)
        self._spawn(lambda: self._hand_over(handover))

    def close(self) -> None:
        """The job ends: what fails from now on is nobody's concern."""
        self._closed = True

    def fail(self, subtask: SubtaskId, error: WeirError) -> bool:
        """Let a subtask fail with what its handover or migration met; False: it has ended."""

        def command() -> None:
            raise error

        local = self._subtasks.get(subtask)
        return local is not None and local.post(command) is not None

    def _hand_over(self, handover: _Handover) -> None:
        try:
            address = self._locations[handover.target]
            if address == self._address:
                self._hand_over_here(handover)
            elif self._shipping is not None:
                self._ship(handover, address, self._shipping)
            else:
                self._send(handover, address)
        except WeirError as error:
            self._failed(handover, error)
        except Exception as error:
            log.exception("handing over groups of subtask %s failed", handover.source)
            self._failed(handover, WeirError(f"handing over key groups to {handover.target} failed: {error}"))

    def _hand_over_here(self, handover: _Handover) -> None:
        """Hand over to a subtask that shares the store."""
        target = self._subtasks.get(handover.target)
        for location, groups in handover.by_location().items():
            event = HandoverReceived(handover.version, groups, location)
            if target is None or target.tell(event) is None:
                raise HandshakeError(f"subtask {handover.target} ended before it got its key groups")

    def _ship(self, handover: _Handover, address: str, shipping: Shipping) -> None:
        """The state goes first, and each group follows its last entry; after a failure nothing more goes."""

        def shipped(group: int, size_bytes: int) -> None:
            event = HandoverReceived(handover.version, {group: handover.groups[group]}, address)
            failures: list[WeirError] = []
            self._peers.hand_over(address, handover.target, event, size_bytes, failures.append)
            if failures:
                raise failures[0]

        shipping.ship(handover.source, address, handover.groups, handover.state_ids, shipped)

    def _send(self, handover: _Handover, address: str) -> None:
        """The state stays where it is."""

        def failed(error: WeirError) -> None:
            self._failed(handover, error)

        by_location = handover.by_location()
        groups = by_location.get(self._address)
        if groups is None or self._relinks is None:
            self._complete(handover)
        else:
            self._relink(handover, address, groups, self._relinks, failed)
            del by_location[self._address]
        for location, others in by_location.items():
            event = HandoverReceived(handover.version, others, location)
            self._peers.hand_over(address, handover.target, event, 0, failed)

    def _relink(
        self,
        handover: _Handover,
        address: str,
        groups: Mapping[int, int],
        relinks: RelinkSender,
        failed: Callable[[WeirError], None],
    ) -> None:
        """The state stays here, too; what the new owner needs of it beside images of a checkpoint goes first.

        So does the rest of the cache, at the same time: rows of the groups wait for both.
        """
        with threads.beside(lambda: self._complete(handover), "cache-rest"):
            parts = relinks.send(handover.source, handover.version, address, groups, handover.given.changed)
        for part in parts:
            event = HandoverReceived(handover.version, part.groups, self._address)
            self._peers.hand_over(address, handover.target, event, part.bytes_sent, failed, part.offer)

    def _complete(self, handover: _Handover) -> None:
        """Send what the new owner still needs of the cache."""
        self._copies.complete(handover.target, handover.version, handover.groups, handover.given.cached)

    def _failed(self, handover: _Handover, error: WeirError) -> None:
        if not self._closed and not self.fail(handover.source, error):
            self._reports.failed(handover.source, handover.version, str(error))
