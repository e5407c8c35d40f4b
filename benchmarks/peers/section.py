"""From a result of ``python -m benchmarks peers`` to a table on the terminal and to a part of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

_NAMES = {"flink": "Flink", "spark": "Spark", "weir": "Weir"}
_FORMS = {"json": "JSON lines", "parquet": "Parquet"}
_PER_CORE = "events_per_second_per_core"
_OURS = "weir"
_NONE_YET = "No run of it is among the results yet.\n"


def peers_section(documents: Sequence[Mapping[str, Any]]) -> str:
    """What docs/performance.md says of the peers: a table, who is faster where, versions and settings."""
    found = next((document for document in documents if document["name"] == "peers"), None)
    if found is None:
        return _NONE_YET
    columns = _columns(found)
    lines = [f"| {' | '.join(columns)} |", f"| --- | --- |{' ---: |' * (len(columns) - 3)} --- |"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(found)]
    return (
        "\n\n".join(["\n".join(lines), *_faster(found), *_refusals(found), *_failures(found), _set_up(found)])
        + "\n"
    )


def overview(document: Mapping[str, Any]) -> Table:
    """The same table for a terminal."""
    table = Table(title="events/s per core, from the slope between two sizes")
    for column in _columns(document):
        table.add_column(column)
    for row in _rows(document):
        table.add_row(*row)
    return table


def _systems(document: Mapping[str, Any]) -> list[str]:
    return [name for name in _NAMES if name in document["config"]["versions"]]


def _peers(document: Mapping[str, Any]) -> list[str]:
    return [name for name in _systems(document) if name != _OURS]


def _cases(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for form, words in _FORMS.items():
        for query, figures in document.get(form, {}).items():
            yield query, words, figures


def _columns(document: Mapping[str, Any]) -> list[str]:
    speeds = [_NAMES[name] for name in _systems(document)]
    return ["query", "from", *speeds, *(f"Weir / {_NAMES[name]}" for name in _peers(document)), "rows"]


def _rows(document: Mapping[str, Any]) -> Iterator[list[str]]:
    for query, words, figures in _cases(document):
        row = [query, words]
        for name in _systems(document):
            speed = figures.get(name, {}).get(_PER_CORE)
            row.append(
                "refused" if figures.get(name, {}).get("refused") else f"{speed:,.0f}" if speed else ""
            )
        for name in _peers(document):
            ratio = figures.get(f"ratio_to_{name}_per_core")
            row.append(f"{ratio:.1f}" if ratio else "")
        told = [figures[f"equal_to_{name}"] for name in _peers(document) if f"equal_to_{name}" in figures]
        row.append(("equal" if all(told) else "DIFFERENT") if told else "not compared")
        yield row


def _faster(document: Mapping[str, Any]) -> list[str]:
    """Where another system is faster, per core or by the clock; nothing if there is nothing to compare."""
    told, compared = [], 0
    for query, words, figures in _cases(document):
        for name in _peers(document):
            for figure, how in (
                (f"ratio_to_{name}_per_core", "per core"),
                (f"ratio_to_{name}", "by the clock"),
            ):
                ratio = figures.get(figure)
                compared += ratio is not None
                if ratio and ratio < 1:
                    told.append(f"{_NAMES[name]} in {query} from {words} ({1 / ratio:.1f} times, {how})")
    if told:
        return [f"Faster than Weir: {'; '.join(told)}."]
    none = "No peer is faster than Weir where both have a figure, per core or by the clock."
    return [none] if compared else []


def _refusals(document: Mapping[str, Any]) -> list[str]:
    """Why a system does not run a query."""
    told: dict[str, str] = {}
    for query, _, figures in _cases(document):
        for name in _peers(document):
            if reason := figures.get(name, {}).get("refused"):
                told[f"- {_NAMES[name]} refuses {query}: {reason}"] = ""
    return ["\n".join(told)] if told else []


def _failures(document: Mapping[str, Any]) -> list[str]:
    """Which runs failed; why stands in the result's file."""
    failed = document.get("failed")
    return [f"Failed: {'; '.join(failed)}."] if failed else []


def _set_up(document: Mapping[str, Any]) -> str:
    machine, config = document["machine"], document["config"]
    versions = ", ".join(f"{_NAMES[name]} {version}" for name, version in config["versions"].items())
    settings = "\n".join(
        f"- {_NAMES[name]}: {', '.join(f'`{key}={value}`' for key, value in given.items())}"
        for name, given in config["settings"].items()
    )
    return (
        f"{versions}; {machine['cores']} cores ({machine['processor']}), measured {document['measured'][:10]} with "
        f"`{document['command']}`, {len(document['repeats'])} run(s). Settings:\n\n{settings}"
    )
