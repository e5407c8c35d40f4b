"""What a broadcast process knows of the row, or the timer, that it is called with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from weir.errors import StateError
from weir.operators.keyed.key_context import KeyContext


class BroadcastContext(KeyContext):
    """Given to the methods of a :class:`weir.BroadcastProcess`; one for each subtask."""

    #: What every subtask knows, to read; set by the runtime.
    rules: Mapping[str, Any] = MappingProxyType({})
    #: Set by the runtime.
    current_key: tuple[Any, ...] | None = None

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
