"""The Nexmark queries give what Spark SQL gives over the same events."""

import pytest

import weir
from benchmarks.nexmark_reference import SQL, equal_rows, expected, write_bids
from weir.examples import nexmark

EVENTS, SEED = 20_000, 11


@pytest.fixture(scope="module")
def bids(tmp_path_factory):
    path = tmp_path_factory.mktemp("nexmark") / "bids.parquet"
    write_bids(path, EVENTS, SEED)
    return path


def test_there_is_a_reference_for_every_query():
    assert set(SQL) == set(nexmark.QUERIES)


@pytest.mark.spark
@pytest.mark.parametrize("query", nexmark.QUERIES)
def test_results_are_those_of_spark_sql(spark, bids, tmp_path, query):
    flow = nexmark.build(query, events=EVENTS, parallelism=2, seed=SEED)
    found = weir.run(flow, collect="bid")["bid"].to_polars()
    wanted = expected(spark, query, bids, tmp_path / "spark")
    assert wanted.height > 20
    assert equal_rows(found, wanted)


def test_an_unknown_query():
    with pytest.raises(weir.GraphError, match="query is 'q99'; there are q0, q1"):
        nexmark.build("q99")
