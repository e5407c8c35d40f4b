"""200 queries of the generator, against DuckDB; a night's run has 10,000: ``benchmarks sql --made-up 10000``."""

import pytest

from benchmarks.sql.judging import differing, made_up_queries

# It keeps all processors busy for most of a minute.
pytestmark = pytest.mark.scenario

_SEED = 3


def test_made_up_queries_say_what_duckdb_says():
    told: list[str] = []
    queries = list(made_up_queries(_SEED, 0, 200))
    found = differing(queries, _SEED, lambda line, _: told.append(line))
    assert found == 0, [line for line in told if line.startswith("DIFFERS")]
