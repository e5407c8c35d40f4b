"""Results of benchmarks: medians over repeats, bars, JSON files and tables."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
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

    def __str__(self) -> str:
        return f"{self.comparison} {format_figure(self.metric, self.bound)}"


@dataclass
class BenchmarkResult:
    """One benchmark: ``repeats`` holds one flat-ish dict of figures for each run."""

    name: str
    config: dict[str, object]
    repeats: list[dict[str, Any]]
    bars: Sequence[Bar] = ()
    command: str = ""
    machine: dict[str, object] = field(default_factory=machine_facts)

    def medians(self) -> dict[str, Any]:
        """Median of every number over the repeats; ``peak_rss_bytes_max`` is the largest; other values: the last run's."""
        return _medians(self.repeats)

    def bar_lines(self) -> list[dict[str, object]]:
        """Each bar with the median that it judges; one whose figure is missing is left out."""
        figures = self.medians()
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
        elif name.endswith("_max") and name.startswith("peak"):
            merged[name] = max(values)
        else:
            merged[name] = statistics.median(values)
    return merged


def write_json(path: Path, result: BenchmarkResult) -> None:
    """Write the result; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.unfinished")
    fresh.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    os.replace(fresh, path)


def format_figure(name: str, value: object) -> str:
    """A figure with its unit, which is in its name; bytes as MiB."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if "_bytes" in name and "per_second" not in name:
        return f"{value / 2**20:,.0f} MiB"
    if name.endswith("_ms"):
        return f"{value:,.2f} ms"
    if name.endswith("_s"):
        return f"{value:,.2f} s"
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.3f}"


def figure_rows(name: str, figures: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str, str]]:
    """Rows (label, metric name, text) of nested figures, for tables; lists are left out."""
    rows = []
    for key, value in figures.items():
        if isinstance(value, Mapping):
            rows += figure_rows(name, value, f"{prefix}{key}: ")
        elif not isinstance(value, list):
            rows.append((f"{prefix}{key}", key, format_figure(key, value)))
    return rows


def result_table(result: BenchmarkResult) -> Table:
    """All medians, with the bars and the range over the repeats."""
    count = len(result.repeats)
    table = Table(title=f"{result.name} (median of {count})" if count > 1 else result.name)
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("bar")
    lines = {str(line["metric"]): line for line in result.bar_lines()}
    bars = {bar.metric: bar for bar in result.bars}
    for label, metric, text in figure_rows(result.name, result.medians()):
        verdict = ""
        if label in lines:
            verdict = f"{bars[metric]}: {'met' if lines[label]['met'] else 'MISSED'}"
        table.add_row(label, text, verdict)
    return table
