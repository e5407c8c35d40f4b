"""Key groups of one subtask while its stage is rescaled: who owns them, which rows wait, how state changes hands.

Everything is called by the subtask's thread, between two batches. Decisions are
``weir.protocol.rescale.rescale_owner``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from task_manager.ownership.parking import ParkedRows
from weir.keys.hashing import key_groups
from weir.protocol.rescale.rescale_owner import (
    Abort,
    HandOver,
    OwnerAction,
    OwnerEvent,
    OwnerMachine,
    Retired,
    StartFlush,
    TakeOwnership,
)
from weir.rows import row_watermarks
from weir.rows.records import KEY_HASH_COLUMN, InputRows
from weir.state.placement.changed_keys import NO_CHANGES_KNOWN, ChangesSince
from weir.state.tables.cached_entries import CachedChanges

#: Rows that come out of the park at a time, so that credit and commands are looked at in between.
_UNPARKED_ROWS_MAX = 8_192


@dataclass(frozen=True)
class GivenGroups:
    """What goes with key groups to their new owner."""

    #: Address of the store that has the state of each group.
    locations: Mapping[int, str]
    #: What the new owner is to have of the cache and has not.
    cached: CachedChanges
    #: Which keys have changed since images of checkpoints.
    changed: ChangesSince = NO_CHANGES_KNOWN


class GroupState(Protocol):
    """The keyed state of a subtask's operators, by key group."""

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write dirty entries of these groups; they stay."""

    def give_groups(self, version: int, groups: Iterable[int]) -> GivenGroups:
        """Write dirty entries of these groups, and forget the groups: a rescale hands them over now."""

    def abort_copy(self, version: int) -> None:
        """A rescale was taken back: what was cached for it at its new owners does not count."""

    def adopt_groups(self, groups: Mapping[int, int], location: str) -> str:
        """Own these groups (with owner epochs) from now on; their state is in the store at ``location``.

        Gives where it is in truth: here, if the stage keeps no state.
        """


class RescaleReports(Protocol):
    """Where a subtask sends what it decides; the calls only queue."""

    def hand_over(self, version: int, target: int, groups: Mapping[int, int], given: GivenGroups) -> None:
        """Send these groups (with their new epochs) to the subtask of that index."""

    def owned(self, version: int, groups: Iterable[int], location: str) -> None:
        """Report groups that were taken over, with their state at ``location``."""


class Ownership:
    """Parks rows of groups that the subtask does not own yet, and hands groups over."""

    def __init__(
        self,
        machine: OwnerMachine,
        state: GroupState,
        reports: RescaleReports,
        process: Callable[[InputRows], None],
        keyed_inputs: Collection[int],
        settle: Callable[[], None] = lambda: None,
        *,
        tells_ahead: bool = False,
    ) -> None:
        """``keyed_inputs``: rows of others belong to no key group, and never wait for one.

        ``tells_ahead``: as of ``row_watermarks.combined``.

        ``settle`` writes what operators hold back: rows of a key leave in order, although another subtask goes on.
        """
        self._machine = machine
        self._state = state
        self._reports = reports
        self._process = process
        self._keyed_inputs = keyed_inputs
        self._settle = settle
        self._tells_ahead = tells_ahead
        self._parked = ParkedRows(len(machine.owned_mask))
        #: Whether rows that come now may have to wait: those of different inputs must not be joined. Every batch asks
        #: this and the next.
        self.may_park = False
        #: Whether the watermark stands still: rows that it would pass wait here, or at the new owners of groups.
        self.holds_watermark = False
        self._look()

    def _look(self) -> None:
        """Note what the machine and the park say, after either has changed."""
        machine, is_parked = self._machine, bool(self._parked)
        self.may_park = is_parked or machine.is_moving
        self.holds_watermark = is_parked or machine.holds_watermark

    @property
    def has_parked_rows(self) -> bool:
        """Return whether rows wait for their groups."""
        return bool(self._parked)

    @property
    def parked_bytes(self) -> int:
        """Bytes of rows that wait for their groups."""
        return self._parked.size_bytes

    @property
    def may_finish(self) -> bool:
        """Return whether the subtask may end, as far as its groups are concerned."""
        return self._machine.may_finish

    def admit(self, rows: InputRows, shown_ms: int) -> pa.RecordBatch | None:
        """The rows that can be processed now; the others are parked, in order.

        Outside a rescale upstream sends only rows of groups that are owned, so nothing is looked at.

        Args:
            rows: of one input.
            shown_ms: the watermark, which stands still here as soon as rows are parked; so it does for all rows of a
                batch, since those that are parked are processed after the others, and each group when it comes.
        """
        batch = rows.batch
        if not self.may_park or rows.input_index not in self._keyed_inputs:
            return batch
        groups = self._groups(batch)
        owned = self._machine.owned_mask[groups]
        if owned.all():
            return batch
        batch = row_watermarks.standing_still(batch, shown_ms, tells_ahead=self._tells_ahead)
        self._parked.add(InputRows(rows.input_index, batch.filter(pa.array(~owned))), groups[~owned])
        self._look()
        return batch.filter(pa.array(owned)) if owned.any() else None

    def handle(self, event: OwnerEvent) -> None:
        """Take an event of the rescale in and do what follows from it."""
        actions = self._machine.handle(event)
        self._look()
        for action in actions:
            self._carry_out(action)
        if isinstance(event, Abort):
            self._state.abort_copy(event.version)

    def _carry_out(self, action: OwnerAction) -> None:
        match action:
            case StartFlush(_, groups):
                self._state.flush_groups(groups)
            case HandOver(version, target, given):
                self._settle()
                self._reports.hand_over(version, target, given, self._state.give_groups(version, given))
            case TakeOwnership(version, taken, location):
                place = self._state.adopt_groups(taken, str(location))
                self._reports.owned(version, taken, place)
                self._unpark(taken)
            case Retired():
                # The loop ends by itself: every input has ended and may_finish is true.
                pass

    def _groups(self, batch: pa.RecordBatch) -> np.ndarray:
        hashes = batch.column(KEY_HASH_COLUMN).to_numpy()
        return key_groups(hashes, len(self._machine.owned_mask))

    def _unpark(self, groups: Iterable[int]) -> None:
        """Process the parked rows of these groups, which are owned by now; of each group in order of arrival."""
        unparked = self._parked.take(groups)
        self._look()
        for rows in unparked:
            for start in range(0, rows.batch.num_rows, _UNPARKED_ROWS_MAX):
                part = rows.batch.slice(start, _UNPARKED_ROWS_MAX)
                self._process(InputRows(rows.input_index, part))
