"""The Nexmark queries give what Spark SQL gives over the same events."""

import pytest

import weir
from benchmarks.nexmark_reference import comparable, equal_rows, expected, open_streams, write_streams
from benchmarks.nexmark_sql import SQL
from weir.examples import nexmark

#: Of event time: each event has a millisecond of its own, so that no two are the latest.
EVENTS, SEED, EVENTS_PER_SECOND = 20_000, 11, 200


@pytest.fixture(scope="module")
def views(spark, tmp_path_factory):
    """The session, with the events as views."""
    directory = tmp_path_factory.mktemp("nexmark")
    write_streams(directory, EVENTS, SEED, EVENTS_PER_SECOND)
    open_streams(spark, directory)
    return spark


def test_there_is_a_reference_for_every_query():
    assert set(nexmark.QUERIES) <= set(SQL)


@pytest.mark.spark
@pytest.mark.parametrize("query", nexmark.QUERIES)
def test_results_are_those_of_spark_sql(views, tmp_path, query):
    flow = nexmark.build(query, events=EVENTS, parallelism=2, seed=SEED, events_per_second=EVENTS_PER_SECOND)
    found = weir.run(flow, collect="out")["out"].to_polars()
    wanted = expected(views, query, tmp_path / "spark")
    assert wanted.height > 20 or query in ("q4", "q7", "q15")
    assert equal_rows(comparable(query, found), wanted)
