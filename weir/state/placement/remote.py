"""What a subtask needs of a store on another task manager. ``task_manager.state.state_client`` is one over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from weir.state.packed import PackedKeys

#: Of the keys that were read: ``present``, bool, shape (keys,), and the rows of those that are, uint8, shape (present,
#: value_bytes).
PackedReply = tuple[np.ndarray, np.ndarray]


class RemoteStateClient(Protocol):
    """The access of an owner to a peer's store; every call carries the owner epochs of the groups that it touches.

    Methods may be called from any thread, block for a round trip at least, and are not retried.

    All of them raise:
        FencedError: a newer owner of one of the groups exists, or the caller does not own it; stop writing.
        ConnectionLostError: the peer does not answer; the message names its address.
        StateError: anything else, such as a store that is full.
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``, in one round trip unless they are more than half a megabyte."""

    def start_get(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """Send the request now; the function that is returned waits for the values. Raises nothing itself."""

    def start_put_and_get(
        self, puts: tuple[PackedKeys, np.ndarray] | None, keys: PackedKeys | None, value_bytes: int
    ) -> Callable[[], PackedReply]:
        """Send writes and then a read in one request now; the function that is returned waits for the values.

        Raises nothing itself. All of it must be less than half a megabyte, unless it is one entry.

        Args:
            puts: keys, and values as uint8, shape (keys, value_bytes).
            keys: to read when all was written.
            value_bytes: length of every value.
        """

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Apply puts, then deletes; atomic if they are less than half a megabyte."""

    def load(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Add entries of one key group, in ascending key order; of their range the store has nothing. Not atomic."""

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete a range inside one key group."""

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        prefixes: Sequence[bytes],
        reverse: bool = False,
        bytes_max: int = 0,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range in key order (or the reverse), as they are when this returns.

        Args:
            start: first key.
            stop: first key after the range; None: no end.
            prefixes: groups and state ids (4 bytes each): keys of others are left out.
            reverse: from the end to the start.
            bytes_max: end after about this many bytes of keys and values; 0: no limit.
        """

    def close(self) -> None:
        """The caller needs this access no longer; safe to call twice."""


#: Makes the client of an address; the mapping holds the caller's owner epochs and changes with them.
Connect = Callable[[str, Mapping[int, int]], RemoteStateClient]
