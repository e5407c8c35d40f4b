import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.author.operator import OperatorContext
from weir.errors import WeirError
from weir.keys.division import with_key_hash
from weir.operators.registry import create_operator
from weir.operators.stateless.expressions import FilterOperator, PassThroughOperator, WithColumnsOperator
from weir.rows.records import KEY_HASH_COLUMN, system_schema, with_system_columns
from weir.specs import FilterSpec, PassThroughSpec, UnionSpec, WithColumnsSpec

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def batch_of(ids, names=None, *, key_hash=False):
    names = [f"n{i}" for i in ids] if names is None else names
    user = pa.RecordBatch.from_pydict({"id": ids, "name": names}, schema=SCHEMA)
    rows = np.arange(len(ids), dtype=np.int64)
    batch = with_system_columns(user, 1000 + rows, 2000 + rows)
    if key_hash:
        batch = batch.append_column(
            pa.field("_key_hash", pa.uint64(), nullable=False), pa.array(rows.astype(np.uint64) + 7)
        )
    return batch


def opened(operator, name="mine"):
    operator.open(OperatorContext("job", name, 0, 0, 1))
    return operator


def filtered(predicate, batch):
    return list(opened(FilterOperator(FilterSpec(predicate))).process(batch))


def widened(batch, *expressions):
    (result,) = opened(WithColumnsOperator(WithColumnsSpec(expressions))).process(batch)
    return result


def test_filter_keeps_matching_rows_with_all_system_columns():
    batch = batch_of(list(range(8)), key_hash=True)
    (result,) = filtered(pl.col("id") % 4 != 0, batch)
    assert result.schema == batch.schema
    assert result.to_pylist() == [row for row in batch.to_pylist() if row["id"] % 4]


def test_filter_hands_over_the_same_batch_if_all_rows_match():
    batch = batch_of([1, 2, 3])
    (result,) = filtered(pl.col("id") > 0, batch)
    assert result is batch


def test_filter_gives_nothing_if_no_row_matches():
    assert filtered(pl.col("id") > 9, batch_of([1, 2, 3])) == []


def test_filter_counts_null_as_false():
    batch = batch_of([1, 2, 3], ["a", None, "b"])
    (result,) = filtered(pl.col("name") != "b", batch)
    assert result.column("id").to_pylist() == [1]
    assert filtered(pl.col("name") != "x", batch_of([1], [None])) == []


@pytest.mark.parametrize(("value", "rows"), [(True, [3]), (False, [])])
def test_filter_by_a_literal(value, rows):
    assert [b.num_rows for b in filtered(pl.lit(value), batch_of([1, 2, 3]))] == rows


def test_filter_by_a_selector_sees_all_user_columns():
    batch = batch_of([1, 2, 3], ["a", None, "b"])
    (result,) = filtered(pl.all_horizontal(cs.all().is_not_null()), batch)
    assert result.column("id").to_pylist() == [1, 3]


def test_filter_of_a_slice_and_by_event_time():
    batch = batch_of(list(range(10))).slice(4, 4)
    (result,) = filtered(pl.col("_event_time_ms") >= 1006, batch)
    assert result.column("id").to_pylist() == [6, 7]
    assert result.column("name").to_pylist() == ["n6", "n7"]


def test_filter_error_names_the_step():
    batch = batch_of([1], ["x"])
    with pytest.raises(WeirError, match=r"step 'mine': .* failed"):
        filtered(pl.col("name").cast(pl.Int64) > 1, batch)


def test_with_columns_adds_and_replaces_before_the_system_columns():
    batch = batch_of([1, 2], key_hash=True)
    result = widened(batch, (pl.col("id") * 2).alias("double"), pl.col("name").str.to_uppercase())
    assert result.schema.names == ["id", "name", "double", "_event_time_ms", "_ingest_time_us", "_key_hash"]
    assert result.schema.field("name").type == pa.string()
    assert result.to_pydict() == {
        "id": [1, 2],
        "name": ["N1", "N2"],
        "double": [2, 4],
        "_event_time_ms": [1000, 1001],
        "_ingest_time_us": [2000, 2001],
        "_key_hash": [7, 8],
    }


def test_with_columns_literals_are_repeated_for_every_row():
    result = widened(batch_of([1, 2, 3]), pl.lit("x").alias("tag"), pl.lit(1, pl.Int8).alias("one"))
    assert result.column("tag").to_pylist() == ["x"] * 3
    assert result.schema.field("one").type == pa.int8()


def test_with_columns_expressions_see_the_columns_before_the_step():
    result = widened(batch_of([1, 2]), pl.col("id") + 10, (pl.col("id") + 100).alias("other"))
    assert result.column("id").to_pylist() == [11, 12]
    assert result.column("other").to_pylist() == [101, 102]


def test_with_columns_nested_strings_have_the_builder_s_type():

    expressions = (pl.col("name").str.split("n").alias("parts"), pl.struct("id", "name").alias("both"))
    spec = WithColumnsSpec(expressions)
    result = widened(batch_of([1, 2]), *expressions)
    expected = spec.output_schema("s", (SCHEMA,))
    assert result.schema.types[:4] == expected.types
    assert result.column("parts").to_pylist() == [["", "1"], ["", "2"]]


def test_with_columns_keeps_one_schema_over_batches_and_slices():
    operator = opened(WithColumnsOperator(WithColumnsSpec((pl.col("name").str.slice(0, 1).alias("c"),))))
    batch = batch_of(list(range(6)))
    schemas = {str(r.schema) for part in (batch, batch.slice(2, 1)) for r in operator.process(part)}
    assert len(schemas) == 1


def test_with_columns_error_names_the_step():
    with pytest.raises(WeirError, match="step 'mine': an expression failed"):
        widened(batch_of([1], ["x"]), pl.col("name").cast(pl.Int64))


@pytest.mark.parametrize("spec", [PassThroughSpec(), UnionSpec()])
def test_pass_through_hands_over_the_same_batch(spec):
    batch = batch_of([1])
    (result,) = PassThroughOperator(spec).process(batch)
    assert result is batch


def test_a_union_gives_rows_of_one_schema():
    """A column may be null if it may be so in one of the inputs; metadata of files go."""
    flow = weir.Dataflow("union")
    streams = [
        flow.source(n, weir.JsonLines(n, schema={"id": t}))
        for n, t in (("a", int), ("b", weir.Nullable(int)))
    ]
    streams[0].union("all", streams[1]).sink("out", weir.Collect())
    node = flow.build().node("all")
    union = create_operator(node.spec)
    union.open(OperatorContext("job", "all", 2, 0, 1, schema=node.schema))
    for nullable, metadata in ((False, None), (True, {"pandas": "{}"}), (True, None)):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=nullable)], metadata)
        given = with_system_columns(pa.record_batch([[1, 2]], schema=schema), 1, 2)
        (out,) = union.process(given)
        assert out.schema.equals(system_schema(node.schema), check_metadata=True)
        assert out.to_pylist() == given.to_pylist()
        (hashed,) = union.process(with_key_hash(given, ["id"])[0])
        assert hashed.drop_columns([KEY_HASH_COLUMN]).schema.equals(out.schema)
    rows = {"a": [{"id": 1}], "b": [{"id": None}]}
    assert testing.run(flow, rows)["out"].to_dicts() == [{"id": 1}, {"id": None}]


def test_names_are_given_without_polars_and_stand_in_the_order_of_the_expressions():
    batch = batch_of([3, 1], ["x", None])
    made = widened(
        batch, (pl.col("id") + 1).alias("next"), pl.col("name").alias("title"), pl.col("id").alias("name")
    )
    assert made.schema.names[:4] == ["id", "name", "next", "title"]
    assert made.select(range(4)).to_pydict() == {
        "id": [3, 1],
        "name": [3, 1],
        "next": [4, 2],
        "title": ["x", None],
    }
    only = widened(batch, pl.col("name").alias("title"))
    assert only.column("title").buffers()[2].address == batch.column("name").buffers()[2].address


def test_a_step_takes_rows_after_those_that_it_could_not_take():
    step = opened(
        WithColumnsOperator(WithColumnsSpec((pl.col("name").cast(pl.Int64), pl.col("id").alias("of"))))
    )
    for names in (["x"], ["7"], ["y"]):
        if names == ["7"]:
            (made,) = step.process(batch_of([1], names))
            assert made.to_pylist()[0]["name"] == 7
        else:
            with pytest.raises(WeirError, match="an expression failed"):
                list(step.process(batch_of([1], names)))
