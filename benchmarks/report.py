"""From JSON files of results to the tables of docs/performance.md: what stands between two markers is replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.nexmark_bars import FLINK_PER_CORE
from benchmarks.results import figure_rows
from weir.errors import InputError

#: Characters of the longest bar of a chart.
_CHART_WIDTH = 60
BEGIN, END = "<!-- tables: made by `python -m benchmarks report` -->", "<!-- end of tables -->"


def update_page(page: Path, results: Path) -> int:
    """Make the tables anew; returns the number of results.

    Raises:
        InputError: there are no results, or the page has no markers.
    """
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    if not documents:
        raise InputError(f"no results in {results}; run: make bench")
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{page} needs the lines {BEGIN!r} and {END!r}, between which the tables go")
    fresh = page.with_name(f".{page.name}.unfinished")
    fresh.write_text(f"{before}{BEGIN}\n\n{tables(documents)}\n{END}{after}", encoding="utf-8")
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
