"""What a broadcast process knows of the row, or the timer, that it is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from weir.author.all_keys import AllKeys
from weir.author.key_context import KeyContext
from weir.errors import StateError
from weir.state.handles.block import write_back


class BroadcastContext(KeyContext):
    """Given to the methods of a :class:`weir.BroadcastProcess`; one for each subtask."""

    #: What every subtask knows, to read; set by the runtime.
    rules: Mapping[str, Any] = MappingProxyType({})
    #: Set by the runtime.
    current_key: tuple[Any, ...] | None = None
    #: While rules change: finds the keys, and what it has found.
    find_keys: Callable[[], AllKeys] | None = None
    _found: AllKeys | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of the key columns of the row that is processed, or of the timer.

        Raises:
            StateError: there is none in ``on_broadcast``, and many in ``process_batch`` and ``on_timers``.
        """
        if self.current_key is None or self._cursor.index is None:
            raise StateError(
                "context.key: there is no current key here; process and on_timer have one, process_batch has the key "
                "columns of its batch, and a row of the broadcast stream is for all keys"
            )
        return self.current_key

    def each_key(self, *states: Any) -> Iterator[tuple[Any, ...]]:
        """Make, in ``on_broadcast``, each key of the subtask the current one; yields its values of the key columns.

        ``for key in context.each_key(self.total): self.total.value = 0``. All keys, and what is read and changed of
        their states, are in memory until ``on_broadcast`` has returned. Timers can be registered for each.

        Args:
            states: values, lists or maps that the class declares: keys that have a value in one of them. None given:
                in any of them.

        Raises:
            StateError: it is not ``on_broadcast`` that calls it, or the store cannot be read.
        """
        if self.find_keys is None or self._batch is None:
            raise StateError(
                "context.each_key goes through all keys in on_broadcast; rows and timers have their own"
            )
        if self._found is None:
            self._found = self.find_keys()
        found, names = self._found, [state.name for state in states]
        unknown = [name for name in names if name not in found.names]
        if unknown:
            raise StateError(
                f"context.each_key goes by values, lists and maps; state {unknown[0]!r} is none of these"
            )
        if self._cursor.block is not found.keys:
            write_back(self._handles)
            self._cursor.block = found.keys
        wanted = set(names or found.names)
        handles = [handle for handle in self._handles if handle.name in wanted]
        try:
            for position, key in enumerate(found.tuples):
                self._cursor.index, self.current_key = position, key
                # A rule before may have changed it, and what has expired may be in the store still.
                if any(handle.is_set for handle in handles):
                    yield key
        finally:
            self._cursor.index = self.current_key = None

    # --- called by the runtime ---

    def begin_rules(self, find_keys: Callable[[], AllKeys]) -> None:
        """Rows of the broadcast stream come next."""
        self.find_keys = find_keys

    def _forget(self) -> None:
        self.find_keys = self._found = None
        super()._forget()
