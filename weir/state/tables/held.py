"""Values that stand for what an operator holds in memory: written when a checkpoint or a move needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from weir.errors import StateError
from weir.state.api import StateBackend, prefix_end
from weir.state.tables.cached_entries import CachedValues
from weir.state.tables.capture import Capture
from weir.state.tables.values import ValueTable


class Holder(Protocol):
    """Whoever holds what the values of a :class:`HeldTable` stand for."""

    def settle(self) -> None:
        """Write what the table does not have yet."""
        ...

    def leave(self, groups: frozenset[int]) -> None:
        """Let go of these key groups, now or later: the table has all of them, and they have a new owner."""
        ...


class HeldTable(ValueTable):
    """A table whose owner keeps all of it in memory in a form of its own, and is asked before anybody looks at it.

    What is let go of before anybody looked was never written.
    """

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        cache_bytes: int,
        groups: Iterable[int],
        held_bytes_max: int,
    ) -> None:
        """``groups`` are owned from the beginning; ``held_bytes_max``: what the holder may have in memory."""
        super().__init__(backend, state_id, cache_bytes)
        self.held_bytes_max = held_bytes_max
        #: Who is asked, and key groups whose values it has not taken.
        self._holder: Holder | None = None
        self._came = set(groups)

    def held_by(self, holder: Holder) -> None:
        """Ask this one from now on."""
        self._holder = holder

    @property
    def has_new_groups(self) -> bool:
        """Whether key groups have come whose values the holder has not taken."""
        return bool(self._came)

    def take_new(self) -> list[tuple[bytes, bytes]]:
        """State keys and values of the key groups that have come since the last call, ascending within each.

        Raises:
            StateError: the store cannot be read.
        """
        found: list[tuple[bytes, bytes]] = []
        for group in sorted(self._came):
            prefix = self.key_prefix(group)
            stop = prefix_end(prefix)
            if stop is None:
                raise StateError(f"no state key is above those of key group {group}")
            found += self.scan_stored(prefix, stop)
        self._came.clear()
        return found

    def _settle(self) -> None:
        if self._holder is not None:
            self._holder.settle()

    def flush(self) -> None:
        """See :class:`ValueTable`."""
        self._settle()
        super().flush()

    def capture(self) -> Capture | None:
        """See :class:`ValueTable`."""
        self._settle()
        return super().capture()

    def flush_groups(self, groups: Iterable[int]) -> None:
        """See :class:`ValueTable`."""
        self._settle()
        super().flush_groups(groups)

    def release_groups(self, groups: Iterable[int]) -> None:
        """See :class:`ValueTable`."""
        listed = frozenset(groups)
        self._settle()
        super().release_groups(listed)
        self._came -= listed
        if self._holder is not None:
            self._holder.leave(listed)

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """See :class:`ValueTable`."""
        listed = frozenset(groups)
        super().adopt_groups(listed)
        self._came |= listed

    def changes_since_copy(self, groups: Iterable[int]) -> CachedValues:
        """See :class:`ValueTable`."""
        self._settle()
        return super().changes_since_copy(groups)
