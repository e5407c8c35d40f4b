import json
from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.errors import StateError, UserFunctionError
from weir.operators.base import OperatorContext
from weir.operators.keyed.keyed_process import KeyedProcess, KeyedProcessOperator
from weir.specs import KeyedProcessSpec
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import one_state

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64(), "before": pa.binary()})


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
    rows = pa.record_batch({"k": [f"key-{n}" for n in range(50)], "v": [round_number] * 50})
    return weir.with_times(rows, round_number, 7)


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
        yield batch.append_column("before", pa.nulls(50, pa.binary()))

    operator.user.process = look  # type: ignore[method-assign]
    (out,) = operator.process(hashed)
    assert out.schema.names == ["k", "v", "before", "_event_time_ms", "_ingest_time_us"]
    assert seen[0].tolist() == operator.user.keyed_state.groups(hashes).tolist()  # type: ignore[attr-defined]
    assert seen[0].tolist() != seen[1].tolist(), "a batch of the user's own is hashed"


def yielding(what, method="process"):
    """A class of operators that yield what ``what`` makes of a batch, or hand it out as it is."""

    class Yields(KeyedProcess):
        def process(self, batch):
            if method == "process":
                return what(batch)
            return (batch,)

        def on_watermark(self, time_ms):
            return what(None) if method == "on_watermark" else ()

        def finish(self):
            return what(None) if method == "finish" else ()

    return Yields


def replaced(batch, name, values):
    return batch.set_column(batch.schema.get_field_index(name), name, values)


@pytest.fixture
def rows_path(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"k": f"k{n % 7}", "n": n}) + "\n" for n in range(100)))
    return str(path)


def run_rows(path, made):
    columns = {"k": str, "n": int, "s": weir.Nullable(str)}
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.JsonLines(path, schema=columns, event_time="n"), parallelism=1)
    return weir.run(rows.key_by("k").process("st", made, columns))["st"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda batch: iter([None, batch]), r"process\(\) yielded None; it must yield pyarrow.RecordBatch"),
        (lambda batch: iter([5]), r"process\(\) yielded int; it must yield"),
        (lambda batch: iter([pl.from_arrow(batch)]), r"process\(\) yielded DataFrame; it must yield"),
        (lambda batch: None, r"process\(\) returned None; it must yield record batches"),
        (lambda batch: batch, r"process\(\) returned RecordBatch; it must yield"),
        (lambda batch: [batch.drop_columns(["n"])], r"column 'n' \(int64\) is missing"),
        (lambda batch: [batch.append_column("z", batch.column("n"))], "column 'z' .* is not expected"),
        (lambda batch: [replaced(batch, "n", batch.column("k"))], "column 'n' is string, not int64"),
        (lambda batch: [replaced(batch, "n", pa.nulls(len(batch), pa.int64()))], "a null in column 'n'"),
        (
            lambda batch: [replaced(batch, "k", pa.array(["z"] * len(batch)))],
            "other values in key column 'k'",
        ),
    ],
)
def test_what_a_keyed_process_yields_is_checked(rows_path, what, message):
    with pytest.raises(UserFunctionError, match=f"step 'st': .*{message}"):
        run_rows(rows_path, yielding(what))


@pytest.mark.parametrize("method", ["on_watermark", "finish"])
@pytest.mark.parametrize(("outputs", "message"), [(None, "returned None"), ([None], "yielded None")])
def test_what_comes_at_watermarks_and_at_the_end_is_checked(rows_path, method, outputs, message):
    with pytest.raises(UserFunctionError, match=rf"step 'st': {method}\(\) {message}; it must yield"):
        run_rows(rows_path, yielding(lambda batch: outputs, method))


def test_times_and_the_order_of_columns_may_be_left_to_weir_and_rows_may_change_places(rows_path):
    names = ["s", "n", "k"]
    assert len(run_rows(rows_path, yielding(lambda batch: [batch.select(names)]))) == 100
    assert (
        len(run_rows(rows_path, yielding(lambda batch: [batch.take(pa.array(range(len(batch)))[::-1])])))
        == 100
    )
    assert len(run_rows(rows_path, yielding(lambda batch: []))) == 0
