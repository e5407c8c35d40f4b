"""What is dirty at a barrier is written by another thread while rows go on; nothing newer gets into the image."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.weir.state.failing_backend import FailingBackend
from weir.errors import StateError
from weir.keys.hashing import KeyColumn, hash_keys
from weir.state.placement.placed_store import PlacedStore
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.capture import Capture
from weir.state.tables.cells.accumulators import decode_rows
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.values.value_cache import WriteBackCache

GROUPS = 128


def touch(state: CellTable, names: range) -> None:
    keys = KeyColumn.from_list([b"key-%06d" % name for name in names])
    for _, _, slots in state.pieces(hash_keys(keys), keys.data, keys.offsets):
        state.cells[slots, 0] += 1
        state.presence[slots] = 1


def stored(backend: MemoryBackend) -> list[int]:
    values = b"".join(value for _, value in backend.scan())
    if not values:
        return []
    count = len(list(backend.scan()))
    return decode_rows(np.frombuffer(values, dtype=np.uint8).reshape(count, -1), 1)[0][:, 0].tolist()


def captured(state: CellTable | WriteBackCache) -> Capture:
    capture = state.capture()
    assert capture is not None
    return capture


def waits(call: Callable[[], object]) -> threading.Thread:
    """Run a call in a thread, and see that it does not come back by itself."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    return thread


def test_accumulators_that_change_behind_the_barrier_are_not_in_the_capture() -> None:
    backend = MemoryBackend()
    state = CellTable(backend, 0, 1, 64 << 20, GROUPS)
    touch(state, range(1_000))
    capture = captured(state)
    touch(state, range(1_500))
    assert stored(backend) == []
    capture.write()
    assert stored(backend) == [1] * 1_000
    state.flush()
    assert sorted(stored(backend)) == [1] * 500 + [2] * 1_000
    assert state.capture() is None, "nothing is dirty any more"


def test_an_eviction_waits_until_the_capture_is_written() -> None:
    backend = MemoryBackend()
    state = CellTable(backend, 0, 1, 1 << 20, GROUPS)
    touch(state, range(5_000))
    capture = captured(state)
    thread = waits(lambda: touch(state, range(60_000)))
    capture.write()
    thread.join()
    state.flush()
    assert sorted(stored(backend)) == [1] * 55_000 + [2] * 5_000


@pytest.mark.parametrize("give_up", [False, True])
def test_accumulators_that_could_not_be_written_are_dirty_again(give_up: bool) -> None:
    backend = FailingBackend()
    state = CellTable(backend, 0, 1, 64 << 20, GROUPS)
    touch(state, range(1_000))
    capture = captured(state)
    touch(state, range(10))
    backend.full = True
    if give_up:
        capture.abandon()
    else:
        with pytest.raises(StateError, match="space"):
            capture.write()
    with pytest.raises(StateError, match="space"):
        state.flush()
    backend.full = False
    state.flush()
    assert sorted(stored(backend)) == [1] * 990 + [2] * 10


def test_entries_that_change_behind_the_barrier_are_not_in_the_capture() -> None:
    backend = MemoryBackend()
    cache = WriteBackCache(backend, 1 << 20)
    cache.put_many([b"a", b"b", b"gone"], [b"1", b"1", b"1"])
    cache.flush()
    cache.put_many([b"a", b"c"], [b"2", b"2"])
    cache.write(deletes=[b"gone"])
    capture = captured(cache)
    cache.put_many([b"a"], [b"3"])
    assert list(cache.scan()) == [(b"a", b"3"), (b"b", b"1"), (b"c", b"2")], "written or not"
    capture.write()
    assert list(backend.scan()) == [(b"a", b"2"), (b"b", b"1"), (b"c", b"2")]
    cache.flush()
    assert list(backend.scan()) == [(b"a", b"3"), (b"b", b"1"), (b"c", b"2")]


class _Recording(MemoryBackend):
    """Knows in which order keys came, and how many bytes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[bytes] = []
        self.sizes_bytes: list[int] = []

    def write(self, puts: Sequence[tuple[bytes, bytes]] = (), deletes: Sequence[bytes] = ()) -> None:
        self.keys += [key for key, _ in puts]
        self.sizes_bytes.append(sum(len(key) + len(value) for key, value in puts))
        super().write(puts, deletes)


def test_captured_entries_are_written_group_by_group_in_the_order_of_their_keys() -> None:
    backend = _Recording()
    cache = WriteBackCache(backend, 64 << 20)
    keys = [number.to_bytes(2, "big") + b"%04d" % row for row in range(1_500) for number in (7, 300, 2)]
    rng = np.random.default_rng(1)
    for part in np.array_split(rng.permutation(len(keys)), 9):
        cache.write(puts=[(keys[row], b"old") for row in part.tolist()])
    capture = captured(cache)
    cache.write(puts=[(key, b"new") for key in keys[::3]])
    capture.write()
    assert backend.keys == sorted(keys)
    assert set(backend.get_many(keys)) == {b"old"}
    cache.flush()
    assert backend.get_many(keys) == [b"new" if row % 3 == 0 else b"old" for row in range(len(keys))]


def test_a_chunk_of_captured_entries_is_bounded_in_bytes() -> None:
    backend = _Recording()
    cache = WriteBackCache(backend, 64 << 20)
    sizes = [100_000, 1_000, 300_000, 5, 200_000, 90_000, 7]
    puts = [(b"00%02d" % row, bytes(size)) for row, size in enumerate(sizes)]
    cache.write(puts=puts)
    captured(cache).write()
    assert backend.keys == [key for key, _ in puts]
    assert [sum(sizes[:3]) + 12, sum(sizes[3:6]) + 12, sizes[6] + 4] == backend.sizes_bytes
    assert cache.capture() is None, "nothing is dirty any more"


def test_entries_are_not_evicted_or_forgotten_before_they_are_written() -> None:
    backend = MemoryBackend()
    cache = WriteBackCache(backend, 2_000)
    cache.put_many([b"a", b"b"], [b"1", b"2"])
    capture = captured(cache)
    thread = waits(lambda: cache.put_many([b"k%d" % index for index in range(40)], [b"x" * 100] * 40))
    capture.write()
    thread.join()
    assert cache.get_many([b"a", b"b"]) == [b"1", b"2"]
    cache.put_many([b"a"], [b"3"])
    capture = captured(cache)
    thread = waits(lambda: cache.forget(None, None))
    capture.write()
    thread.join()
    assert cache.get_many([b"a"]) == [b"3"]


def test_entries_that_could_not_be_written_are_dirty_again() -> None:
    backend = FailingBackend()
    cache = WriteBackCache(backend, 1 << 20)
    cache.put_many([b"a", b"b"], [b"1", b"1"])
    capture = captured(cache)
    cache.put_many([b"b"], [b"2"])
    backend.full = True
    with pytest.raises(StateError, match="space"):
        capture.write()
    backend.full = False
    cache.flush()
    assert list(backend.scan()) == [(b"a", b"1"), (b"b", b"2")]


def test_writes_of_a_subtask_wait_until_its_images_are_taken() -> None:
    store = MemoryBackend()
    backend = PlacedStore(store, "here", (0,), lambda address, epochs: pytest.fail(address))
    backend.ownership.adopt({1: 1})
    key = b"\0\1\0\0key"
    hold = backend.hold_writes()
    hold.pass_here()
    backend.write(puts=[(key, b"captured")])
    writer = waits(lambda: backend.write(puts=[(key, b"newer")]))
    remover = waits(lambda: backend.delete_range(b"\0\1\0\0l", b"\0\1\0\1"))
    assert backend.get_many([key]) == [b"captured"]
    hold.release()
    writer.join()
    remover.join()
    assert store.get_many([key]) == [b"newer"]


def test_a_barrier_waits_until_the_images_of_the_one_before_are_taken() -> None:
    backend = PlacedStore(MemoryBackend(), "here", (0,), lambda address, epochs: pytest.fail(address))
    hold = backend.hold_writes()
    thread = waits(backend.hold_writes)
    hold.release()
    thread.join()
