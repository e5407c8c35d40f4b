"""Many entries are written to a store in pieces, because rocksdict keeps the GIL while it writes one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from weir.state.api import StateBackend

#: Of one piece: 0.2 ms.
PIECE_ENTRIES_MAX = 500
PIECE_BYTES_MAX = 128 << 10
#: While the store cannot keep up: whoever holds a lock and writes nevertheless lets others wait for it.
_STALLED_PAUSE_S = 0.005
_STALLED_PAUSES_MAX = 1_000


def pieces_of(
    store: StateBackend, entries: Sequence[tuple[bytes, bytes]]
) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Parts of the entries, to be written to the store one after the other; each comes when the store can take it.

    The caller holds no lock between two of them: whoever waits for it, or for the GIL, goes first.
    """
    start = 0
    while start < len(entries):
        stop, size_bytes = start, 0
        while stop < len(entries) and stop - start < PIECE_ENTRIES_MAX and size_bytes < PIECE_BYTES_MAX:
            key, value = entries[stop]
            size_bytes += len(key) + len(value)
            stop += 1
        _wait_while_stalled(store)
        yield entries[start:stop]
        start = stop
        time.sleep(0)


def _wait_while_stalled(store: StateBackend) -> None:
    for _ in range(_STALLED_PAUSES_MAX):
        if not store.is_stalled():
            return
        time.sleep(_STALLED_PAUSE_S)
