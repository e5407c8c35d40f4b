"""What authors write who come from Polars, Flink or Bytewax, and Weir has not: each is told in one line."""

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import UserFunctionError

SCHEMA = {"k": str, "x": int, "tags": pl.List(pl.Int64), "price": pl.Decimal(10, 2)}


def source():
    return weir.Dataflow("job").source("rows", weir.JsonLines("none", schema=SCHEMA))


async def answered(row):
    return row


class ReturnsRow(weir.KeyedProcess):
    def process(self, key, row, context):
        return {"k": key[0]}


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: weir.sum(pl.col("x")),
        lambda rows: weir.count(pl.col("x") * 2),
        lambda rows: weir.quantile(pl.col("x"), 0.5),
        lambda rows: weir.largest(["x"], 2),
        lambda rows: rows.key_by("k").top("t", by=pl.col("x"), rows=1),
        lambda rows: (
            rows.key_by("k")
            .window(weir.tumbling("1s"))
            .aggregate("w", n=weir.count())
            .window_top("t", by=pl.col("n"))
        ),
        lambda rows: rows.explode("e", pl.col("tags")),
        lambda rows: rows.drop("d", ["x"]),
        lambda rows: rows.lookup("l", answered, pl.col("k"), {"found": str}),
        lambda rows: rows.key_by("k").join("j", rows.key_by("k"), between=(pl.col("x"), pl.col("x") + 1)),
    ],
)
def test_an_expression_in_place_of_a_column_is_refused(make):
    with pytest.raises(
        weir.GraphError, match=r"takes the name of a column, got (Expr|list); make what is computed"
    ):
        make(source())


@pytest.mark.parametrize("method", ["map", "flat_map", "map_batches"])
def test_async_functions_go_with_map_async(method):
    with pytest.raises(weir.GraphError, match="step 'm': answered is async; write def, or use map_async"):
        getattr(source(), method)("m", answered)


@pytest.mark.parametrize("method", ["count", "sum", "sink", "map", "top"])
@pytest.mark.parametrize(
    "windows",
    [
        lambda rows: rows.key_by("k").window(weir.tumbling("1s")),
        lambda rows: rows.window_all(weir.tumbling("1s")),
        lambda rows: rows.key_by("k").count_window(3),
    ],
)
def test_methods_of_streams_are_not_of_windows(windows, method):
    with pytest.raises(
        weir.GraphError, match=f"step 'rows': {method} is not of windows but of streams; first"
    ):
        getattr(windows(source()), method)
    assert not hasattr(windows(source()), "groupBy")


def test_a_process_that_returns_a_row_is_told_to_yield_it():
    step = source().key_by("k").process("step", ReturnsRow, {"k": str})
    with pytest.raises(
        UserFunctionError, match="not a dict of the columns; yield each dict, or return a list"
    ):
        testing.run(step, {"rows": [{"k": "a", "x": 1, "tags": [], "price": 1}]})


def test_deduplicate_by_decimals_says_how_to_go_by_them():
    with pytest.raises(
        weir.GraphError, match=r"column 'price', which is decimal128.* exactly, .* \* 100\).cast"
    ):
        source().key_by("k").deduplicate("t", keep="last", by="price")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda keyed: keyed.window(weir.tumbling("1s")).aggregate("a", "count"),
            r"""aggregate: 'count' has no name; write aggregate\("name", n=weir.count\(\)""",
        ),
        (lambda keyed: keyed.aggregate("a", weir.count()), "aggregate: .* has no name; write"),
        (lambda keyed: keyed.top("t", "x", 3), "top: "),
        (
            lambda keyed: keyed.top("t", by="x", rows=3, ascend=True),
            "no argument 'ascend'; did you mean 'ascending'",
        ),
        (lambda keyed: keyed.filter("f", where=pl.col("x") > 1), "filter: "),
        (lambda keyed: keyed.deduplicate("d", witin="1s"), "no argument 'witin'; did you mean 'within'"),
        (
            lambda keyed: keyed.window(weir.tumbling("1s"), lateness="1s"),
            "^window: there is no argument 'lateness'; did you mean 'allowed_lateness'",
        ),
        (
            lambda keyed: keyed.key_by("k", ownstage=True),
            "^key_by: there is no argument 'ownstage'; did you mean 'own_stage'",
        ),
        (lambda keyed: keyed.rebalance(parallelism=2), "^rebalance: there is no argument 'parallelism'"),
        (lambda keyed: keyed.drop("x"), "drop needs at least one column, after the name of the step"),
        (lambda keyed: keyed.select("x"), "select needs at least one column, after the name of the step"),
    ],
)
def test_arguments_that_a_step_has_not_got_are_told_in_one_line(make, said):
    with pytest.raises(weir.GraphError, match=said):
        make(source().key_by("k"))
