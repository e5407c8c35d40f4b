import math
import statistics
from collections.abc import Iterable

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tests.weir.state.one_state import one_state
from weir.author.operator import OperatorContext
from weir.errors import StateError, WeirError
from weir.keys import hashing as weir_keys
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.rows.records import KEY_HASH_COLUMN, with_system_columns
from weir.specs import Aggregate, EmitMode, KeyedAggregateSpec
from weir.state.api import StateBackend
from weir.state.stores.memory import MemoryBackend

AGGREGATES = (
    Aggregate("n", "count"),
    Aggregate("n_x", "count", "x"),
    Aggregate("sum_x", "sum", "x"),
    Aggregate("min_x", "min", "x"),
    Aggregate("max_x", "max", "x"),
    Aggregate("mean_x", "mean", "x"),
    Aggregate("sum_y", "sum", "y"),
    Aggregate("min_y", "min", "y"),
    Aggregate("max_y", "max", "y"),
    Aggregate("mean_y", "mean", "y"),
    Aggregate("high", "count", None, pl.col("x") > 50),
    Aggregate("stddev_y", "stddev", "y", None, (0,)),
    Aggregate("first_x", "first", "x"),
    Aggregate("last_y", "last", "y", pl.col("x") > 0),
    Aggregate("largest_x", "largest", "x", None, (3,)),
)


def make(
    backend: StateBackend,
    aggregates: tuple[Aggregate, ...] = AGGREGATES,
    emit: EmitMode = "per_event",
    cache_bytes: int = 1 << 20,
    key_columns: tuple[str, ...] = ("k",),
) -> KeyedAggregateOperator:
    operator = KeyedAggregateOperator(KeyedAggregateSpec(key_columns, aggregates, emit))
    operator.open(OperatorContext("job", "agg", 3, 0, 1, tables=one_state(backend, 1, cache_bytes)))
    return operator


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        if row.get("stddev_y") is not None:
            row["stddev_y"] = round(row["stddev_y"], 9)
    return rows


class Model:
    """The same aggregates on Python lists."""

    def __init__(self) -> None:
        self.seen: dict[object, list[dict]] = {}

    def feed(self, row: dict) -> dict:
        rows = self.seen.setdefault(row["k"], [])
        rows.append(row)
        out = {**row, "n": len(rows)}
        for name in ("x", "y"):
            values = [other[name] for other in rows if other[name] is not None]
            if name == "x":
                out["n_x"] = len(values)
            out[f"sum_{name}"] = sum(values) if values else None
            out[f"min_{name}"] = min(values) if values else None
            out[f"max_{name}"] = max(values) if values else None
            out[f"mean_{name}"] = sum(values) / len(values) if values else None
        x, y = ([other[name] for other in rows if other[name] is not None] for name in ("x", "y"))
        # All rows have the same event time.
        last = [other["y"] for other in rows if other["y"] is not None and (other["x"] or 0) > 0]
        out["high"] = sum(value > 50 for value in x)
        out["stddev_y"] = round(statistics.pstdev(y), 9) if y else None
        out["first_x"], out["last_y"] = x[0] if x else None, last[-1] if last else None
        out["largest_x"] = sorted(x, reverse=True)[:3]
        return out


def random_batch(random: np.random.Generator, rows: int) -> pa.RecordBatch:
    x = pa.array(random.integers(-100, 100, rows), pa.int32(), mask=random.random(rows) < 0.3)
    # Quarters: their sums are exact in any order.
    y = pa.array(random.integers(-100, 100, rows) / 4, mask=random.random(rows) < 0.3)
    keys = pa.array([f"server-{number}" if number else None for number in random.integers(0, 400, rows)])
    return with_system_columns(pa.record_batch({"k": keys, "x": x, "y": y}), 5, np.arange(rows))


@pytest.mark.parametrize("cache_bytes", [500, 30_000, 1 << 22])
def test_running_values_equal_a_model_with_any_cache(cache_bytes: int) -> None:
    random = np.random.default_rng(cache_bytes)
    operator = make(MemoryBackend(), cache_bytes=cache_bytes)
    model = Model()
    for _ in range(5):
        # Where little fits, batches are taken in tiny pieces.
        batch = random_batch(random, 400 if cache_bytes > 500 else 100)
        want = [model.feed(row) for row in batch.to_pylist()]
        assert rows_of(operator.process(batch)) == want
        operator.state.flush()


@pytest.mark.parametrize("cache_bytes", [500, 1 << 22])
def test_distinct_keys_are_counted_once_and_known_after_the_end(cache_bytes: int) -> None:
    random = np.random.default_rng(2)
    operator = make(MemoryBackend(), cache_bytes=cache_bytes)
    seen = set()
    for _ in range(3):
        batch = random_batch(random, 700 if cache_bytes > 500 else 200)
        seen |= set(batch["k"].to_pylist())
        list(operator.process(batch))
        operator.state.flush()
        assert operator.distinct_keys == len(seen)
    operator.close()
    assert operator.distinct_keys == len(seen)


def test_per_batch_emits_the_last_row_of_each_key_with_final_values() -> None:
    random = np.random.default_rng(1)
    operator = make(MemoryBackend(), emit="per_batch", cache_bytes=1 << 22)
    model = Model()
    for _ in range(3):
        batch = random_batch(random, 700)
        outputs = [model.feed(row) for row in batch.to_pylist()]
        last = {output["k"]: index for index, output in enumerate(outputs)}
        assert rows_of(operator.process(batch)) == [outputs[index] for index in sorted(last.values())]


def test_output_schema_is_user_columns_aggregates_system_columns() -> None:
    (out,) = make(MemoryBackend()).process(random_batch(np.random.default_rng(2), 3))
    assert out.schema.names == [
        *("k", "x", "y"),
        *(aggregate.output for aggregate in AGGREGATES),
        *("_event_time_ms", "_ingest_time_us"),
    ]
    types = {name: str(out.schema.field(name).type) for name in out.schema.names}
    floats = {"mean_x", "sum_y", "min_y", "max_y", "mean_y", "stddev_y", "last_y"}
    for aggregate in AGGREGATES:
        number = "double" if aggregate.output in floats else "int64"
        is_list = aggregate.function == "largest"
        assert types[aggregate.output] == (f"list<item: {number}>" if is_list else number)


def test_state_survives_a_new_operator_on_the_same_store() -> None:
    backend = MemoryBackend()
    batch = random_batch(np.random.default_rng(3), 200)
    model = Model()
    for _ in range(2):
        operator = make(backend)
        want = [model.feed(row) for row in batch.to_pylist()]
        assert rows_of(operator.process(batch)) == want
        operator.state.flush()
        operator.close()


def test_the_hash_column_is_used_and_equal_hashes_do_not_mix_keys() -> None:
    rows = 50
    base = with_system_columns(pa.record_batch({"k": [f"key-{n % 10}" for n in range(rows)]}), 0, 0)
    hashes = pa.array(np.full(rows, 7, dtype=np.uint64))
    batch = pa.RecordBatch.from_arrays(
        [*base.columns, hashes], schema=base.schema.append(pa.field(KEY_HASH_COLUMN, pa.uint64()))
    )
    (out,) = make(MemoryBackend(), (Aggregate("n", "count"),)).process(batch)
    assert out.column("n").to_pylist() == [index // 10 + 1 for index in range(rows)]
    assert out.schema.names[-1] == KEY_HASH_COLUMN


def test_the_state_is_the_same_with_and_without_the_hash_column() -> None:
    backend = MemoryBackend()
    base = random_batch(np.random.default_rng(4), 100)
    hashes = weir_keys.hash_keys(weir_keys.key_bytes(base, ("k",)))
    with_hash = pa.RecordBatch.from_arrays(
        [*base.columns, pa.array(hashes)], schema=base.schema.append(pa.field(KEY_HASH_COLUMN, pa.uint64()))
    )
    for batch in (base, with_hash):
        operator = make(backend)
        last = rows_of(operator.process(batch))
        operator.state.flush()
    assert max(row["n"] for row in last) > 2
    assert sum(1 for _ in backend.scan()) == len(set(base.column("k").to_pylist()))


@pytest.mark.parametrize(
    "keys", [pa.array([5, 5, -1]), pa.array(["a", "a", "b"], pa.large_string()), pa.array([b"a", b"a", b""])]
)
def test_keys_of_other_types_and_sliced_batches(keys: pa.Array) -> None:
    batch = pa.record_batch({"pad": [0, *range(3)], "k": pa.concat_arrays([keys[2:], keys])}).slice(1)
    (out,) = make(MemoryBackend(), (Aggregate("n", "count"),)).process(batch)
    assert out.column("n").to_pylist() == [1, 2, 1]


def test_composite_keys() -> None:
    batch = pa.record_batch({"k": ["a", "a", "b", "a"], "l": [1, 2, 1, 1]})
    (out,) = make(MemoryBackend(), (Aggregate("n", "count"),), key_columns=("k", "l")).process(batch)
    assert out.column("n").to_pylist() == [1, 1, 1, 2]


@pytest.mark.parametrize(("first", "second"), [(2**63 - 1, 1), (-(2**63), -1)])
def test_an_integer_sum_that_passes_64_bits_is_an_error(first: int, second: int) -> None:
    operator = make(MemoryBackend(), (Aggregate("total", "sum", "x"),))
    list(operator.process(pa.record_batch({"k": ["a"], "x": [first]})))
    with pytest.raises(WeirError, match=r"'total' \(sum of 'x'\): a key's sum passes 64 bits"):
        list(operator.process(pa.record_batch({"k": ["a"], "x": [second]})))


def test_an_unsigned_value_above_64_bits_is_an_error() -> None:
    operator = make(MemoryBackend(), (Aggregate("largest", "max", "x"),))
    with pytest.raises(WeirError, match="cast the column to float64"):
        list(operator.process(pa.record_batch({"k": ["a"], "x": pa.array([2**64 - 1], pa.uint64())})))


def test_nan_counts_in_extremes_only_when_alone() -> None:
    operator = make(MemoryBackend(), (Aggregate("low", "min", "x"), Aggregate("high", "max", "x")))
    values = [math.nan, 2.0, math.nan, 1.0, 3.0]
    (out,) = operator.process(pa.record_batch({"k": ["a"] * 5, "x": values}))
    assert out.column("low").to_pylist()[1:] == [2.0, 2.0, 1.0, 1.0]
    assert out.column("high").to_pylist()[1:] == [2.0, 2.0, 2.0, 3.0]
    assert math.isnan(out.column("low")[0].as_py())


def test_a_stage_without_a_store_is_a_clear_error() -> None:
    operator = KeyedAggregateOperator(KeyedAggregateSpec(("k",), AGGREGATES))
    with pytest.raises(StateError, match="operator 'agg' keeps keyed state"):
        operator.open(OperatorContext("job", "agg", 3, 0, 1))
    with pytest.raises(StateError, match="not open"):
        operator.state.flush()
