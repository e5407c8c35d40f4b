"""A subtask's state with a store here and a peer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.weir.state.state_peer import Peer, serving
from weir.state.api import StateBackend
from weir.state.layout import encode_key
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend

STATE, OTHER_STATE = 2, 7
GROUP = 5
HERE = "here:1"


def key(name: str, group: int = GROUP, state_id: int = STATE) -> bytes:
    return encode_key(group, state_id, name.encode())


@dataclass
class World:
    """What a test sees of both sides."""

    here: StateBackend
    there: StateBackend
    peer: Peer
    state: PlacedStore

    def another(self, *, migrate: bool = False) -> PlacedStore:
        """Another subtask on this task manager."""
        return PlacedStore(self.here, HERE, [STATE, OTHER_STATE], self.peer.connect, fetches=migrate)


@contextmanager
def a_world() -> Iterator[World]:
    """Both stores are in memory; the subtask owns nothing yet."""
    here, there = MemoryBackend(), MemoryBackend()
    with serving(there) as peer:
        world = World(here, there, peer, None)
        world.state = world.another()
        yield world


def complete_all(state: PlacedStore) -> None:
    """Pull everything that is on its way."""
    for group in state.pull.migrating():
        position: bytes | None = b""
        while position is not None:
            position, _, _ = state.pull.fetch(group, position, 50)
        state.pull.arrived([group])
        state.pull.clean(group)
