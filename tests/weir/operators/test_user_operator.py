from __future__ import annotations

import pyarrow as pa
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.errors import GraphError, UserFunctionError
from weir.operators.registry import create_operator
from weir.rows.records import KEY_HASH_COLUMN
from weir.specs import UserOperatorSpec

SCHEMA = pa.schema([("n", pa.int64())])


class Sums(weir.Operator):
    """Adds up; tells the sum at each watermark, at the end, and in checkpoints."""

    def open(self, context):
        self.sum = sum(context.restored.values())

    def process(self, batch):
        assert KEY_HASH_COLUMN not in batch.schema.names
        self.sum += sum(batch.column("n").to_pylist())
        yield batch.select(["n"])

    def _tell(self, time_ms):
        return [weir.with_times(pa.record_batch({"n": pa.array([self.sum], pa.int64())}), time_ms, 7)]

    def on_watermark(self, time_ms):
        return self._tell(time_ms)

    def finish(self):
        return self._tell(99)

    def snapshot(self, checkpoint_id):
        return self.sum


def opened(factory, restored=None):
    operator = create_operator(UserOperatorSpec(factory, SCHEMA))
    operator.open(OperatorContext("job", "sums", 1, 0, 1, restored=restored or {}))
    return operator


def batch(*numbers):
    rows = weir.with_times(pa.record_batch({"n": pa.array(numbers, pa.int64())}), 5, 6)
    return rows.append_column(KEY_HASH_COLUMN, pa.array([1] * len(numbers), pa.uint64()))


def test_batches_watermarks_and_the_end_reach_it_and_it_goes_on_from_its_snapshot():
    operator = opened(Sums)
    (out,) = operator.process(batch(1, 2))
    assert out.to_pylist() == [
        {"n": 1, "_event_time_ms": 5, "_ingest_time_us": 6},
        {"n": 2, "_event_time_ms": 5, "_ingest_time_us": 6},
    ]
    (told,) = operator.on_watermark(4)
    assert told.to_pylist() == [{"n": 3, "_event_time_ms": 4, "_ingest_time_us": 7}]
    again = opened(Sums, {0: operator.snapshot(1), 1: 10})
    (last,) = again.finish()
    assert last.column("n").to_pylist() == [13]


def test_it_is_a_step_of_a_dataflow():
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.JsonLines("in", schema={"n": int, "s": str}))
    rows.key_by("s").apply("sums", Sums, {"n": int}, parallelism=2).sink("out", weir.Blackhole())
    node = flow.build().node("sums")
    assert node.schema.names == ["n"]
    assert node.spec.describe()["kind"] == "user_operator"
    with pytest.raises(GraphError, match="step 'bad': expected a function or a class, got int"):
        rows.apply("bad", 3)


def test_what_leaves_it_is_checked():
    class Bare(Sums):
        def on_watermark(self, time_ms):
            return [pa.record_batch({"n": pa.array([1], pa.int64())})]

        def process(self, batch):
            return [pa.record_batch({"m": [1]})]

    with pytest.raises(
        UserFunctionError, match=r"step 'sums': rows emitted at a watermark.*weir\.with_times"
    ):
        list(opened(Bare).on_watermark(1))
    with pytest.raises(UserFunctionError, match=r"step 'sums': .*column 'n' .* is missing"):
        list(opened(Bare).process(batch(1)))
    with pytest.raises(GraphError, match=r"returned int, not a weir\.Operator"):
        create_operator(UserOperatorSpec(lambda: 3, SCHEMA))


def test_the_exported_operator_shows_what_an_operator_is_about():
    public = [name for name in vars(weir.Operator) if not name.startswith("_")]
    assert public == [
        *("tells_inputs_apart", "knows_rows_by_time", "open", "process", "process_input"),
        *("on_watermark", "on_input_watermark", "flush", "snapshot", "commit", "drain", "finish", "close"),
    ]
