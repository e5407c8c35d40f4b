"""A dashboard for Grafana, made from the definitions. ``python -m pages dashboard`` prints it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from weir.metrics import definitions as d

#: Of Grafana's grid, 24 columns wide.
_WIDTH, _HEIGHT = 8, 8
_PER_ROW = 24 // _WIDTH


@dataclass(frozen=True)
class Panel:
    """A chart over time."""

    title: str
    #: PromQL and the legend of its lines; ``$job`` is the job that was chosen.
    queries: tuple[tuple[str, str], ...]
    #: As Grafana calls it.
    unit: str = "short"


def _of_job(definition: d.Definition) -> str:
    return f'{definition.name}{{job="$job"}}'


def _rate(definition: d.Definition) -> str:
    return f"rate({_of_job(definition)}[1m])"


_STEP, _SUBTASK = "{{stage}} {{operator}}", "{{operator}} {{subtask}}"

#: Rows of the dashboard, in the order in which people ask.
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Does it keep up?",
        (
            Panel(
                "Rows into each step per second",
                ((f"sum by (stage, operator) ({_rate(d.RECORDS_IN)})", _STEP),),
            ),
            Panel(
                "Busy: the busiest subtask of each step",
                ((f"max by (stage, operator) ({_rate(d.BUSY)})", _STEP),),
                "percentunit",
            ),
            Panel(
                "Held back by the steps after it",
                ((f"max by (stage, operator) ({_rate(d.BACKPRESSURED)})", _STEP),),
                "percentunit",
            ),
            Panel(
                "Latency to the sinks",
                tuple(
                    (
                        f"histogram_quantile({share}, sum by (le) (rate({d.LATENCY.name}_bucket"
                        '{job="$job"}[1m])))',
                        f"p{share * 100:g}",
                    )
                    for share in (0.5, 0.99)
                ),
                "s",
            ),
            Panel("Event time behind the clock", ((_of_job(d.WATERMARK_LAG), _SUBTASK),), "s"),
            Panel("Records that wait to be read", ((_of_job(d.SOURCE_LAG), "{{partition}}"),)),
        ),
    ),
    (
        "What went wrong?",
        (
            Panel("Records rejected and rows put aside", ((_of_job(d.JOB_REJECTED), "{{operator}}"),)),
            Panel(
                "Rows that were late", ((f"sum by (operator) ({_of_job(d.RECORDS_LATE)})", "{{operator}}"),)
            ),
            Panel("Restarts", ((_of_job(d.JOB_RESTARTS), "restarts"),)),
            Panel("Age of the latest checkpoint", ((_of_job(d.JOB_CHECKPOINT_AGE), "age"),), "s"),
            Panel(
                "Rows held while state was written or noted",
                ((f"max by (stage, operator) ({_of_job(d.STATE_HOLD_MAX)})", _STEP),),
                "s",
            ),
            Panel(
                "Disk that is free",
                ((f"{d.DISK_FREE.name} / {d.DISK_SIZE.name}", "{{task_manager}}"),),
                "percentunit",
            ),
        ),
    ),
    (
        "State",
        (
            Panel("Memory of stores", ((d.STORE_MEMORY.name, "{{task_manager}}"),), "bytes"),
            Panel("Files of stores", ((d.STORE_DISK.name, "{{task_manager}}"),), "bytes"),
            Panel(
                "Keys read and written per second",
                (
                    (f"rate({d.STORE_GETS.name}[1m])", "{{task_manager}} read"),
                    (f"rate({d.STORE_PUTS.name}[1m])", "{{task_manager}} written"),
                ),
            ),
            Panel(
                "Mean time of a key",
                (
                    (
                        f"rate({d.STORE_GET_TIME.name}[1m]) / rate({d.STORE_GETS.name}[1m])",
                        "{{task_manager}} read",
                    ),
                    (
                        f"rate({d.STORE_WRITE_TIME.name}[1m]) / rate({d.STORE_PUTS.name}[1m])",
                        "{{task_manager}} written",
                    ),
                ),
                "s",
            ),
            Panel(
                "Stalls: share of the time",
                ((f"rate({d.STORE_STALL_TIME.name}[1m])", "{{task_manager}}"),),
                "percentunit",
            ),
            Panel(
                "Merges: files in level 0, bytes that wait",
                (
                    (d.STORE_LEVEL_0.name, "{{task_manager}} files"),
                    (d.STORE_PENDING.name, "{{task_manager}} bytes"),
                ),
            ),
        ),
    ),
)


def dashboard() -> str:
    """Return the dashboard as JSON, to be imported in Grafana."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, listed in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        top += 1
        for number, panel in enumerate(listed):
            across, down = number % _PER_ROW, number // _PER_ROW
            panels.append(_panel(panel, across * _WIDTH, top + down * _HEIGHT))
        top += -(-len(listed) // _PER_ROW) * _HEIGHT
    for number, made in enumerate(panels, 1):
        made["id"] = number
    document = {
        "title": "Weir",
        "uid": "weir",
        "tags": ["weir"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), _job()]},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


def _panel(panel: Panel, left: int, top: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": left, "y": top, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _job() -> dict[str, Any]:
    return {
        "name": "job",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values({d.JOB_STATE.name}, job)",
        "refresh": 2,
    }
