"""From JSON files of results to the tables of docs/performance.md: what stands between two markers is replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import figure_rows
from weir.errors import InputError

BEGIN, END = "<!-- tables: made by `python -m benchmarks report` -->", "<!-- end of tables -->"


def update_page(page: Path, results: Path) -> int:
    """Make the tables anew; gives the number of results.

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
    """A summary of all bars, then a section for each result."""
    lines = ["| benchmark | figure | bar | measured | |", "| --- | --- | --- | ---: | --- |"]
    for document in documents:
        for label, value, verdict in figure_rows(document):
            if verdict:
                bound, _, met = verdict.rpartition(": ")
                lines.append(f"| {document['name']} | `{label}` | {bound} | {value} | {met} |")
    parts = ["\n".join(lines), *(_section(document) for document in documents)]
    return "\n\n".join(parts) + "\n"


def _section(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    repeats = len(document["repeats"])
    lines = [
        f"### {document['name']}",
        "",
        f"`{document['command']}`, {repeats} run(s), medians; {document['measured']}; {machine['cores']} cores "
        f"({machine['processor']}), load before {machine['load_average_1_min']}, "
        f"Python {machine['python']}, {versions}.",
        "",
        "| figure | value |",
        "| --- | ---: |",
        *(f"| {label} | {value} |" for label, value, _ in figure_rows(document)),
    ]
    return "\n".join(lines)
