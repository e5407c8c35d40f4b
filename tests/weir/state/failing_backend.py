"""A store whose disk is full for a while. For tests of this directory."""

from __future__ import annotations

from collections.abc import Sequence

from weir.errors import StateError
from weir.state.stores.memory import MemoryBackend


class FailingBackend(MemoryBackend):
    """A full disk, while ``full`` is set."""

    full = False

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Refused while the disk is full."""
        if self.full:
            raise StateError("no space is left")
        super().write(puts, deletes)
