"""The life cycle of a state table, which the runtime drives; operators only read and write.

A table is one declared state of one operator in one subtask: cached entries over the stage's store. There are three
kinds: fixed-width cells in slots (:class:`weir.state.tables.cells.cell_table.CellTable`), values of any length
(:class:`weir.state.tables.values.value_table.ValueTable`, as arrays
:class:`weir.state.tables.values.packed_table.PackedTable`) and timers
(:class:`weir.state.tables.timers.timer_table.TimerTable`). Checkpoints, flushes and rescales iterate over tables and
never ask an operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

from weir.state.tables.cached_entries import CachedPart
from weir.state.tables.capture import Capture
from weir.types import StoreStats

#: What entries of a key group are sorted by; see ``weir.state.tables.timers.time_first``.
EntryOrder = Literal["key", "time"]
#: Asked between two writes of a flush: True: the rest has to wait for the next part, because rows have waited enough.
IsOver = Callable[[], bool]


def never() -> bool:
    """An ``IsOver`` of whoever has time."""
    return False


class StateTable(ABC):
    """One state, all of whose methods are called by the subtask's thread. ``groups`` are key groups."""

    #: How entries of a key group lie in the store: those of a user key together, or those of a time.
    order: ClassVar[EntryOrder] = "key"

    #: Number of the state in the store.
    state_id: int
    #: Grows whenever entries of the store are put together, or leave it although what they stand for stays; other
    #: threads read it. Who reads the store while it grows may find a row in two entries, or in none.
    rearranged: int = 0

    # --- durability ---

    @abstractmethod
    def flush(self) -> None:
        """Write all dirty entries to the store; they stay cached. The caller flushes the store.

        Raises:
            StateError: the store cannot be written; what was not written is still dirty.
        """

    @abstractmethod
    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Write dirty entries bit by bit, so that rows do not wait for all of them.

        The first call, and the first after one that returned True, notes what is dirty then.

        Args:
            share: of the noted entries that should have been written when this returns, 0 to 1.
            is_over: whether to write no more now; a little is written in any case.

        Returns:
            Whether all of them have been.
        """

    @abstractmethod
    def capture(self) -> Capture | None:
        """Note all dirty entries as they are now; another thread writes them. None: nothing is dirty.

        Called at the barrier of a checkpoint. If writing fails, the entries are dirty again.
        """

    # --- key groups come and go ---

    @abstractmethod
    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write the dirty entries of these groups; they stay cached."""

    @abstractmethod
    def release_groups(self, groups: Iterable[int]) -> None:
        """Write the dirty entries of these groups and do not touch them any more: they have a new owner."""

    @abstractmethod
    def adopt_groups(self, groups: Iterable[int]) -> None:
        """These groups are ours now; the store may have entries of them that are not known here."""

    # --- the cache goes ahead of its groups ---

    def copy_groups(self, groups: Iterable[int], count_max: int, bytes_max: int) -> CachedPart | None:
        """What is cached of these groups, for their next owner: at most so many keys and bytes; None: not supported.

        Called before a handover, after the dirty entries were written; the groups stay.
        """
        return None

    def good_copies(self, groups: Iterable[int]) -> Iterable[int]:
        """Those of these groups whose copy is good, if what changed since is added."""
        return groups

    def changes_since_copy(self, groups: Iterable[int]) -> CachedPart | None:
        """What changed since :meth:`copy_groups`; called at a handover, before :meth:`release_groups`."""
        return None

    def copy_changes(self, groups: Iterable[int]) -> CachedPart | None:
        """What changed since :meth:`copy_groups`, and from now on is part of the copy; None: not supported.

        Called before a handover, so that less is left for it, for groups whose copy is good.
        """
        return None

    def notes_at_handover(self, groups: Iterable[int]) -> CachedPart | None:
        """What the next owner would otherwise have to look for in the store; called before :meth:`release_groups`."""
        return None

    def take_copy(self, entries: CachedPart, groups: Iterable[int]) -> bool:
        """Cache what the owner of these groups has cached, before they are adopted; False: another table's.

        Later entries of a key replace earlier ones. Nothing is evicted: what does not fit is left out.
        """
        return False

    def keep_copies(self, groups: Iterable[int]) -> None:
        """What :meth:`take_copy` brought of these groups is complete; else :meth:`adopt_groups` forgets it."""

    def clear_groups(self, groups: Iterable[int]) -> None:
        """Forget what is cached of these groups, which are not owned."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """Counters and memory of the cache."""
