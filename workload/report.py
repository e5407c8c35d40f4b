"""Numbers of an analysis: the table on the terminal and ``summary.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from workload.analysis import PHASES, FileAnalysis

SUMMARY_NAME = "summary.json"
SUMMARY_FORMAT = "weir-latency-summary/1"


def milliseconds_text(value_ms: float) -> str:
    """Write a latency with about four significant digits and at most three decimals."""
    decimals = 3 if abs(value_ms) < 10 else 2 if abs(value_ms) < 100 else 1 if abs(value_ms) < 1000 else 0
    return f"{value_ms:,.{decimals}f}"


def summary_table(analyses: Sequence[FileAnalysis]) -> Table:
    """Return the table that ``plot.py`` prints: one row per file."""
    table = Table(
        title="Latency in ms, exact percentiles by nearest rank",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("file", overflow="fold")
    for heading in ("events", "events/s", "p50", "p95", "p99", "max", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for analysis in analyses:
        numbers = analysis.statistics
        table.add_row(
            analysis.file.label,
            f"{numbers.events:,}",
            "-" if analysis.throughput is None else f"{analysis.throughput:,.0f}",
            *(milliseconds_text(v) for v in (numbers.p50_ms, numbers.p95_ms, numbers.p99_ms, numbers.max_ms)),
            f"{analysis.duration_s:,.1f}",
        )
    return table


def phases_table(analyses: Sequence[FileAnalysis]) -> Table | None:
    """Return the table of scaled runs, p50, p99 and max of each phase; None if there is no such run."""
    scaled = [analysis for analysis in analyses if analysis.phases]
    if not scaled:
        return None
    table = Table(
        title="Before the scale request, until it is complete, and after: p50 / p99 / max in ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("file", overflow="fold")
    for phase in PHASES:
        table.add_column(phase, justify="right", no_wrap=True)
    for analysis in scaled:
        cells = []
        for phase in PHASES:
            numbers = analysis.phases.get(phase)
            values = (numbers.p50_ms, numbers.p99_ms, numbers.max_ms) if numbers else ()
            cells.append(" / ".join(map(milliseconds_text, values)) or "-")
        table.add_row(analysis.file.label, *cells)
    return table


def summary(analyses: Sequence[FileAnalysis], *, cut_warmup_s: float) -> dict[str, Any]:
    """Return what ``summary.json`` holds: per file and per time slice, latencies in ms, times in s."""
    return {
        "format": SUMMARY_FORMAT,
        "percentiles": "exact, nearest rank",
        "cut_warmup_s": cut_warmup_s,
        "files": [_file_summary(analysis) for analysis in analyses],
    }


def write_summary(path: Path, content: dict[str, Any]) -> None:
    """Write ``summary.json`` in one step, so that a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _file_summary(analysis: FileAnalysis) -> dict[str, Any]:
    sidecar = analysis.file.sidecar
    return {
        "path": str(analysis.file.path),
        "label": analysis.file.label,
        "job": sidecar.get("job", sidecar.get("job_name")),
        **asdict(analysis.statistics),
        "mean_ms": analysis.mean_ms,
        "min_ms": analysis.min_ms,
        "events_per_second": analysis.throughput,
        "duration_s": analysis.duration_s,
        "first_arrival_ms": analysis.first_arrival_ms,
        "malformed_lines": analysis.malformed,
        "warmup_events_cut": analysis.cut,
        "scale_requested_ms": list(analysis.file.marks_ms),
        "scale_completed_ms": analysis.file.completed_ms,
        "phases": {name: asdict(numbers) for name, numbers in analysis.phases.items()},
        "slice_s": analysis.slice_s,
        "slices": [{"start_s": piece.start_s, **asdict(piece.statistics)} for piece in analysis.slices],
    }
