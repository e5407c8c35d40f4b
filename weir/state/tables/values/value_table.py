"""Keyed values of any length over a state backend: bytes under user keys, cached, written back bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from typing_extensions import override

from weir.errors import StateError
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.tables.cached_entries import CachedPart, CachedValues
from weir.state.tables.capture import Capture
from weir.state.tables.expiry import Expiry
from weir.state.tables.stamps import value_stamps
from weir.state.tables.table import IsOver, StateTable, never
from weir.state.tables.values.value_ahead import ReadAhead
from weir.state.tables.values.value_cache import WriteBackCache
from weir.types import StoreStats

#: Of what was loaded since it was copied, and has not changed, a new owner is sent so much at the handover: rows wait.
_LOADED_BYTES_MAX = 128 << 10


class ValueTable(StateTable):
    """A user operator's view of its own state: bytes under user keys, cached, written back at flush.

    It reads and writes by whole state keys, which begin with what :meth:`key_prefix` returns.
    """

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        cache_bytes: int,
        owner_of: Callable[[bytes], bytes] | None = None,
        expiry: Expiry | None = None,
    ) -> None:
        """``owner_of``: as for :class:`WriteBackCache`, of tables whose keys are scanned below such prefixes.

        ``expiry``: of a state with a TTL; its values begin with their time, which is the business of its handle.
        """
        self.expiry = expiry
        self._owner_of = owner_of
        self._cache = WriteBackCache(backend, cache_bytes, owner_of)
        self.state_id = state_id
        #: Groups that are not ours yet, whose cached entries count when they are adopted.
        self._kept: set[int] = set()

    def key_prefix(self, group: int) -> bytes:
        """What the state keys of one key group start with."""
        return layout.key_prefix(group, self.state_id)

    def get_stored(self, keys: Sequence[bytes], *, will_write: bool = False) -> list[bytes | None]:
        """Values in the order of these state keys; None where there is none.

        ``will_write``: the caller writes all of these keys next, so that absent ones need not be noted.
        """
        return self._cache.get_many(keys, will_write=will_write)

    def write_stored(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Write pairs and delete others, by state keys."""
        self._cache.write(puts, deletes)

    def write_new(self, puts: Sequence[tuple[bytes, bytes]]) -> None:
        """Write pairs, by state keys, of owners (what ``owner_of`` returns) that have nothing yet."""
        self._cache.write_new(puts)

    def values_of_owners(self, owners: Sequence[bytes], first: bytes) -> list[list[bytes]]:
        """All values of each of these owners, in the order of their keys.

        ``first``: what the first key that an owner may have ends with.
        """
        return self._cache.values_of_owners(owners, first)

    def scan_stored(
        self, start: bytes, stop: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """State keys and values of ``start <= key < stop``, as they are now."""
        return self._cache.scan(start, stop, reverse=reverse)

    @property
    def reads_owners(self) -> bool:
        """Whether the store is so slow that it is worth saying whose entries are needed soon."""
        return self._cache.reads_owners

    def is_known(self, owner: bytes) -> bool:
        """Whether something of an owner (what ``owner_of`` returns) was read ahead, and is still here."""
        return self._cache.is_known(owner)

    def reading_ahead(self, starts: Sequence[bytes]) -> AbstractContextManager[ReadAhead]:
        """Lock the table while what owners have is read for it; see ``read_together``."""
        return self._cache.reading_ahead(starts)

    def shrink(self) -> None:
        """Evict down to the bound of the cache."""
        self._cache.shrink()

    def unwritten_entries(
        self, groups: Iterable[int], count_max: int
    ) -> list[tuple[bytes, bytes | None]] | None:
        """State keys and values (None: deleted) of key groups that the store may not have yet, in no order.

        None: there are more than ``count_max``. For questions from outside. What was cleared as a whole is written.
        """
        self._cache.write_clears()
        return self._cache.unwritten_below([self.key_prefix(group) for group in groups], count_max)

    def flush(self) -> None:
        """Write all changes to the store; they stay cached."""
        self._cache.write_dirty()

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Write changes bit by bit; True: all that were there at the first call are written."""
        return self._cache.flush_part(share, is_over)

    def capture(self) -> Capture | None:
        """Note all changes, for another thread to write; None: there are none."""
        return self._cache.capture()

    def clear_owner(self, owner: bytes) -> None:
        """Delete all entries of an owner (what ``owner_of`` returns); as quick for a million as for one."""
        self._cache.clear_owner(owner)

    def clear_owners(self, owners: Sequence[bytes]) -> None:
        """:meth:`clear_owner` of each."""
        self._cache.clear_owners(owners)

    def clear_range(self, start: bytes, stop: bytes, keys: Collection[bytes]) -> None:
        """Delete a range of the keys of an owner.

        ``keys``: all of the range that have a value, and maybe others of it; each once.
        """
        self._cache.clear_range(start, stop, keys)

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write the changes of these key groups; they stay cached."""
        self._cache.flush_prefixes(_prefixes(groups))

    def release_groups(self, groups: Iterable[int]) -> None:
        """Write the changes of these key groups, then forget them: they have a new owner."""
        listed = list(groups)
        prefixes = _prefixes(listed)
        self._cache.flush_prefixes(prefixes)
        if self.expiry is not None:
            self.expiry.release_groups(listed)
        self._cache.forget_prefixes(prefixes)

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """Read these key groups from the store, unless a complete copy of what their owner had cached came before."""
        listed = set(groups)
        self._cache.forget_prefixes(_prefixes(listed - self._kept))
        self._kept -= listed
        if self.expiry is not None:
            self.expiry.adopt_groups(listed)

    # --- copies for a new owner ---

    def copy_groups(self, groups: Iterable[int], count_max: int, bytes_max: int) -> CachedValues:
        """See ``StateTable``; 0.3 µs a key."""
        return self._entries(self._cache.copy_prefixes(_prefixes(groups), count_max, bytes_max))

    def good_copies(self, groups: Iterable[int]) -> list[int]:
        """See ``StateTable``: not those of which something was evicted that had changed."""
        return [group for group in groups if self._cache.has_good_copy(group.to_bytes(2, "big"))]

    def changes_since_copy(self, groups: Iterable[int]) -> CachedValues:
        """See ``StateTable``: what changed since, and a little of what was loaded."""
        return self._entries(self._cache.changed_since_copy(_prefixes(groups), _LOADED_BYTES_MAX))

    @override
    def copy_changes(self, groups: Iterable[int]) -> CachedValues:
        prefixes = _prefixes(groups)
        entries = self._entries(self._cache.changed_since_copy(prefixes))
        self._cache.begin_changes(prefixes)
        return entries

    def _entries(self, found: Sequence[tuple[bytes, bytes | None]]) -> CachedValues:
        return CachedValues(self.state_id, [key for key, _ in found], [value for _, value in found])

    def take_copy(self, entries: CachedPart, groups: Iterable[int]) -> bool:
        """See ``StateTable``.

        Raises:
            StateError: the entries are cells.
        """
        if entries.state_id != self.state_id:
            return False
        if not isinstance(entries, CachedValues):
            raise StateError("cached state came as cells, not as values of any length")
        wanted = frozenset(_prefixes(groups))
        pairs = zip(entries.keys, entries.values, strict=True)
        self._cache.take_copy(pair for pair in pairs if pair[0][:2] in wanted)
        return True

    @override
    def keep_copies(self, groups: Iterable[int]) -> None:
        self._kept.update(groups)

    @override
    def clear_groups(self, groups: Iterable[int]) -> None:
        listed = set(groups)
        self._kept -= listed
        self._cache.forget_prefixes(_prefixes(listed))

    # --- expired entries go ---

    def stamps_of(self, values: Sequence[bytes]) -> np.ndarray:
        """See ``weir.state.tables.sweep.SweptTable``."""
        return value_stamps(values)

    def drop_written(self, keys: Sequence[bytes], *, has_more: bool) -> list[bytes]:
        """See ``weir.state.tables.sweep.SweptTable``.

        What says how many elements a key has goes with the last of them.
        """
        wanted = list(keys)
        if has_more and self._owner_of is not None and wanted:
            owner = self._owner_of(wanted[-1])
            wanted = [key for key in wanted if len(key) > len(owner) + 1 or not key.startswith(owner)]
        return self._cache.drop_written(wanted)

    def stats(self) -> StoreStats:
        """Counters and memory of the cache."""
        return self._cache.stats()


def _prefixes(groups: Iterable[int]) -> list[bytes]:
    return [group.to_bytes(2, "big") for group in groups]
