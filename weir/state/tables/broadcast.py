"""A dict that every subtask of a stage has whole, and how a subtask that a rescale adds comes by it.

It is in memory. The owner of key group 0 tells checkpoints of it, so that it is there once. A handover of key groups
writes it into one of them, under namespace ``all``, as JSON, ``[dict, whether rows are let go]`` (once the dict alone);
who adopts the group reads it there, and deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from weir.state import layout
from weir.state.api import StateBackend
from weir.state.tables.capture import Capture
from weir.state.tables.table import IsOver, StateTable, never
from weir.types import StoreStats

NAMESPACE = b"all"
_ABSENT: Any = object()


class BroadcastTable(StateTable):
    """All methods are called by the subtask's thread."""

    def __init__(self, backend: StateBackend, state_id: int, groups: Iterable[int]) -> None:
        """``groups``: that the subtask owns when it opens; none if a rescale adds it, which then brings the dict."""
        self.state_id = state_id
        self._backend = backend
        #: Key groups that the subtask owns.
        self.groups = set(groups)
        self._is_keeper = 0 in self.groups
        self._is_whole = bool(self.groups)
        self.items: dict[str, Any] = {}
        #: Rows are not held back any more until there are rules; once so, it stays.
        self.lets_rows_go = False
        #: Before the dict has come: keys that were changed or deleted here since, which is later.
        self._touched: set[str] = set()

    @property
    def is_keeper(self) -> bool:
        """Whether this subtask tells checkpoints of the dict."""
        return self._is_keeper

    def restore(self, items: dict[str, Any], *, lets_rows_go: bool = False) -> None:
        """Begin with what a checkpoint holds; who gets the dict in a rescale has no use for it, because it is older."""
        if self._is_whole:
            self.items, self.lets_rows_go = items, lets_rows_go

    def changed(self, before: dict[str, Any]) -> None:
        """Rows of the broadcast stream have changed the dict; ``before``: a copy from before them."""
        if not self._is_whole:
            keys = before.keys() | self.items.keys()
            self._touched |= {key for key in keys if before.get(key, _ABSENT) != self.items.get(key, _ABSENT)}

    @property
    def is_whole(self) -> bool:
        """Whether the dict has come, if a rescale has added the subtask."""
        return self._is_whole

    def release_groups(self, groups: Iterable[int]) -> None:
        """The groups of one new owner: the first one takes the dict along."""
        listed = sorted(groups)
        if not listed:
            return
        self.groups.difference_update(listed)
        if 0 in listed:
            self._is_keeper = False
        if self._is_whole:
            told = orjson.dumps([self.items, self.lets_rows_go])
            self._backend.write([(self._key(listed[0]), told)], [])

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """Take the dict that came with the groups, unless it is here; what was changed here since is later."""
        listed = sorted(groups)
        if not listed:
            return
        self.groups.update(listed)
        if 0 in listed:
            self._is_keeper = True
        keys = [self._key(group) for group in listed]
        found = [(key, value) for key, value in zip(keys, self._backend.get_many(keys), strict=True) if value]
        if not found:
            return
        if not self._is_whole:
            came = orjson.loads(found[0][1])
            if isinstance(came, list):
                came, lets_rows_go = came
                self.lets_rows_go = self.lets_rows_go or lets_rows_go
            self.items |= {key: value for key, value in came.items() if key not in self._touched}
            self._is_whole = True
            self._touched.clear()
        self._backend.write([], [key for key, _ in found])

    def entries(self) -> list[tuple[bytes, bytes]]:
        """The dict as if each key had an entry in key group 0, for questions from outside; see :func:`dict_entries`."""
        return dict_entries(self.items, self.state_id)

    def _key(self, group: int) -> bytes:
        return layout.key_prefix(group, self.state_id, NAMESPACE)

    def flush(self) -> None:
        """Nothing is dirty."""

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Nothing is dirty."""
        return True

    def capture(self) -> Capture | None:
        """Nothing is dirty: the operator's snapshot has the dict."""
        return None

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Nothing is dirty."""

    def stats(self) -> StoreStats:
        """Only the number of keys is known."""
        return StoreStats()


def dict_entries(items: Mapping[str, Any], state_id: int) -> list[tuple[bytes, bytes]]:
    """State keys in key group 0, ascending, and values as JSON: no store has them, but a question can read them so."""
    prefix = layout.key_prefix(0, state_id)
    return sorted((prefix + key.encode(), orjson.dumps(value)) for key, value in items.items())


def entries_of_dict(items: Mapping[str, Any], keys: Sequence[bytes]) -> list[bytes | None]:
    """The values that :func:`dict_entries` has for these state keys."""
    names = [key[layout.NO_NAMESPACE_HEADER_BYTES :].decode(errors="replace") for key in keys]
    return [orjson.dumps(items[name]) if name in items else None for name in names]
