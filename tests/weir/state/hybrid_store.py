"""A store of several places for tests of what lies above it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tests.weir.state.state_peer import serving
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend


@contextmanager
def hybrid_store(state_ids: Iterable[int], groups: int) -> Iterator[PlacedStore]:
    """Of these groups every third is here, at a peer that is reached over a socket, and on its way from there."""
    here, there = MemoryBackend(), MemoryBackend()
    with serving(there) as peer:
        hybrid = PlacedStore(here, "here:1", state_ids, peer.connect)
        for group in range(groups):
            place = "LRM"[group % 3]
            hybrid.ownership.adopt({group: 1}, None if place == "L" else peer.address, migrate=place == "M")
        yield hybrid
        hybrid.close()
    here.close()
    there.close()
