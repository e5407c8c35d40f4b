"""The keyed state of one subtask's operators, by key group: what a rescale flushes, gives away and takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from task_manager.job_stores import Adoption
from task_manager.ownership.group_ownership import GivenGroups
from weir.protocol.rescale.cache_copy import (
    CacheCopyMachine,
    CopyAborted,
    CopyAction,
    CopyArrived,
    CopyEvent,
    CopyResumed,
    CopyTaken,
    CopyWanted,
    Enter,
    Forget,
    GroupsCome,
    GroupsLeave,
    Keep,
    SendRest,
)
from weir.state.images.image_client import is_image
from weir.state.placement.placed_store import PlacedStore
from weir.state.tables.cached_entries import CachedChanges, CachedPart
from weir.state.tables.table import StateTable

#: Cached keys of a table that are copied to a new owner at a time, at most: of some of the groups.
CACHED_KEYS_MAX = 200_000
#: Those that are copied at the handover only, at most: rows of these groups wait for it.
CACHED_KEYS_LATE_MAX = 300_000
#: The same in bytes of keys and values.
CACHED_BYTES_LATE_MAX = 2 << 20


@dataclass(frozen=True)
class RelinkedGroup:
    """A key group whose state is in images of a checkpoint, with newer entries in the own store."""

    #: Owner epoch with which it comes.
    epoch: int
    #: As ``PlacedStore`` names the images.
    location: str
    #: Keys that are in the images although they were deleted before the checkpoint.
    tombstones: Sequence[bytes]
    #: The store that has all of the group, too, until it is deleted there.
    copy_at: str
    #: Keys that were deleted since.
    deleted: list[bytes] = field(default_factory=list)


class SubtaskGroupState:
    """Implements ``group_ownership.GroupState``; called by the subtask's thread."""

    def __init__(
        self,
        backend: PlacedStore,
        state_ids: Sequence[int],
        owned: Mapping[int, int],
        on_adopt: Callable[[SubtaskGroupState], None],
        adoptions: Sequence[Adoption] = (),
    ) -> None:
        """``owned`` are the groups (with epochs) at the start; ``on_adopt`` is called when others came.

        ``adoptions`` says of some of them where their state is; that of the others is in the own store.
        """
        #: What the tables read and write.
        self.backend = backend
        #: Numbers of the states in the store.
        self.state_ids = tuple(state_ids)
        self._tables: Iterable[StateTable] = ()
        self._on_adopt = on_adopt
        self._copies = CacheCopyMachine(owned)
        self._is_restoring = bool(adoptions)
        #: Groups that are on their way here, to be relinked.
        self._relinked: dict[int, RelinkedGroup] = {}
        elsewhere = {group for adoption in adoptions for group in adoption.groups}
        backend.ownership.adopt({group: epoch for group, epoch in owned.items() if group not in elsewhere})
        for adoption in adoptions:
            adoption.carry_out(backend, owned)

    def bind(self, tables: Iterable[StateTable]) -> None:
        """Set the subtask's tables, which its operators open later; called once, before its thread starts."""
        self._tables = tables
        # Groups of an image that the job is restored from.
        self._on_adopt(self)

    def restoring_groups(self) -> int:
        """Groups whose state still comes from a checkpoint; called by the heartbeat."""
        if self._is_restoring:
            left = sum(is_image(migrating.address) for migrating in self.backend.pull.migrating())
            self._is_restoring = left > 0
            return left
        return 0

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write dirty entries of these groups; they stay."""
        listed = list(groups)
        for table in self._tables:
            table.flush_groups(listed)

    def give_groups(self, version: int, groups: Iterable[int]) -> GivenGroups:
        """Write dirty entries of these groups, and forget the groups."""
        listed = list(groups)
        cached = self._changes_since_copy(version, listed)
        for table in self._tables:
            table.release_groups(listed)
        changed = self.backend.ownership.changed()
        return GivenGroups(self.backend.ownership.release(listed), cached, changed)

    def will_relink(self, groups: Mapping[int, RelinkedGroup]) -> None:
        """The next :meth:`adopt_groups` of these groups takes their state from images; called right before it."""
        self._relinked.update(groups)

    # --- the cache goes ahead of its groups: what may be used of it is ``weir.protocol.rescale.cache_copy``'s to say
    # ---

    def want_copy(self, version: int, groups: Iterable[int]) -> None:
        """What is cached of these groups is to go to their new owners; called before the first copy."""
        self._handle(CopyWanted(version, tuple(groups)))

    def copy_groups(self, version: int, groups: Iterable[int], bytes_max: int) -> list[CachedPart]:
        """Write dirty entries of groups that will be given away, and give what is cached of them; they stay.

        At most so many bytes of each table, those used last. Commands that come late find groups that no copy of this
        rescale is wanted of.
        """
        listed = self._copies.wanted(version, groups)
        self.flush_groups(listed)
        copies = [table.copy_groups(listed, CACHED_KEYS_MAX, bytes_max) for table in self._tables]
        return [entries for entries in copies if entries]

    def copy_changes(self, version: int, groups: Iterable[int]) -> tuple[Sequence[int], list[CachedPart]]:
        """The same of what has changed since the new owner entered a copy.

        Returns the groups that this is of, too: until :meth:`copy_taken` is called with them, their copies count for
        nothing.
        """
        good = self._good_copies(version, groups)
        self.flush_groups(good)
        self._handle(CopyResumed(version, good))
        changes = [table.copy_changes(good) for table in self._tables]
        return good, [entries for entries in changes if entries]

    def copy_taken(self, version: int, groups: Iterable[int]) -> None:
        """The new owner has entered what was copied of these groups."""
        self._handle(CopyTaken(version, tuple(groups)))

    def abort_copy(self, version: int) -> None:
        """The rescale was taken back."""
        self._handle(CopyAborted(version))

    def take_copy(self, arrived: CopyArrived, entries: CachedPart | None) -> None:
        """Cache what the owner of groups has cached, before they are adopted; None: a word on the groups only."""
        self._handle(arrived, entries)

    def _changes_since_copy(self, version: int, groups: Sequence[int]) -> CachedChanges:
        """What the new owner of these groups is to have of the cache; called before they are released."""
        good = frozenset(self._good_copies(version, groups))
        entries: list[CachedPart | None] = []
        changed: Sequence[int] = ()
        anew: Sequence[int] = ()
        for action in self._handle(GroupsLeave(version, tuple(groups), good)):
            if isinstance(action, SendRest):
                changed, anew = action.changed, action.anew
                entries += [table.changes_since_copy(changed) for table in self._tables]
                if anew:
                    entries += [
                        table.copy_groups(anew, CACHED_KEYS_LATE_MAX, CACHED_BYTES_LATE_MAX)
                        for table in self._tables
                    ]
                entries += [table.notes_at_handover([*changed, *anew]) for table in self._tables]
        return CachedChanges([part for part in entries if part], sorted({*changed, *anew}), anew)

    def _good_copies(self, version: int, groups: Iterable[int]) -> tuple[int, ...]:
        """Return those of these groups of which the new owner has a copy that lacks only what the tables know of."""
        good = set(self._copies.taken(version, groups))
        for table in self._tables:
            good.intersection_update(table.good_copies(good))
        return tuple(sorted(good))

    def _handle(self, event: CopyEvent, entries: CachedPart | None = None) -> list[CopyAction]:
        actions = self._copies.handle(event)
        for action in actions:
            for table in self._tables:
                match action:
                    case Forget(groups):
                        table.clear_groups(groups)
                    case Enter(groups) if entries is not None and table.take_copy(entries, groups):
                        break
                    case Keep(groups):
                        table.keep_copies(groups)
        return actions

    def adopt_groups(self, groups: Mapping[int, int], location: str) -> str:
        """Own these groups (with owner epochs) from now on; their state is in the store at ``location``.

        Gives where it is in truth: here, if the stage keeps no state.
        """
        place = location if self.state_ids else self.backend.ownership.address
        relinked = self._take_relinked(groups)
        rest = {group: epoch for group, epoch in groups.items() if group not in relinked}
        if rest:
            self.backend.ownership.adopt(rest, place)
        self._adopt_relinked(relinked)
        self._handle(GroupsCome(groups))
        for table in self._tables:
            table.adopt_groups(groups)
        self._on_adopt(self)
        return place

    def _take_relinked(self, groups: Mapping[int, int]) -> dict[int, RelinkedGroup]:
        """Return those of the groups that are relinked; what was meant for another epoch of a group is forgotten."""
        found = {group: self._relinked.pop(group, None) for group in groups}
        if not self.state_ids:
            return {}
        return {
            group: relinked
            for group, relinked in found.items()
            if relinked is not None and relinked.epoch == groups[group]
        }

    def _adopt_relinked(self, groups: Mapping[int, RelinkedGroup]) -> None:
        ownership = self.backend.ownership
        for location, copy_at in sorted({(each.location, each.copy_at) for each in groups.values()}):
            alike = {
                group: each
                for group, each in groups.items()
                if (each.location, each.copy_at) == (location, copy_at)
            }
            ownership.adopt(
                {group: each.epoch for group, each in alike.items()},
                location,
                migrate=True,
                tombstones={
                    group: ownership.absent({*each.tombstones, *each.deleted})
                    for group, each in alike.items()
                },
                keeps_own=True,
                copy_at=copy_at,
            )
