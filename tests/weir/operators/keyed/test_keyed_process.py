"""What authors write, how it is called, and what is checked of what they yield."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.author.operator import OperatorContext
from weir.dataflow.keyed_steps import process_states
from weir.errors import GraphError, StateError, UserFunctionError
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.rows.records import BATCH_BYTES_MAX
from weir.specs import KeyedProcessSpec
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64(), "before": pa.int64()})


class LastSeen(weir.KeyedProcess):
    """Emits each row with the value that its key had before, then keeps the new one."""

    kept = weir.ValueState(int)

    def process_batch(self, batch, context):
        keys = context.keys(batch)
        before = self.kept.get(keys)
        self.kept.put(keys, batch["v"])
        yield batch.append_column("before", before.to_arrow())


class LongRows(weir.KeyedProcess):
    """Makes a long row of each short one."""

    def process(self, key, row, context):
        yield {"k": key[0], "text": "x" * 1_000_000}


def test_long_rows_leave_in_batches_of_bounded_bytes():
    """All in one batch would be 50 MB."""
    schema = pa.schema({"k": pa.string(), "text": pa.string()})
    operator = KeyedProcessOperator(
        KeyedProcessSpec(("k",), LongRows, schema, process_states("last", LongRows))
    )
    tables = StateTables(MemoryBackend(), 1 << 20, 128)
    operator.open(OperatorContext("job", "last", 1, 0, 1, tables=tables.of("last", {})))
    out = list(operator.process(batch_of(1)))
    assert [k for batch in out for k in batch["k"].to_pylist()] == [f"key-{n}" for n in range(50)]
    assert max(batch.nbytes for batch in out) < BATCH_BYTES_MAX + 1_100_000


def make(backend, state_id=2):
    tables = None if backend is None else StateTables(backend, 1 << 20, 128)
    operator = KeyedProcessOperator(
        KeyedProcessSpec(("k",), LastSeen, SCHEMA, process_states("last", LastSeen))
    )
    opened = None if tables is None else tables.of("last", {"kept": state_id})
    operator.open(OperatorContext("job", "last", 1, 0, 1, tables=opened))
    return operator, tables


def batch_of(round_number):
    rows = pa.record_batch({"k": [f"key-{n}" for n in range(50)], "v": [round_number] * 50})
    return weir.with_times(rows, round_number, 7)


def test_states_of_different_operators_do_not_mix():
    backend = MemoryBackend()
    first, tables = make(backend, state_id=2)
    list(first.process(batch_of(1)))
    tables.flush()
    (out,) = make(backend, state_id=3)[0].process(batch_of(1))
    assert out.column("before").null_count == 50
    (out,) = make(backend, state_id=2)[0].process(batch_of(1))
    assert out.column("before").to_pylist() == [1] * 50


def test_a_stage_without_a_store_is_a_clear_error():
    with pytest.raises(StateError, match="operator 'last' keeps keyed state"):
        make(None)
    with pytest.raises(StateError, match="state 'kept' of LastSeen is not open"):
        _ = LastSeen().kept


def test_a_users_operator_does_not_see_the_key_hash_but_its_keys_use_it():
    """The exchange has hashed the rows already: hashes of our own choice show in the keys."""
    hashes = np.arange(50, dtype=np.uint64) * np.uint64(2**58)
    hashed = batch_of(1).append_column("_key_hash", pa.array(hashes))
    operator, _ = make(MemoryBackend())
    seen = []

    class Look(LastSeen):
        def process_batch(self, batch, context):
            seen.extend((context.keys(batch).hashes, context.keys(batch.slice(0)).hashes))
            yield batch.append_column("before", pa.nulls(50, pa.int64()))

    operator = KeyedProcessOperator(KeyedProcessSpec(("k",), Look, SCHEMA, process_states("look", Look)))
    tables = StateTables(MemoryBackend(), 1 << 20, 128).of("look", {"kept": 0})
    operator.open(OperatorContext("job", "look", 1, 0, 1, tables=tables))
    (out,) = operator.process(hashed)
    assert out.schema.names == ["k", "v", "before", "_event_time_ms", "_ingest_time_us"]
    assert seen[0].tolist() == hashes.tolist()
    assert seen[1].tolist() != hashes.tolist(), "a batch of the user's own is hashed"


def stream():
    flow = weir.Dataflow("job")
    return flow.source("rows", weir.JsonLines("/absent", schema={"k": str})).key_by("k")


class TakesBatch(weir.KeyedProcess):
    def process(self, batch):
        return (batch,)


class HasCodec(weir.KeyedProcess):
    state_codec = "2"

    def process(self, key, row, context): ...


class HasSnapshot(weir.KeyedProcess):
    def process(self, key, row, context): ...

    def snapshot(self, checkpoint_id): ...


class Empty(weir.KeyedProcess):
    pass


class IsOperator(weir.Operator):
    def process(self, batch):
        return ()


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        (TakesBatch, r"TakesBatch has process\(self, batch\)"),
        (lambda: TakesBatch(), r"TakesBatch has process\(self, batch\)"),
        (HasCodec, "HasCodec has state_codec, which is of the older form"),
        (HasSnapshot, "HasSnapshot has snapshot, which is of the older form"),
        (Empty, "Empty has neither process nor process_batch"),
        (IsOperator, "IsOperator is no weir.KeyedProcess"),
    ],
)
def test_a_class_of_another_form_is_told_what_to_write(factory, told):
    """When the job is built, not at its first rows."""
    wanted = r"process\(self, key, row, context\) or process_batch\(self, batch, context\).*weir.ValueState"
    with pytest.raises(GraphError, match=rf"^step 'st': {told}.*{wanted}"):
        stream().process("st", factory)


def test_hooks_are_called_and_need_not_return_anything():
    calls = []

    class Hooks(weir.KeyedProcess):
        total = weir.ValueState(int, default=0)

        def open(self, context):
            calls.append(("open", context.subtask_index, context.tables))

        def process(self, key, row, context):
            self.total.value += 1
            calls.append(("process", key, row, self.total.value))

        def on_watermark(self, time_ms):
            calls.append(("on_watermark", time_ms))

        def finish(self):
            calls.append(("finish",))

        def close(self):
            calls.append(("close",))

    flow = stream().process("st", Hooks)
    flow.sink("out", weir.Collect())
    testing.run(flow.flow, {"rows": [{"k": "a"}, testing.Watermark(5), {"k": "a"}]})
    assert calls[0] == ("open", 0, None)
    assert [call for call in calls if call[0] == "process"] == [
        ("process", ("a",), {"k": "a"}, count) for count in (1, 2)
    ]
    assert ("on_watermark", 5) in calls
    assert calls[-2:] == [("finish",), ("close",)]


def yielding(what, method="process_batch"):
    """A class of operators that yield what ``what`` makes of a batch, or hand it out as it is."""

    class Yields(weir.KeyedProcess):
        def process_batch(self, batch, context):
            if method == "process_batch":
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
        (
            lambda batch: iter([None, batch]),
            r"process_batch\(\) yielded None; it must yield pyarrow.RecordBatch",
        ),
        (lambda batch: iter([5]), r"process_batch\(\) yielded int; it must yield"),
        (lambda batch: iter([pl.from_arrow(batch)["n"]]), r"process_batch\(\) yielded Series; it must yield"),
        (lambda batch: iter([pl.from_arrow(batch).drop("n")]), r"column 'n' \(int64\) is missing"),
        (lambda batch: batch, r"process_batch\(\) returned RecordBatch; it must yield"),
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
@pytest.mark.parametrize(("outputs", "message"), [(5, "returned int"), ([None], "yielded None")])
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
