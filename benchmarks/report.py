"""From JSON files of results to tables of the docs: what stands between two markers of a page is replaced.

docs/performance.md has the headlines, docs/measurements.md every bar and the command of each result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.nexmark_bars import FLINK_PER_CORE
from benchmarks.results import figure_rows
from weir.errors import InputError

#: Characters of the longest bar of a chart.
_CHART_WIDTH = 60
BEGIN, END = "<!-- tables: made by `python -m benchmarks report` -->", "<!-- end of tables -->"
#: Of the part of docs/performance.md that shows other stream processors.
PEERS = ("<!-- peers: made by `python -m benchmarks report` -->", "<!-- end of peers -->")


#: What docs/performance.md shows of each subject: words for a reader, the result's name, its figure.
HEADLINES = (
    ("JSON lines, filter, count by key: rows/s", "throughput", "events_per_second"),
    ("the same, of Polars' batch query", "throughput", "ratio_to_reference"),
    ("nested JSON of Wikipedia, of Polars", "throughput_wikipedia", "ratio_to_polars"),
    ("the same, of DuckDB", "throughput_wikipedia", "ratio_to_duckdb"),
    ("CSV, of Polars", "throughput_csv", "ratio_to_polars"),
    ("Parquet with long texts, of Polars", "throughput_parquet", "ratio_to_polars"),
    ("Parquet written exactly once, of Polars", "sinks", "ratio_to_polars"),
    ("Kafka, of its client library alone", "kafka", "ratio_to_client"),
    ("a Python function per row: rows/s", "functions", "per_record_events_per_second"),
    ("a Python function per batch: rows/s", "functions", "per_batch_events_per_second"),
    ("state of ten times the cache: rows/s", "state", "events_per_second"),
    ("latency at 10,000 rows/s, half of the rows", "latency_10000", "p50_ms"),
    ("latency at 10,000 rows/s, p99", "latency_10000", "p99_ms"),
    ("processors at 10,000 rows/s", "latency_10000", "cores"),
    ("processors of an idle job", "latency_0", "cores"),
    ("checkpoint of 1 GB of state", "checkpoint_1000_mb", "duration_ms"),
    ("rescale with 1 GB of state: silence of the output", "rescale_migrate_1000_mb", "output_gap_ms_max"),
    ("kill -9 with 1 GB of state: until the first output", "recovery_1000_mb", "first_output_ms"),
    ("join with 1 GB of rows: silence in a rescale", "joins_1000_mb", "output_gap_ms_max"),
    ("question for one key, p99", "queries", "p99_ms"),
    ("state in Cassandra, of RocksDB", "cassandra", "ratio_to_rocksdb"),
    ("start of a job: until the first row", "start_up", "first_event_s"),
)


def headlines(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of `HEADLINES`, and below them each other bar that was missed."""
    rows = ["| what | measured | bar | |", "| --- | ---: | --- | --- |"]
    words = {(name, label): what for what, name, label in HEADLINES}
    found = {
        (document["name"], label): (value, verdict.rpartition(": "))
        for document in documents
        for label, value, verdict in figure_rows(document)
        if verdict
    }
    missed = [key for key, (_, verdict) in found.items() if verdict[2] != "met" and key not in words]
    for name, label in [*(key for key in words if key in found), *missed]:
        value, (bound, _, met) = found[name, label]
        rows.append(f"| {words.get((name, label), f'{name}: `{label}`')} | {value} | {bound} | {met} |")
    return "\n".join(rows) + "\n"


def update_page(
    page: Path,
    results: Path,
    content: Callable[[Sequence[Mapping[str, Any]]], str],
    markers: tuple[str, str] = (BEGIN, END),
) -> int:
    """Make what stands between the markers anew: `tables` or `headlines`; returns the number of results.

    Raises:
        InputError: there are no results, or the page has no markers.
    """
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    if not documents:
        raise InputError(f"no results in {results}; run: make bench")
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    first, last = markers
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise InputError(f"{page} needs the lines {first!r} and {last!r}, between which the tables go")
    fresh = page.with_name(f".{page.name}.unfinished")
    fresh.write_text(f"{before}{first}\n\n{content(documents)}\n{last}{after}", encoding="utf-8")
    os.replace(fresh, page)
    return len(documents)


def tables(documents: Sequence[Mapping[str, Any]]) -> str:
    """All bars, then how each result was made; the other figures stay in the JSON files.

    What must be 0 and is (``lost``) stands in one line for all benchmarks, and in a row where it is not.
    """
    bars = ["| benchmark | figure | bar | measured | |", "| --- | --- | --- | ---: | --- |"]
    runs = ["| benchmark | command | runs | measured | load before |", "| --- | --- | ---: | --- | ---: |"]
    zeros: dict[str, list[str]] = {}
    for document in documents:
        name, machine = document["name"], document["machine"]
        for label, value, verdict in figure_rows(document):
            # Those of queries stand in a table of their own.
            if verdict and "queries" not in document:
                bound, _, met = verdict.rpartition(": ")
                if (bound, value, met) == ("at most 0", "0", "met"):
                    zeros.setdefault(name, []).append(f"`{label}`")
                    continue
                bars.append(f"| {name} | `{label}` | {bound} | {value} | {met} |")
        runs.append(
            f"| {name} | `{document['command']}` | {len(document['repeats'])} | {document['measured'][:10]} "
            f"| {machine['load_average_1_min']} |"
        )
    queries = [queries_section(document) for document in documents if "queries" in document]
    parts = ["\n".join(bars), *_zero_lines(zeros), *queries, _machines(documents), "\n".join(runs)]
    return "\n\n".join(parts) + "\n"


def _zero_lines(zeros: Mapping[str, Sequence[str]]) -> list[str]:
    """A paragraph for each set of figures that must be 0, and are, with its benchmarks."""
    benchmarks: dict[tuple[str, ...], list[str]] = {}
    for name, labels in zeros.items():
        benchmarks.setdefault(tuple(dict.fromkeys(labels)), []).append(name)
    return [
        f"0, as it must be: {', '.join(labels)} of {', '.join(names)}."
        for labels, names in benchmarks.items()
    ]


def queries_section(document: Mapping[str, Any]) -> str:
    """A table of the queries of a benchmark, and a chart of their events per second and core."""
    bounds = {line["metric"]: line for line in document["bars"]}
    rows = [
        "| query | events/s | bar | | events/s per core | Flink's | times | times, of all events | CPU s per million "
        "| state at most | rows | as Spark SQL |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, figures in document["queries"].items():
        line = bounds.get(f"queries: {name}: events_per_second")
        bound, met = (f"{line['bound']:,.0f}", "met" if line["met"] else "MISSED") if line else ("", "")
        equal = {True: "equal", None: "not compared"}.get(figures.get("equal_to_reference"), "DIFFERENT")
        speed, flink = figures["events_per_second_per_core"], FLINK_PER_CORE.get(name)
        speed_of_all = figures.get("auction_events_per_second_per_core", speed)
        published, times, times_of_all = (
            (f"{flink:,}", f"{speed / flink:.1f}", f"{speed_of_all / flink:.1f}") if flink else ("", "", "")
        )
        state = f"{figures.get('peak_state_bytes', 0) / 2**20:,.0f} MiB"
        rows.append(
            f"| {name} | {figures['events_per_second']:,.0f} | {bound} | {met} "
            f"| {speed:,.0f} | {published} | {times} | {times_of_all} "
            f"| {figures['cpu_seconds_per_million_events']:.2f} | {state} | {figures['rows']:,} | {equal} |"
        )
    speeds = {name: item["events_per_second_per_core"] for name, item in document["queries"].items()}
    most = max(speeds.values(), default=1.0)
    chart = [
        f"{name:<4}{'█' * max(1, round(_CHART_WIDTH * speed / most))} {speed:,.0f}"
        for name, speed in speeds.items()
    ]
    source = (
        "Flink's: events per second and core of Flink 1.13 with RocksDB, as the repository of its Nexmark benchmark "
        "publishes them, on other machines. It counts all events that its generator makes; ours are those of the "
        "streams that a query reads (q3 and q8: 4 of 50), and *of all events* those of the whole auction."
    )
    return "\n".join([*rows, "", source, "", "Events per second and core:", "", "```", *chart, "```"])


def _machines(documents: Sequence[Mapping[str, Any]]) -> str:
    """One sentence for each kind of machine and set of packages."""
    kinds = {
        f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        for machine in (document["machine"] for document in documents)
    }
    return "\n".join(f"Measured on {kind}; medians of the runs." for kind in sorted(kinds))
