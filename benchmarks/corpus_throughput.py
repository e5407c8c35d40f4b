"""The throughput job on lines that people have, beside batch queries of Polars and DuckDB on the same files in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.batch_reference import run_batch
from benchmarks.corpora import CORPORA, corpus_directory
from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY
from benchmarks.results import Bar, BenchmarkResult
from benchmarks.stored_counts import compare_counts, stored_counts

_EXACT = (Bar("lost", "at most", 0), Bar("duplicated", "at most", 0))
BARS = (Bar("ratio_to_polars", "at least", 1.0), Bar("ratio_to_duckdb", "at least", 0.7), *_EXACT)
CSV_BARS = (Bar("ratio_to_polars", "at least", 0.8), *_EXACT)
_THREADS = 2


@dataclass(frozen=True)
class CorpusOptions:
    """Command-line options."""

    #: One of ``CORPORA``.
    corpus: str
    events: int = 1_000_000
    repeat: int = 3
    data_root: Path = DATA_DIRECTORY


def run(options: CorpusOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the job and both references ``repeat`` times, in turn.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: the counts are wrong.
        ClusterError: the job did not finish.
    """
    corpus = CORPORA[options.corpus]
    source = corpus_directory(
        corpus,
        options.events,
        root=options.data_root,
        on_part=lambda part, parts: report("generating the input", part / parts),
    )
    runs = [
        _one_run(options, source, f"run {number} of {options.repeat}", report)
        for number in range(1, options.repeat + 1)
    ]
    size_bytes = sum(path.stat().st_size for path in source.iterdir())
    config = {
        "job": "jobs.throughput",
        "input": options.corpus,
        "line_bytes_mean": size_bytes / options.events,
    }
    bars = CSV_BARS if corpus.records else BARS
    return BenchmarkResult(f"throughput_{options.corpus}", config, runs, bars)


def _one_run(
    options: CorpusOptions, source: Path, label: str, report: Callable[[str, float], None]
) -> dict[str, Any]:
    corpus = CORPORA[options.corpus]
    paths: dict[str, object] = {"id_path": ".".join(corpus.id_path), "key_path": ".".join(corpus.key_path)}
    if corpus.records is not None:
        paths = {"form": "csv"}
    with tempfile.TemporaryDirectory(prefix="weir-corpus-") as name:
        directory = Path(name)
        report(f"{label}: engine", 0.0)
        setup = EngineSetup(
            "jobs.throughput",
            {"input": source, "parallelism": 2, "sink": "blackhole", **paths},
            settings={"taskManager.state_flush_interval_ms": 1000, "taskManager.operator_quota": 32},
        )
        engine = run_engine(
            setup, directory / "cluster", lambda events: report(f"{label}: engine", events / options.events)
        )
        figures = engine.figures()
        found = stored_counts(directory / "cluster")
        for reference in ("polars", "duckdb"):
            report(f"{label}: {reference}", 0.0)
            counts = directory / f"{reference}.parquet"
            facts = run_batch(
                reference, source, corpus.id_path, corpus.key_path, counts, _THREADS, corpus.suffix
            )
            difference = compare_counts(pl.read_parquet(counts), found)
            difference.check(f"final counts, beside those of {reference}")
            figures |= {"lost": difference.lost, "duplicated": difference.duplicated}
            facts["events_per_second"] = options.events / facts["seconds"]
            figures[reference] = facts
            figures[f"ratio_to_{reference}"] = figures["events_per_second"] / facts["events_per_second"]
        return figures
