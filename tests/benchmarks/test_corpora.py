"""Corpora are what they say, and both batch references count them alike."""

from __future__ import annotations

import csv
import json
from collections import Counter

import polars as pl
import pytest

from benchmarks.batch_reference import _duckdb, _duckdb_csv, _polars, _polars_csv
from benchmarks.corpora import CORPORA, corpus_directory


def at(row, path):
    for key in path:
        row = row[key]
    return row


@pytest.mark.parametrize("name", [name for name in CORPORA if name != "csv"])
def test_lines_have_both_wanted_values_and_references_count_them(name, tmp_path):
    corpus = CORPORA[name]
    directory = corpus_directory(corpus, 600, root=tmp_path)
    rows = [json.loads(line) for line in (directory / "part-00000.jsonl").read_text().splitlines()]
    assert len(rows) == 600
    expected = Counter(at(row, corpus.key_path) for row in rows if at(row, corpus.id_path) % 4)
    for query in (_polars, _duckdb):
        counts, _, _ = query(str(directory), list(corpus.id_path), list(corpus.key_path), 1)
        assert dict(counts.select("server_name", pl.col("count")).iter_rows()) == expected


def test_csv_has_texts_with_newlines_and_references_count_it(tmp_path):
    directory = corpus_directory(CORPORA["csv"], 600, root=tmp_path)
    text = (directory / "part-00000.csv").read_text()
    rows = list(csv.DictReader(text.splitlines(keepends=True), strict=True))
    assert len(rows) == 600 < text.count("\n")
    expected = Counter(row["server_name"] for row in rows if int(row["id"]) % 4)
    for query in (_polars_csv, _duckdb_csv):
        counts, _, _ = query(str(directory), ["id"], ["server_name"], 1)
        assert dict(counts.select("server_name", pl.col("count")).iter_rows()) == expected


def test_the_same_seed_makes_the_same_lines(tmp_path):
    one, other = (corpus_directory(CORPORA["github"], 300, root=tmp_path / name) for name in "ab")
    assert (one / "part-00000.jsonl").read_bytes() == (other / "part-00000.jsonl").read_bytes()
