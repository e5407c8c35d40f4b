"""Results of benchmarks: medians over repeats, bars, JSON files and tables."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from benchmarks.machine import machine_facts
from weir.errors import WeirError


class BenchmarkError(WeirError):
    """A benchmark computed something wrong: its figures mean nothing."""


@dataclass(frozen=True)
class Bar:
    """What a figure must reach."""

    metric: str
    comparison: Literal["at least", "at most"]
    bound: float

    def met(self, value: float) -> bool:
        """Whether ``value`` reaches it."""
        return value >= self.bound if self.comparison == "at least" else value <= self.bound


#: Figures that are 0 unless a result is wrong: how many rows, counts or cases are.
WRONG_FIGURES = frozenset(
    {"lost", "duplicated", "reordered", "bad_missed", "out_of_order", "wrong", "wrong_counts"}
)


def what_is_wrong(document: Mapping[str, Any]) -> str:
    """What a result's document has of wrong results, in any of its runs; empty if all are right.

    A bar that is missed says that something is slow or large, and is nothing wrong.
    """
    found: dict[str, float] = {}
    for run in (document, *document["repeats"]):
        for label, value in _flat({key: run[key] for key in run if key not in _NOT_FIGURES}):
            if label.rpartition(": ")[2] in WRONG_FIGURES and isinstance(value, int | float) and value > 0:
                found[label] = max(value, found.get(label, 0))
    return ", ".join(f"{label} is {value:g}" for label, value in sorted(found.items()))


@dataclass
class BenchmarkResult:
    """One benchmark: ``repeats`` holds one flat-ish dict of figures for each run."""

    name: str
    config: Mapping[str, object]
    repeats: list[dict[str, Any]]
    bars: Sequence[Bar] = ()
    command: str = ""
    machine: dict[str, object] = field(default_factory=machine_facts)

    def medians(self) -> dict[str, Any]:
        """Median of every number over the repeats, the largest of ``peak_...``; the last run's of other values."""
        return _medians(self.repeats)

    def bar_lines(self) -> list[dict[str, object]]:
        """Each bar with the median that it judges; one whose figure is missing is left out.

        A nested figure is named as in tables: ``queries: q0: events_per_second``.
        """
        figures = dict(_flat(self.medians()))
        return [
            {
                "metric": bar.metric,
                "comparison": bar.comparison,
                "bound": bar.bound,
                "value": figures[bar.metric],
                "met": bar.met(figures[bar.metric]),
            }
            for bar in self.bars
            if figures.get(bar.metric) is not None
        ]

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "name": self.name,
            "command": self.command,
            "measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "machine": self.machine,
            "config": self.config,
            **self.medians(),
            "bars": self.bar_lines(),
            "repeats": self.repeats,
        }


def _medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run[name] for run in runs if run.get(name) is not None]
        if not values:
            merged[name] = None
        elif all(isinstance(value, Mapping) for value in values):
            merged[name] = _medians(values)
        elif any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            merged[name] = values[-1]
        elif name.startswith("peak_"):
            merged[name] = max(values)
        else:
            median = statistics.median(values)
            whole = all(isinstance(value, int) for value in values) and float(median).is_integer()
            merged[name] = int(median) if whole else median
    return merged


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write what :meth:`BenchmarkResult.as_json` returned; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.unfinished")
    fresh.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    os.replace(fresh, path)


def format_figure(name: str, value: object) -> str:
    """A figure with its unit, which is in its name; bytes as MiB."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if "_bytes" in name and "per_second" not in name:
        return f"{value / 2**20:,.0f} MiB"
    if name.endswith(("_ms", "_ms_max")):
        return f"{value:,.2f} ms"
    if name.endswith(("_s", "_s_max")):
        return f"{value:,.2f} s"
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.3f}"


#: Keys of a result's document that are not figures.
_NOT_FIGURES = frozenset({"name", "command", "measured", "machine", "config", "bars", "repeats"})


def figure_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows (figure, median, bar) of one result, nested figures flattened; lists are left out."""
    bars = {line["metric"]: line for line in document.get("bars", [])}
    rows = []
    for label, value in _flat({key: value for key, value in document.items() if key not in _NOT_FIGURES}):
        verdict = ""
        if label in bars:
            line = bars[label]
            bound = format_figure(label, line["bound"])
            verdict = f"{line['comparison']} {bound}: {'met' if line['met'] else 'MISSED'}"
        rows.append((label, format_figure(label, value), verdict))
    return rows


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}: ")
        elif not isinstance(value, list):
            yield f"{prefix}{key}", value


def result_table(document: Mapping[str, Any]) -> Table:
    """All medians, with the bars."""
    count = len(document["repeats"])
    table = Table(title=f"{document['name']} (median of {count} runs)" if count > 1 else document["name"])
    table.add_column("figure")
    table.add_column("value", justify="right", overflow="fold")
    table.add_column("bar")
    for row in figure_rows(document):
        table.add_row(*row)
    return table
