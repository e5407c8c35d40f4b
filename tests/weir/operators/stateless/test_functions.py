import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from weir.author.operator import OperatorContext
from weir.errors import WeirError
from weir.operators.stateless.functions import FlatMapOperator, MapBatchesOperator, MapOperator
from weir.rows.records import BATCH_BYTES_MAX, with_system_columns
from weir.specs import FlatMapSpec, MapBatchesSpec, MapSpec

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def batch_of(ids):
    user = pa.RecordBatch.from_pydict({"id": ids, "name": [f"n{i}" for i in ids]}, schema=SCHEMA)
    rows = np.arange(len(ids), dtype=np.int64)
    batch = with_system_columns(user, 1000 + rows, 2000 + rows)
    return batch.append_column("_key_hash", pa.array(rows.astype(np.uint64)))


def run(operator, batch, batch_size=100):
    operator.open(OperatorContext("job", "mine", 0, 0, 1, batch_size=batch_size))
    return list(operator.process(batch))


map_batches = functools.partial(
    lambda function, schema=SCHEMA: MapBatchesOperator(MapBatchesSpec(function, schema))
)
map_rows = functools.partial(lambda function, schema=SCHEMA: MapOperator(MapSpec(function, schema)))
flat_map = functools.partial(lambda function, schema=SCHEMA: FlatMapOperator(FlatMapSpec(function, schema)))


def test_map_batches_sees_user_and_time_columns_only():
    seen = []
    (result,) = run(map_batches(lambda batch: seen.append(batch.schema.names) or batch), batch_of([1, 2]))
    assert seen == [["id", "name", "_event_time_ms", "_ingest_time_us"]]
    assert result.schema.names == seen[0]
    assert result.column("id").to_pylist() == [1, 2]


def test_map_batches_may_drop_rows_if_it_carries_the_times():
    (result,) = run(map_batches(lambda batch: batch.filter(pc.greater(batch["id"], 2))), batch_of([1, 2, 3]))
    assert result.to_pylist() == [{"id": 3, "name": "n3", "_event_time_ms": 1002, "_ingest_time_us": 2002}]


def test_map_batches_without_times_gets_the_input_s_if_rows_match():
    schema = pa.schema([pa.field("x", pa.string(), nullable=False)])

    def function(batch):
        return pa.record_batch({"x": pa.array(["a"] * batch.num_rows, pa.large_string())})

    (result,) = run(map_batches(function, schema), batch_of([1, 2]))
    assert result.schema.field("x") == schema.field("x")
    assert result.column("_ingest_time_us").to_pylist() == [2000, 2001]


def test_map_batches_puts_columns_into_the_declared_order():
    (result,) = run(map_batches(lambda batch: batch.select(["name", "id"])), batch_of([1]))
    assert result.schema.names[:2] == ["id", "name"]


def test_map_batches_with_no_rows_left_gives_nothing():
    assert run(map_batches(lambda batch: batch.slice(0, 0)), batch_of([1])) == []


def fail(_):
    raise KeyError("nope")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail, "step 'mine': function fail raised KeyError: 'nope'"),
        (lambda b: None, "step 'mine': the function returned NoneType, not a pyarrow.RecordBatch"),
        (lambda b: b.select(["id"]), r"step 'mine': .* column 'name' \(string\) is missing"),
        (lambda b: b.append_column("x", b["id"]), r"step 'mine': .* column 'x' \(int64\) is not expected"),
        (lambda b: b.set_column(1, "name", b["id"]), "step 'mine': .* column 'name' is int64, not string"),
        (lambda b: b.append_column("id", b["id"]), "step 'mine': the function returned a column twice"),
        (
            lambda b: b.select(["id", "name"]).slice(1),
            "returned 1 rows for 2 without column '_event_time_ms'",
        ),
        (
            lambda b: b.set_column(2, "_event_time_ms", b["name"]),
            "returned '_event_time_ms' as string; it is int64 without nulls",
        ),
        (
            lambda b: b.set_column(0, "id", pa.array([1, None])),
            "step 'mine': the function returned a null in column 'id'; declare it as weir.Nullable",
        ),
    ],
)
def test_map_batches_mistakes_name_the_step(function, message):
    with pytest.raises(WeirError, match=message):
        run(map_batches(function), batch_of([1, 2]))


def test_map_keeps_the_times_of_each_row():
    schema = pa.schema([("x", pa.int64())])
    (result,) = run(map_rows(lambda row: {"x": row["id"] * 2}, schema), batch_of([5, 6]))
    assert result.to_pydict() == {
        "x": [10, 12],
        "_event_time_ms": [1000, 1001],
        "_ingest_time_us": [2000, 2001],
    }


def test_map_rows_are_user_columns():
    seen = []
    run(map_rows(lambda row: seen.append(row) or row), batch_of([5]))
    assert seen == [{"id": 5, "name": "n5"}]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail, "step 'mine': function fail raised KeyError: 'nope'"),
        (lambda row: 3, "step 'mine': the function returned int, not a dict"),
        (lambda row: {"id": 1}, r"step 'mine': .* missing \['name'\], extra \[\]"),
        (lambda row: {**row, "x": 1}, r"step 'mine': .* missing \[\], extra \['x'\]"),
        (lambda row: {**row, "id": "one"}, "step 'mine': the function returned a value of another type"),
        (lambda row: {**row, "id": 2**70}, "step 'mine': the function returned a value of another type"),
        (lambda row: {**row, "id": None}, "step 'mine': the function returned a null in column 'id'"),
    ],
)
def test_map_mistakes_name_the_step(function, message):
    with pytest.raises(WeirError, match=message):
        run(map_rows(function), batch_of([1]))


def test_flat_map_repeats_the_times_of_the_row():
    (result,) = run(flat_map(lambda row: [row] * row["id"]), batch_of([0, 2, 1]))
    assert result.column("id").to_pylist() == [2, 2, 1]
    assert result.column("_event_time_ms").to_pylist() == [1001, 1001, 1002]


def test_flat_map_cuts_batches_and_accepts_generators():
    def function(row):
        for i in range(5):
            yield {"id": row["id"] * 10 + i, "name": None}

    results = run(flat_map(function), batch_of([1, 2]), batch_size=4)
    assert [batch.num_rows for batch in results] == [4, 4, 2]
    assert [i for batch in results for i in batch["id"].to_pylist()] == [
        10,
        11,
        12,
        13,
        14,
        20,
        21,
        22,
        23,
        24,
    ]
    assert results[1].column("_event_time_ms").to_pylist() == [1000, 1001, 1001, 1001]


def test_flat_map_without_results_gives_nothing():
    assert run(flat_map(lambda row: ()), batch_of([1])) == []


def late_failure(row):
    yield row
    raise ValueError("late")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail, "step 'mine': function fail raised KeyError"),
        (late_failure, "step 'mine': function late_failure raised ValueError: late"),
        (lambda row: None, "step 'mine': the function returned NoneType, not an iterable of dicts"),
        (lambda row: row, "step 'mine': the function returned dict, not an iterable of dicts"),
        (lambda row: ["x"], "step 'mine': the function returned str, not a dict"),
    ],
)
def test_flat_map_mistakes_name_the_step(function, message):
    with pytest.raises(WeirError, match=message):
        run(flat_map(function), batch_of([1]))


def test_long_rows_leave_in_batches_of_bounded_bytes():
    """All in one batch would be 60 MB."""
    out = run(map_rows(lambda row: row | {"name": "x" * 20_000}), batch_of(range(3_000)), batch_size=32_768)
    assert [i for batch in out for i in batch.column("id").to_pylist()] == list(range(3_000))
    assert max(batch.nbytes for batch in out[1:]) <= BATCH_BYTES_MAX
    assert out[1].column("_event_time_ms").to_pylist()[0] == 1000 + out[0].num_rows


@pytest.mark.parametrize("operator", [map_rows, lambda function: flat_map(lambda row: [function(row)])])
def test_the_first_batch_of_long_rows_is_bounded_as_those_after_short_ones_are(operator):
    """Rows turn long without a sign: all of them in one batch would be 300 MB."""
    long = "x" * 3_000_000

    def function(row):
        return row | {"name": long if row["id"] < 50 or row["id"] >= 2_000 else "short"}

    out = run(operator(function), batch_of(range(2_050)), batch_size=32_768)
    assert [i for batch in out for i in batch.column("id").to_pylist()] == list(range(2_050))
    assert max(batch.nbytes for batch in out) <= BATCH_BYTES_MAX + 2 * len(long)


def apart(operator, batch):
    """Ids of what is left, and of the rows that were put aside."""
    operator.open(OperatorContext("job", "mine", 0, 0, 1))
    bad = []
    out = list(
        operator.process_apart(
            batch, lambda row, error: bad.append((row["id"][0].as_py(), str(error))) or True
        )
    )
    return [i for part in out for i in part.column("id").to_pylist()], bad


def test_rows_at_which_a_function_raises_are_put_aside_and_it_is_called_once_for_each():
    called = []

    def function(row):
        called.append(row["id"])
        if row["id"] % 2:
            raise ValueError("odd")
        return row

    ids, bad = apart(map_rows(function), batch_of(range(10)))
    assert (ids, [i for i, _ in bad], called) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9], list(range(10)))
    assert "ValueError: odd" in bad[0][1]


def test_rows_of_which_a_function_makes_something_else_than_declared_are_put_aside():
    ids, bad = apart(
        map_rows(lambda row: row | {"id": "x" if row["id"] == 2 else row["id"]}), batch_of([1, 2, 3])
    )
    assert (ids, [i for i, _ in bad]) == ([1, 3], [2])


def test_nothing_is_left_of_a_row_at_which_a_function_of_many_rows_raises_in_between():
    def function(row):
        yield row
        if row["id"] == 2:
            raise ValueError("half")
        yield row

    ids, bad = apart(flat_map(function), batch_of([1, 2, 3]))
    assert (ids, [i for i, _ in bad]) == ([1, 1, 3, 3], [2])
