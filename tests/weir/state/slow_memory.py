"""A store that wants to be asked for much at a time, as a database does."""

from collections.abc import Iterator, Sequence

from weir.state.api import Head
from weir.state.stores.memory import MemoryBackend


class SlowMemory(MemoryBackend):
    """In memory; counts how often it was asked."""

    reads_ahead = True

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked += 1
        return super().get_many(keys)

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self.asked += 1
        return super().scan(start, stop, reverse=reverse)

    def scan_heads(
        self, ranges: Sequence[tuple[bytes, bytes]], rows_max: Sequence[int], *, reverse: bool = False
    ) -> list[Head]:
        asked = self.asked + 1
        heads = super().scan_heads(ranges, rows_max, reverse=reverse)
        self.asked = asked
        return heads
