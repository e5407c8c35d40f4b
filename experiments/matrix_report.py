"""From the sidecars of the latency experiments to the tables of docs/experiments.md."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.matrix import P50_EXTRA_MS, Configuration, configurations
from weir.errors import InputError

BEGIN, END = "<!-- tables: made by `python -m experiments report` -->", "<!-- end of tables -->"
#: p99 after the scale.
P99_AFTER_MS = 50.0
#: Medians of p50 after the scale: hybrid against local, at the same rate.
HYBRID_TO_LOCAL = 1.2
_FULL_LOAD = 0.95


def update_page(page: Path, results: Path) -> int:
    """Make the tables anew; gives the number of results.

    Raises:
        InputError: there are no results, or the page has no markers.
    """
    sidecars = [
        (configuration, json.loads(path.read_text(encoding="utf-8")))
        for configuration in configurations("seeds")
        if (path := results / f"{configuration.name}.json").is_file()
    ]
    if not sidecars:
        raise InputError(f"no results in {results}; run: python -m experiments run seeds --out {results}")
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{page} needs the lines {BEGIN!r} and {END!r}, between which the tables go")
    fresh = page.with_name(f".{page.name}.unfinished")
    fresh.write_text(f"{before}{BEGIN}\n\n{tables(sidecars)}\n\n{END}{after}", encoding="utf-8")
    os.replace(fresh, page)
    return len(sidecars)


def tables(sidecars: Sequence[tuple[Configuration, Mapping[str, Any]]]) -> str:
    """The latencies of all configurations, and the bars."""
    lines = [
        "| name | configuration | all | before | during | after | settled | owned | complete | queue gone |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for configuration, sidecar in sidecars:
        figures = sidecar["repetitions"]
        parts = [_cell(figures, part) for part in ("all", "before", "during", "after", "settled")]
        times = [_time(figures, name) for name in ("owned_ms", "rescale_ms", "queue_gone_ms")]
        text = configuration.label(None).partition(": ")[2]
        lines.append(" | ".join([f"| {configuration.name}", text, *parts, *times]) + " |")
    machine = sidecars[0][1]["machine"]
    others = max(run["others_cpu_share"] for _, sidecar in sidecars for run in sidecar["repetitions"])
    where = f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}"
    stall_ms = max(run["machine_stall_ms"] for _, sidecar in sidecars for run in sidecar["repetitions"])
    note = (
        f"p50 / p99 / max in ms, medians of {len(sidecars[0][1]['repetitions'])} repetitions; *owned* and "
        "*complete*: ms from the request until every key group has its new owner, and its state; *queue gone*: "
        "until an event waited for no other for the first time, from when on *settled* counts. "
        f"{where}, other processes used up to {others:.0%} of it meanwhile; the longest time for which it woke "
        f"nobody was {stall_ms:.0f} ms."
    )
    return "\n".join([*lines, "", note, "", *bar_lines(sidecars)])


def bar_lines(sidecars: Sequence[tuple[Configuration, Mapping[str, Any]]]) -> list[str]:
    """A table of the bars, each with what was measured."""
    lines = ["| bar | name | measured | |", "| --- | --- | ---: | --- |"]
    for configuration, sidecar in sidecars:
        parts = ("after", "settled") if configuration.scaled else ("all",)
        # With two subtasks, each has half of the load.
        if configuration.load / (2 if configuration.scaled else 1) < _FULL_LOAD:
            bound_ms = configuration.work_ms + P50_EXTRA_MS
            for part in parts:
                text = f"p50 {part} at most {bound_ms:g} ms"
                lines.append(_bar(text, configuration.name, _median(sidecar, part, "p50_ms"), bound_ms))
        if configuration.scaled:
            for part in parts:
                p99_ms = _median(sidecar, part, "p99_ms")
                text = f"p99 {part} at most {P99_AFTER_MS:g} ms"
                lines.append(_bar(text, configuration.name, p99_ms, P99_AFTER_MS))
    for configuration, sidecar in sidecars:
        local = [
            other
            for item, other in sidecars
            if not item.hybrid
            and (item.source_ms, item.scaled) == (configuration.source_ms, configuration.scaled)
        ]
        if configuration.hybrid and local:
            part = "after" if configuration.scaled else "all"
            ratio = _median(sidecar, part, "p50_ms") / _median(local[0], part, "p50_ms")
            text = f"p50 {part} at most {HYBRID_TO_LOCAL:g} times local's"
            lines.append(_bar(text, configuration.name, ratio, HYBRID_TO_LOCAL))
    return lines


def _bar(text: str, name: str, value: float, bound: float) -> str:
    return f"| {text} | {name} | {value:.2f} | {'met' if value <= bound else 'MISSED'} |"


def _median(sidecar: Mapping[str, Any], part: str, figure: str) -> float:
    values = [run[part][figure] for run in sidecar["repetitions"] if figure in run[part]]
    return float(median(values)) if values else float("inf")


def _time(figures: Sequence[Mapping[str, Any]], name: str) -> str:
    times_ms = [run[name] for run in figures if run.get(name) is not None]
    return f"{median(times_ms):.0f}" if times_ms else ""


def _cell(figures: Sequence[Mapping[str, Any]], part: str) -> str:
    runs = [run[part] for run in figures if "p50_ms" in run.get(part, {})]
    if not runs:
        return ""
    return " / ".join(f"{median(run[name] for run in runs):.1f}" for name in ("p50_ms", "p99_ms", "max_ms"))
