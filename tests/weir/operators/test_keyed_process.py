from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from weir.errors import StateError
from weir.operators.base import OperatorContext
from weir.operators.keyed_process import KeyedProcess, KeyedProcessOperator
from weir.specs import KeyedProcessSpec
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.memory import MemoryBackend
from weir.state.tables.opened import one_state

SCHEMA = pa.schema({"k": pa.string()})


class LastSeen(KeyedProcess):
    """Emits each row with the value that its key had before, then keeps the new one."""

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        groups, keys = self.keys(batch)
        before = self.keyed_state.get_many(groups, keys)
        values = [str(value).encode() for value in batch.column("v").to_pylist()]
        self.keyed_state.put_many(groups, keys, values)
        yield batch.append_column("before", pa.array(before, pa.binary()))


def make(backend: StateBackend | None, state_id: int = 2, cache_bytes: int = 2000) -> KeyedProcessOperator:
    operator = KeyedProcessOperator(KeyedProcessSpec(("k",), LastSeen, SCHEMA))
    operator.open(OperatorContext("job", "last", 1, 0, 1, tables=one_state(backend, state_id, cache_bytes)))
    return operator


def batch_of(round_number: int) -> pa.RecordBatch:
    return pa.record_batch({"k": [f"key-{n}" for n in range(50)], "v": [round_number] * 50})


def test_a_users_operator_reads_what_it_wrote_through_a_small_cache() -> None:
    backend = MemoryBackend()
    operator = make(backend)
    for round_number in range(3):
        (out,) = operator.process(batch_of(round_number))
        assert out.column("before").to_pylist() == [b"%d" % (round_number - 1) if round_number else None] * 50
    operator.user.keyed_state.flush()
    operator.close()
    assert {layout.decode_key(key).state_id for key, _ in backend.scan()} == {2}
    assert {value for _, value in backend.scan()} == {b"2"}
    (out,) = make(backend).process(batch_of(9))
    assert out.column("before").to_pylist() == [b"2"] * 50


def test_states_of_different_operators_do_not_mix() -> None:
    backend = MemoryBackend()
    first = make(backend, state_id=2)
    list(first.process(batch_of(1)))
    first.user.keyed_state.flush()
    (out,) = make(backend, state_id=3).process(batch_of(1))
    assert out.column("before").null_count == 50


def test_deleting_scanning_and_dropping_groups() -> None:
    backend = MemoryBackend()
    operator = make(backend, cache_bytes=1 << 20)
    list(operator.process(batch_of(1)))
    assert isinstance(operator.user, LastSeen)
    state = operator.user.keyed_state
    groups, keys = operator.user.keys(batch_of(1))
    state.delete_many(groups[:10], keys[:10])
    scanned = dict(entry for group in range(128) for entry in state.scan_group(group))
    assert scanned == dict.fromkeys(keys[10:], b"1")
    state.release_groups(np.unique(groups).tolist())
    assert sum(1 for _ in backend.scan()) == 40
    state.adopt_groups(np.unique(groups).tolist())
    assert state.stats().memory_bytes == 0
    assert state.get_many(groups, keys) == [None] * 10 + [b"1"] * 40


def test_groups_are_flushed_released_and_adopted_one_by_one() -> None:
    backend = MemoryBackend()
    operator = make(backend, cache_bytes=1 << 20)
    list(operator.process(batch_of(1)))
    assert isinstance(operator.user, LastSeen)
    groups, keys = operator.user.keys(batch_of(1))
    moved, kept = int(groups[0]), int(next(group for group in groups if group != groups[0]))
    moved_count = int((groups == moved).sum())
    operator.user.keyed_state.flush_groups([moved])
    assert {layout.decode_key(key).key_group for key, _ in backend.scan()} == {moved}
    hot = operator.user.keyed_state.hot_keys([moved], 100)
    assert sorted(hot) == [key for key, _ in backend.scan()]
    assert len(operator.user.keyed_state.hot_keys([moved, kept], 1)) == 1
    operator.user.keyed_state.release_groups([moved])
    assert len(list(backend.scan())) == moved_count
    # Another owner works on it, and it comes back.
    backend.put_many(hot, [b"other"] * len(hot))
    operator.user.keyed_state.adopt_groups([moved])
    values = operator.user.keyed_state.get_many(groups, keys)
    assert values == [b"other" if group == moved else b"1" for group in groups]


def test_a_stage_without_a_store_is_a_clear_error() -> None:
    with pytest.raises(StateError, match="operator 'last' keeps keyed state"):
        make(None)
    with pytest.raises(StateError, match=r"super\(\)\.open"):
        LastSeen().keyed_state.flush()


def test_a_users_operator_does_not_see_the_key_hash_but_its_keys_use_it() -> None:
    """The exchange has hashed the rows already: hashes of our own choice show in the groups."""
    hashes = np.arange(50, dtype=np.uint64) * np.uint64(2**58)
    hashed = batch_of(1).append_column("_key_hash", pa.array(hashes))
    operator = make(MemoryBackend())
    seen: list[np.ndarray] = []

    def look(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        seen.append(operator.user.keys(batch)[0])  # type: ignore[attr-defined]
        seen.append(operator.user.keys(batch.slice(0))[0])  # type: ignore[attr-defined]
        yield batch

    operator.user.process = look  # type: ignore[method-assign]
    (out,) = operator.process(hashed)
    assert out.schema.names == ["k", "v"]
    assert seen[0].tolist() == operator.user.keyed_state.groups(hashes).tolist()  # type: ignore[attr-defined]
    assert seen[0].tolist() != seen[1].tolist(), "a batch of the user's own is hashed"
