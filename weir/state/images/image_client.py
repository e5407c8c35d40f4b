"""Reading state that is in images of a checkpoint, the way a peer's store is read: from files on this machine.

The address of such a state is ``image:<id>``, or ``image:<id>+<id>...``: what is in an image counts before what is
in those behind it.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from operator import itemgetter

import numpy as np

from weir.errors import StateError
from weir.state.api import StateReader, prefix_end
from weir.state.packed import PackedKeys, pack_values
from weir.state.placement.remote import PackedReply

_SCHEME = "image:"
_SEPARATOR = "+"
#: Parts of a range whose beginnings are read together, where reading takes long.
_SCANS_TOGETHER = 64

#: Opens an image for the length of a call.
UseImage = Callable[[str], AbstractContextManager[StateReader]]


def image_address(*image_ids: str) -> str:
    """The address of state in images, the one that counts most first; empty ids are left out."""
    return _SCHEME + _SEPARATOR.join(image_id for image_id in image_ids if image_id)


def is_image(address: str) -> bool:
    """Return whether an address is that of images."""
    return address.startswith(_SCHEME)


def image_ids_of(address: str) -> tuple[str, ...]:
    """The images of such an address."""
    return tuple(address.removeprefix(_SCHEME).split(_SEPARATOR))


def joined_ids(address: str) -> str:
    """The ids of such an address as one text, which :func:`image_address` takes like an id."""
    return address.removeprefix(_SCHEME)


class ImageClient:
    """Implements ``RemoteStateClient`` over images. They never change: writes and range deletes are refused.

    Methods may be called from any thread. All of them raise StateError if an image is damaged or cannot be fetched.
    """

    def __init__(self, address: str, use: UseImage, on_close: Callable[[], None]) -> None:
        """Made by ``Images.connect``; ``on_close`` is called once, when nobody needs the client any more."""
        self.address = address
        self._ids = image_ids_of(address)
        self._use = use
        self._on_close: Callable[[], None] | None = on_close

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``, each from the first image that has it."""
        values: list[bytes | None] = [None] * len(keys)
        missing = list(range(len(keys)))
        for image_id in self._ids:
            with self._use(image_id) as image:
                found = image.get_many([keys[index] for index in missing])
            for index, value in zip(missing, found, strict=True):
                values[index] = value
            missing = [index for index in missing if values[index] is None]
            if not missing:
                break
        return values

    def start_get(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """Nothing is under way meanwhile: the function that is returned reads."""
        return lambda: self.get_many(keys)

    def start_put_and_get(
        self, puts: tuple[PackedKeys, np.ndarray] | None, keys: PackedKeys | None, value_bytes: int
    ) -> Callable[[], PackedReply]:
        """Begin a read, as :meth:`start_get`; writes are refused, when the function that is returned is called."""

        def read() -> PackedReply:
            if puts is not None:
                self.write()
            return pack_values([] if keys is None else self.get_many(keys.to_list()), value_bytes)

        return read

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        """Refused.

        Raises:
            StateError: always.
        """
        raise StateError(f"{self.address} belongs to a checkpoint and cannot be written")

    def load(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Refused.

        Raises:
            StateError: always.
        """
        raise StateError(f"{self.address} belongs to a checkpoint and cannot be written")

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Refused.

        Raises:
            StateError: always.
        """
        raise StateError(f"{self.address} belongs to a checkpoint and cannot be written")

    def will_scan(self, ranges: Sequence[tuple[bytes, bytes | None]], bytes_max: int) -> None:
        """Prepare for scans of these ranges; see ``StateReader``."""
        for image_id in self._ids:
            with self._use(image_id) as image:
                image.will_scan(ranges, bytes_max)

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        *,
        prefixes: Sequence[bytes],
        reverse: bool = False,
        bytes_max: int = 0,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries of a range in key order (or the reverse); see ``RemoteStateClient``.

        The images stay open for it, also when no group needs them any more: a question begins many scans, and reads
        them when the groups have arrived. Each would open an image in an object store anew.
        """
        held = _Held(self._use, self._ids)
        return self._entries(held, _ranges(start, stop, prefixes), reverse, bytes_max)

    def _entries(
        self, held: _Held, ranges: list[tuple[bytes, bytes | None]], reverse: bool, bytes_max: int
    ) -> Iterator[tuple[bytes, bytes]]:
        size_bytes = 0
        try:
            for number, (first, last) in enumerate(reversed(ranges) if reverse else ranges):
                if not reverse and number % _SCANS_TOGETHER == 0:
                    together = ranges[number : number + _SCANS_TOGETHER]
                    for image in held.images:
                        image.will_scan(together, bytes_max // len(together))
                streams = [image.scan(first, last, reverse=reverse) for image in held.images]
                for key, value in first_of_each(streams, reverse):
                    yield key, value
                    size_bytes += len(key) + len(value)
                    if bytes_max and size_bytes >= bytes_max:
                        return
        finally:
            held.let_go()

    def close(self) -> None:
        """No group of the caller needs the images any more; safe to call twice."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class _Held:
    """Images that are in use until :meth:`let_go`, or until a scan that nobody has begun to read is dropped."""

    def __init__(self, use: UseImage, image_ids: Iterable[str]) -> None:
        with ExitStack() as stack:
            #: What counts first comes first.
            self.images = [stack.enter_context(use(image_id)) for image_id in image_ids]
            self.let_go = weakref.finalize(self, stack.pop_all().close)
        self.let_go.atexit = False


def _ranges(start: bytes, stop: bytes | None, prefixes: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
    """Return the parts of a range with these prefixes, ascending; neighbours are one. Images have much beside them."""
    found: list[tuple[bytes, bytes | None]] = []
    for prefix in sorted(set(prefixes)):
        end = prefix_end(prefix)
        if stop is not None and (end is None or stop < end):
            end = stop
        first = max(start, prefix)
        if end is not None and end <= first:
            continue
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], end
        else:
            found.append((first, end))
    return found


def first_of_each(
    streams: Sequence[Iterator[tuple[bytes, bytes]]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Streams in the same order as one; of equal keys the entry of the first stream that has it."""
    if len(streams) == 1:
        yield from streams[0]
        return
    last: bytes | None = None
    # The merge is stable: of equal keys the one of the earlier stream comes first.
    for key, value in heapq.merge(*streams, key=itemgetter(0), reverse=reverse):
        if key != last:
            last = key
            yield key, value
