"""Nexmark in SQL: every query becomes a job, and some have the builder's rows; all of them: ``benchmarks sql``."""

from pathlib import Path

import polars as pl
import pytest

import weir
from benchmarks.sql.job import build
from benchmarks.sql.nexmark_texts import TEXTS
from weir.examples import nexmark


def test_every_query_is_there():
    assert set(TEXTS) == set(nexmark.QUERIES)


@pytest.mark.parametrize("query", TEXTS)
def test_every_query_becomes_a_job(query: str):
    assert build(query).build().nodes


@pytest.mark.parametrize("query", ["q2", "q5", "q8", "q11", "q13", "q14", "q21"])
def test_rows_are_those_of_the_builder(query: str, tmp_path: Path):
    found = []
    for name, make in (("sql", build), ("builder", nexmark.build)):
        weir.run(make(query, events=3_000, events_per_second=300, output=str(tmp_path / name)))
        rows = pl.read_parquet(tmp_path / name / "*.parquet")
        found.append(rows.sort(rows.columns))
    assert found[0].height > 0
    assert found[0].equals(found[1])
