"""Corpora are what they say, and both batch references count them alike."""

from __future__ import annotations

import json
from collections import Counter

import polars as pl
import pytest

from benchmarks.batch_reference import _duckdb, _polars
from benchmarks.corpora import CORPORA, corpus_directory


def at(row, path):
    for key in path:
        row = row[key]
    return row


@pytest.mark.parametrize("name", CORPORA)
def test_lines_have_both_wanted_values_and_references_count_them(name, tmp_path):
    corpus = CORPORA[name]
    directory = corpus_directory(corpus, 600, root=tmp_path)
    rows = [json.loads(line) for line in (directory / "part-00000.jsonl").read_text().splitlines()]
    assert len(rows) == 600
    expected = Counter(at(row, corpus.key_path) for row in rows if at(row, corpus.id_path) % 4)
    for query in (_polars, _duckdb):
        counts, _, _ = query(str(directory), list(corpus.id_path), list(corpus.key_path), 1)
        assert dict(counts.select("server_name", pl.col("count")).iter_rows()) == expected


def test_the_same_seed_makes_the_same_lines(tmp_path):
    one, other = (corpus_directory(CORPORA["github"], 300, root=tmp_path / name) for name in "ab")
    assert (one / "part-00000.jsonl").read_bytes() == (other / "part-00000.jsonl").read_bytes()
