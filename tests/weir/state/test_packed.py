"""Packed reads and writes: arrays instead of objects, and writes to peers that travel with later reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from tests.weir.state.state_peer import Peer, serving
from weir.errors import ConnectionLostError, FencedError, StateError
from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.layout import encode_key
from weir.state.packed import PackedKeys, join_keys, pack_values
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cells.accumulators import decode_values
from weir.state.tables.cells.cell_table import CellTable

STATE = 2
GROUP = 5
HERE = "here:1"
WIDTH = 3


def key(name: str, group: int = GROUP) -> bytes:
    return encode_key(group, STATE, name.encode())


def packed(keys: Sequence[bytes]) -> PackedKeys:
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    groups = np.array([int.from_bytes(key[:2], "big") for key in keys], dtype=np.uint16)
    return PackedKeys(np.frombuffer(b"".join(keys), dtype=np.uint8), offsets, groups)


def rows_of(values: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(len(values), -1)


def get(state: StateBackend, keys: Sequence[bytes]) -> list[bytes | None]:
    """A packed read, as a list."""
    present, rows = state.get_packed(packed(keys), WIDTH)
    found = iter(rows)
    return [next(found).tobytes() if there else None for there in present.tolist()]


def put(state: StateBackend, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    state.put_packed(packed(keys), rows_of(values))


@dataclass
class World:
    here: StateBackend
    there: StateBackend
    peer: Peer
    state: PlacedStore

    def another(self) -> PlacedStore:
        return PlacedStore(self.here, HERE, [STATE], self.peer.connect)


@pytest.fixture
def world() -> Iterator[World]:
    here, there = MemoryBackend(), MemoryBackend()
    with serving(there) as peer:
        world = World(here, there, peer, None)
        world.state = world.another()
        yield world


def test_keys_are_split_joined_and_cut() -> None:
    names = [key("a", 1), key("bcd", 1), key("", 3), key("x" * 100, 4)]
    keys = packed(names)
    assert keys.to_list() == names
    assert keys.runs() == [(1, 0, 2), (3, 2, 3), (4, 3, 4)]
    assert keys.part(1, 3).to_list() == names[1:3]
    assert keys.part(1, 3).to_bytes() == names[1] + names[2]
    assert keys.parts([(0, 1), (2, 4)]).to_list() == [names[0], *names[2:]]
    joined = join_keys([keys.part(2, 4), keys.part(0, 1)])
    assert joined.to_list() == [*names[2:], names[0]]
    assert joined.groups.tolist() == [3, 4, 1]
    # 6, 8, 5 and 105 bytes, 1 on top of each.
    assert list(keys.cut(21, 1)) == [(0, 2), (2, 3), (3, 4)]
    assert list(keys.cut(22, 1)) == [(0, 3), (3, 4)]
    assert list(keys.part(1, 4).cut(1, 1)) == [(0, 1), (1, 2), (2, 3)]
    assert keys.part(1, 1).runs() == []
    assert list(keys.part(1, 1).cut(1, 1)) == []


def test_values_of_another_length_are_refused() -> None:
    present, rows = pack_values([b"abc", None, b"def"], 3)
    assert (present.tolist(), rows.tobytes()) == ([True, False, True], b"abcdef")
    # As long together as they should be.
    with pytest.raises(StateError, match="2 bytes, 3 expected"):
        pack_values([b"ab", b"cdef"], 3)


@pytest.mark.parametrize("place", ["local", "remote", "migrating"])
def test_values_come_back_wherever_they_are(world, place):
    names = [key(f"{number:03}", group) for group in (GROUP, 6) for number in range(50)]
    values = [f"{number:03}".encode() for number in range(100)]
    world.state.ownership.adopt(
        {GROUP: 1}, None if place == "local" else world.peer.address, migrate=place == "migrating"
    )
    world.state.ownership.adopt({6: 1})
    put(world.state, names[::2], values[::2])
    assert get(world.state, names) == [
        value if number % 2 == 0 else None for number, value in enumerate(values)
    ]
    world.state.flush()
    stores = {GROUP: world.there if place == "remote" else world.here, 6: world.here}
    for group, store in stores.items():
        assert [
            entry for entry in store.scan() if entry[0] in names and entry[0][:2] == key("", group)[:2]
        ] == [
            (name, value)
            for name, value in zip(names[::2], values[::2], strict=True)
            if name[:2] == key("", group)[:2]
        ]
    stats = world.state.stats()
    assert (stats.gets, stats.puts) == (100, 50)
    assert (stats.remote_gets > 0) == (place != "local")
    assert stats.remote_puts == (25 if place == "remote" else 0)


def test_writes_to_a_peer_travel_together_and_before_the_next_read(world):
    calls = []
    world.there.put_many, put_many = (
        lambda *pair: calls.append("put") or put_many(*pair),
        world.there.put_many,
    )
    world.there.get_many, get_many = lambda keys: calls.append("get") or get_many(keys), world.there.get_many
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    for number in range(5):
        put(world.state, [key("k")], [f"{number:03}".encode()])
    assert calls == []
    assert get(world.state, [key("k"), key("l")]) == [b"004", None]
    assert calls == ["put", "get"]


def test_every_other_access_sees_earlier_writes(world):
    accesses = {
        "get": lambda: world.state.get_many([key("k")]) == [b"001"],
        "scan": lambda: list(world.state.scan()) == [(key("k"), b"001")],
        "flush": lambda: world.state.flush() is None and list(world.there.scan()) == [(key("k"), b"001")],
    }
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    for name, sees in accesses.items():
        world.there.write(deletes=[key("k")])
        put(world.state, [key("k")], [b"001"])
        assert sees(), name
    put(world.state, [key("k")], [b"001"])
    world.state.put_many([key("k")], [b"002"])
    assert list(world.there.scan()) == [(key("k"), b"002")]
    put(world.state, [key("k")], [b"003"])
    world.state.delete_range(key("k"), key("l"))
    assert list(world.there.scan()) == []


def test_a_handover_writes_what_was_gathered(world):
    world.state.ownership.adopt({GROUP: 1, 6: 1}, world.peer.address)
    put(world.state, [key("k"), key("k", 6)], [b"001", b"002"])
    world.state.ownership.release([GROUP])
    next_owner = world.another()
    next_owner.ownership.adopt({GROUP: 2}, world.peer.address)
    assert get(next_owner, [key("k")]) == [b"001"]
    put(world.state, [key("l", 6)], [b"003"])
    world.state.ownership.migrate([6])
    assert get(world.state, [key("k", 6), key("l", 6)]) == [b"002", b"003"]


def test_closing_writes_what_was_gathered(world):
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    put(world.state, [key("k")], [b"001"])
    world.state.close()
    world.state.close()
    assert list(world.there.scan()) == [(key("k"), b"001")]


def test_many_writes_and_reads_are_cut_into_messages(world):
    names = [key(f"{number:06}") for number in range(40_000)]
    values = [f"{number % 1000:03}".encode() for number in range(40_000)]
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    put(world.state, names, values)
    assert get(world.state, names) == values
    long_names = [key("x" * 300_000 + str(number)) for number in range(5)]
    put(world.state, long_names, values[:5])
    assert get(world.state, [*long_names, names[7]]) == [*values[:5], values[7]]


def test_a_replaced_owner_hears_of_it_at_every_later_call(world):
    zombie = world.another()
    zombie.ownership.adopt({GROUP: 1}, world.peer.address)
    world.state.ownership.adopt({GROUP: 2}, world.peer.address)
    put(world.state, [key("k")], [b"new"])
    world.state.flush()
    put(zombie, [key("k")], [b"old"])
    calls = [
        zombie.flush,
        lambda: put(zombie, [key("k")] * 9000, [b"old"] * 9000),
        lambda: get(zombie, [key("k")]),
    ]
    for call in [*calls, *calls]:
        with pytest.raises(FencedError, match="replaced by 2"):
            call()
    with pytest.raises(FencedError, match="key group 7 does not belong to this subtask"):
        put(world.state, [key("k", 7)], [b"123"])
    with pytest.raises(FencedError, match="key group 7 does not belong to this subtask"):
        get(world.state, [key("k", 7)])
    assert list(world.there.scan()) == [(key("k"), b"new")]


def test_a_peer_that_is_gone_is_named_for_good(world):
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    world.peer.server.stop(0).wait()
    put(world.state, [key("k")], [b"001"])
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match=world.peer.address):
            world.state.flush()
    world.peer.connection.close()
    other = world.another()
    other.ownership.adopt({GROUP: 1}, world.peer.address)
    with pytest.raises(ConnectionLostError, match=world.peer.address):
        get(other, [key("k")])


def test_a_value_of_another_length_at_the_peer_is_refused(world):
    world.there.put_many([key("k")], [b"four"])
    world.state.ownership.adopt({GROUP: 1}, world.peer.address)
    with pytest.raises(StateError, match="4 bytes, 3 expected"):
        get(world.state, [key("k")])


@pytest.mark.parametrize("bytes_max", [1, 3_000, 30_000])
def test_counts_equal_a_dictionary_wherever_the_groups_are(world, bytes_max):
    random = np.random.default_rng(bytes_max)
    world.state.ownership.adopt(dict.fromkeys(range(8), 1), world.peer.address)
    world.state.ownership.adopt(dict.fromkeys(range(8, 16), 1))
    state = CellTable(world.state, STATE, 1, bytes_max, 16)
    want: Counter[str] = Counter()
    # Where nothing fits, each key is looked up by itself.
    for _ in range(3 if bytes_max == 1 else 10):
        names = [f"k{number}" for number in (random.zipf(1.3, 400) % 900).tolist()]
        column = weir_keys.key_bytes(pa.record_batch({"k": pa.array(names, pa.string())}), ("k",))
        for _, _, slots in state.pieces(weir_keys.hash_keys(column), column.data, column.offsets):
            np.add.at(state.cells[:, 0], slots, 1)
        want.update(names)
        if random.random() < 0.3:
            state.flush_part(0.5)
    state.flush()
    world.state.flush()
    entries = [*world.here.scan(), *world.there.scan()]
    cells, _ = decode_values([value for _, value in entries], 1)
    found = [layout.decode_key(name).user_key.decode() for name, _ in entries]
    assert dict(zip(found, cells[:, 0].tolist(), strict=True)) == want
    assert world.state.stats().remote_puts > 0
