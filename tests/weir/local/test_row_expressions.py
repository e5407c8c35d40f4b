"""Which Polars expressions a step takes: those that make one value of each row, whatever else is in the batch."""

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

import weir
from weir import testing

SCHEMA = {
    "x": int,
    "y": int,
    "k": str,
    "tags": pl.List(pl.Int64),
    "who": weir.Nullable(pl.Struct({"name": pl.String, "age": pl.Int64})),
}
ROWS = [
    {"x": 1, "y": 5, "k": "a", "tags": [3, 1, 3], "who": {"name": "ann", "age": 40}},
    {"x": 2, "y": 6, "k": "b", "tags": [], "who": None},
    {"x": 9, "y": 0, "k": "a", "tags": [2], "who": {"name": "bob", "age": 7}},
]
c, element = pl.col, pl.element


def source(flow):
    return flow.source("rows", weir.JsonLines("none", schema=SCHEMA))


def computed(*expressions, **named):
    """Results of with_columns over batches of one row each."""
    flow = weir.Dataflow("job")
    source(flow).with_columns("step", *expressions, **named).sink("out", weir.Collect())
    with testing.start(flow) as job:
        for row in ROWS:
            job.push("rows", [row])
        return job.rows("out").to_polars()


def frame():
    types = {name: getattr(dtype, "dtype", dtype) for name, dtype in SCHEMA.items()}
    return pl.DataFrame(ROWS, schema=types)


@pytest.mark.parametrize(
    "expression",
    [
        c("tags").list.unique(maintain_order=True),
        c("tags").list.reverse(),
        c("tags").list.eval(element().rank()),
        c("tags").list.agg(element().mean()),
        c("tags").list.filter(element() > element().mean()),
        c("tags").list.eval(element() * 2).list.sum() + c("x"),
        pl.concat_list("x", "y").list.to_array(2).arr.eval(element().sort()),
        c("k").is_in(pl.Series([["a"]])),
        c("k").replace_strict(["a", "b"], [1, 2], default=None),
        c("who").struct.with_fields(older=pl.field("age") + 1),
        pl.sum_horizontal(cs.integer()),
        pl.struct(pl.all()).struct.json_encode(),
    ],
    ids=str,
)
def test_an_expression_over_a_row_is_what_polars_makes_of_all_rows(expression):
    expected = frame().select(out=expression)["out"]
    assert computed(out=expression)["out"].to_list() == expected.to_list()


def test_several_columns_are_those_of_the_job():
    found = computed((cs.integer() + 1).name.suffix("_more"))
    assert found.columns[5:] == ["x_more", "y_more"]
    assert computed(pl.all().is_null()).columns == list(SCHEMA)
    assert computed(c("who").struct.field("name", "age")).select("name", "age").rows() == [
        ("ann", 40),
        (None, None),
        ("bob", 7),
    ]


@pytest.mark.parametrize(
    "expression",
    [
        c("x", "y").sum().name.suffix("_sum"),
        cs.integer().cum_sum().name.suffix("_sum"),
        c(pl.Int64).shift(1).name.suffix("_before"),
        c("tags").list.unique().count(),
        c("tags").sort().list.unique(),
        c("x").cumulative_eval(element().sum()),
        c("x").is_in(c("y").implode()),
        c("x") + pl.lit(pl.Series([1, 2, 3])),
        c("who").struct.with_fields(age=pl.field("age").sum()),
        c("who").struct.field("name", "age").max(),
    ],
    ids=str,
)
def test_an_expression_over_several_rows_is_refused(expression):
    with pytest.raises(weir.GraphError, match=r"step 'step': .* depends on the other rows of a batch"):
        source(weir.Dataflow("job")).with_columns("step", expression)


@pytest.mark.parametrize(
    "expression",
    [
        c("x").drop_nulls(),
        c("x").filter(c("y") > 1) + 1,
        c("tags").explode(),
        pl.when(c("x") > 1).then(c("x").drop_nulls()),
        pl.all().drop_nulls(),
    ],
    ids=str,
)
def test_an_expression_that_changes_the_number_of_rows_is_refused(expression):
    with pytest.raises(
        weir.GraphError, match=r"step 'step': .* has not one value for each row; leave rows out"
    ):
        source(weir.Dataflow("job")).select("step", expression)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ([c("k"), c("who")], ["k", "who"]),
        ([pl.all()], list(SCHEMA)),
        ([pl.exclude("tags", "who")], ["x", "y", "k"]),
        ([cs.integer(), "who"], ["x", "y", "who"]),
        ([c("y", "k")], ["y", "k"]),
        ([c("k").alias("k")], ["k"]),
    ],
    ids=["columns", "all", "but_some", "by_type", "at_once", "under_its_name"],
)
def test_columns_that_are_only_chosen_are_as_nullable_as_before(columns, names):
    rows = source(weir.Dataflow("job"))
    assert rows.select("step", *columns).schema.equals(pa.schema([rows.schema.field(name) for name in names]))


def test_a_changelog_keeps_its_changes_however_they_are_chosen():
    top = source(weir.Dataflow("job")).key_by("k").top("top", by="x", rows=1)
    for number, column in enumerate((c("_change"), c("_change").alias("_change"), pl.exclude("k", "x"))):
        assert top.select(f"step{number}", "x", column).is_changelog
    with pytest.raises(weir.GraphError, match="step 'step': without column '_change'"):
        top.select("step", change=c("_change"))


def test_a_selector_that_chooses_nothing_is_told():
    with pytest.raises(
        weir.GraphError, match=r"step 'step': .* chooses no column; there are x, y, k, tags, who"
    ):
        source(weir.Dataflow("job")).select("step", cs.duration())
