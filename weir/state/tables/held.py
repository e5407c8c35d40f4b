"""Values that stand for what an operator holds in memory: written when a checkpoint or a move needs them."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from typing_extensions import override

from weir.errors import HandshakeError, StateError
from weir.state.api import StateBackend, prefix_end
from weir.state.tables.cached_entries import CachedPart, CachedValues
from weir.state.tables.capture import Capture
from weir.state.tables.values.value_table import ValueTable

#: Of a state key, its key group.
_GROUP_BYTES = 2
#: Of a list of values: bytes of a key, and of its value; the key follows.
_ENTRY = struct.Struct("<II")


class Holder(Protocol):
    """Whoever holds what the values of a :class:`HeldTable` stand for."""

    def settle(self) -> None:
        """Write what the table does not have yet."""

    def written(self, groups: Collection[int]) -> Mapping[bytes, int]:
        """State keys of all values that the table has of these key groups, and their bytes.

        A value only ever gets longer, and no other one gets the key of one that is deleted.
        """

    def leave(self, groups: frozenset[int]) -> None:
        """Let go of these key groups, now or later: the table has all of them, and they have a new owner."""


class HeldTable(ValueTable):
    """A table whose owner keeps all of it in memory in a form of its own, and is asked before anybody looks at it.

    What is let go of before anybody looked was never written. A new owner of key groups is sent all of their values
    ahead, and at the handover what is new, with a list of what there is: to look for it would be a scan for each group,
    at a peer at first, for which rows would wait.
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
        #: Who is asked, and key groups whose values it has not taken: those that have to be looked for, and those that
        #: came with their values.
        self._holder: Holder | None = None
        self._came = set(groups)
        self._given: dict[int, list[tuple[bytes, bytes]]] = {}
        #: Of groups that will leave: what their new owner was sent, with the bytes of each value.
        self._sent: dict[int, dict[bytes, int]] = {}
        #: Of groups that are not ours yet: what was sent, and lists of what there is.
        self._told: dict[int, dict[bytes, bytes]] = {}
        self._lists: dict[int, dict[bytes, int]] = {}

    def held_by(self, holder: Holder) -> None:
        """Ask this one from now on."""
        self._holder = holder

    @property
    def has_new_groups(self) -> bool:
        """Whether key groups have come whose values the holder has not taken."""
        return bool(self._came or self._given)

    def take_new(self) -> list[tuple[bytes, bytes]]:
        """State keys and values of the key groups that have come since the last call, ascending within each.

        Raises:
            StateError: the store cannot be read.
        """
        found = [pair for _, pairs in sorted(self._given.items()) for pair in pairs]
        self._given.clear()
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

    def unwritten_entries(
        self, groups: Iterable[int], count_max: int
    ) -> list[tuple[bytes, bytes | None]] | None:
        """See :class:`ValueTable`; what is held in memory only is among them."""
        self._settle()
        return super().unwritten_entries(groups, count_max)

    @override
    def flush(self) -> None:
        self._settle()
        super().flush()

    @override
    def capture(self) -> Capture | None:
        self._settle()
        return super().capture()

    @override
    def flush_groups(self, groups: Iterable[int]) -> None:
        self._settle()
        super().flush_groups(groups)

    @override
    def release_groups(self, groups: Iterable[int]) -> None:
        listed = frozenset(groups)
        self._settle()
        super().release_groups(listed)
        self._came -= listed
        for group in listed:
            self._given.pop(group, None)
            self._sent.pop(group, None)
        if self._holder is not None:
            self._holder.leave(listed)

    @override
    def adopt_groups(self, groups: Iterable[int]) -> None:
        listed = frozenset(groups)
        for group in listed:
            told, there_are = self._told.get(group, {}), self._lists.get(group)
            if (
                group in self._kept
                and there_are is not None
                and all(len(told.get(key, b"")) == size for key, size in there_are.items())
            ):
                self._given[group] = [(key, told[key]) for key in sorted(there_are)]
            else:
                self._came.add(group)
        super().adopt_groups(listed)
        self._forget_told(listed)

    # --- values go ahead of their groups ---

    def copy_groups(self, groups: Iterable[int], count_max: int, bytes_max: int) -> CachedValues:
        """See :class:`ValueTable`; what is more than so many bytes follows with what changes."""
        listed = frozenset(groups)
        self._sent.update((group, {}) for group in listed)
        return self._unsent(listed, bytes_max)

    @override
    def copy_changes(self, groups: Iterable[int]) -> CachedValues:
        return self._unsent(frozenset(groups))

    def changes_since_copy(self, groups: Iterable[int]) -> CachedValues:
        """See :class:`ValueTable`: nothing, as :meth:`notes_at_handover` has what is new."""
        return CachedValues(self.state_id, (), ())

    def notes_at_handover(self, groups: Iterable[int]) -> CachedValues:
        """See :class:`StateTable`: what the new owner was not sent, and of each group a list of what there is."""
        listed = frozenset(groups)
        rest = self._unsent(listed)
        known = self._known(listed)
        lists = {group: bytearray() for group in known}
        for key, size_bytes in self._written(known).items():
            lists[_group_of(key)] += _ENTRY.pack(len(key), size_bytes) + key
        keys = [group.to_bytes(_GROUP_BYTES, "big") for group in lists]
        return CachedValues(
            self.state_id, [*rest.keys, *keys], [*rest.values, *(bytes(each) for each in lists.values())]
        )

    def _known(self, groups: frozenset[int]) -> list[int]:
        """Those of which the new owner is sent values: the holder has all of them."""
        return sorted((groups & self._sent.keys()) - self._came - self._given.keys())

    def _written(self, groups: Collection[int]) -> Mapping[bytes, int]:
        return {} if self._holder is None else self._holder.written(groups)

    def _unsent(self, groups: frozenset[int], bytes_max: int | None = None) -> CachedValues:
        """Values of groups that their new owner was not sent as they are now, of about so many bytes at most."""
        self._settle()
        chosen: dict[bytes, int] = {}
        left_bytes = bytes_max
        for key, size_bytes in self._written(self._known(groups)).items():
            if left_bytes is not None and left_bytes <= 0:
                break
            if self._sent[_group_of(key)].get(key) != size_bytes:
                chosen[key] = size_bytes
                left_bytes = None if left_bytes is None else left_bytes - size_bytes
        values = self.get_stored(list(chosen))
        for key, size_bytes in chosen.items():
            self._sent[_group_of(key)][key] = size_bytes
        return CachedValues(self.state_id, list(chosen), values)

    def take_copy(self, entries: CachedPart, groups: Iterable[int]) -> bool:
        """See :class:`ValueTable`.

        Raises:
            StateError: the entries are cells.
            HandshakeError: a list of what there is cannot be read.
        """
        if entries.state_id != self.state_id:
            return False
        if not isinstance(entries, CachedValues):
            raise StateError("cached state came as cells, not as values of any length")
        wanted = frozenset(groups)
        for key, value in zip(entries.keys, entries.values, strict=True):
            group = _group_of(key)
            if group not in wanted or value is None:
                continue
            if len(key) == _GROUP_BYTES:
                self._lists[group] = _read_list(value)
            else:
                self._told.setdefault(group, {})[key] = value
        return True

    @override
    def clear_groups(self, groups: Iterable[int]) -> None:
        listed = frozenset(groups)
        super().clear_groups(listed)
        self._forget_told(listed)

    def _forget_told(self, groups: frozenset[int]) -> None:
        for group in groups:
            self._told.pop(group, None)
            self._lists.pop(group, None)


def _group_of(key: bytes) -> int:
    return int.from_bytes(key[:_GROUP_BYTES], "big")


def _read_list(data: bytes) -> dict[bytes, int]:
    found = {}
    at = 0
    while at < len(data):
        if len(data) - at < _ENTRY.size:
            raise HandshakeError("a list of values of a key group is cut off")
        key_bytes, size_bytes = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size + key_bytes
        found[data[at - key_bytes : at]] = size_bytes
    return found
