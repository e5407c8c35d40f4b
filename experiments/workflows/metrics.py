"""Answers about a running job: its windows, merged over subtasks, and every metric of job and stores."""

from __future__ import annotations

import json
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

import weir
from experiments.workflows.job import METRICS
from experiments.workflows.windows import merged
from weir.errors import ConnectionLostError

_TIMEOUT_S = 10.0
#: Heading, field, and what it is divided by for a mean; "": nothing.
_TABLE = (
    ("commands", "messages_processed", ""),
    ("starts", "task_starts", ""),
    ("start ms", "task_start_latency_ms", "task_starts"),
    ("max", "task_start_latency_ms_max", ""),
    ("completes", "task_completes", ""),
    ("complete ms", "task_complete_latency_ms", "task_completes"),
    ("max", "task_complete_latency_ms_max", ""),
    ("timers", "timers_fired", ""),
    ("rejected", "rejected", ""),
    ("pause ms", "pause_ms_max", ""),
)


def workflow_windows(address: str, count: int, subtask: int | None = None) -> list[dict[str, int]]:
    """The latest windows that have something, the last one last; each field is there, also where it is 0.

    The owners answer between two batches of the step that keeps windows, which no command goes through.

    Args:
        address: of the control plane or a task manager.
        count: how many windows at most.
        subtask: of this one only; None: of all.

    Raises:
        WeirError: nobody answers, or the job does not run.
    """
    by_start: dict[int, list[Mapping[str, int]]] = defaultdict(list)
    with weir.connect(address) as job:
        for page in job.state(METRICS, "windows").pages(consistency="latest"):
            for found in page["rows"]:
                if subtask is not None and int(found["key"]) != subtask:
                    continue
                for item in found["value"]:
                    by_start[int(item["key"])].append(item["value"])
    starts = sorted(by_start)[-count:] if count > 0 else []
    return [{"window_start_ms": start, **merged(by_start[start])} for start in starts]


def total(windows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """All windows as one."""
    return merged(windows)


def table(windows: Sequence[Mapping[str, int]]) -> str:
    """The windows for a person: counts, and mean and largest latencies."""
    lines = [["window"] + [heading for heading, _, _ in _TABLE]]
    for window in windows:
        cells = [str(window["window_start_ms"])]
        for _, field, divisor in _TABLE:
            value = window[field]
            if not divisor:
                cells.append(f"{value:,}")
            else:
                cells.append(f"{value / window[divisor]:.1f}" if window[divisor] else "-")
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def every_metric(address: str) -> dict[str, float]:
    """Every metric of the control plane and of all task managers; names say process and labels, so none is lost.

    Args:
        address: of the control plane.

    Raises:
        ConnectionLostError: a process does not answer.
    """
    status = json.loads(_page(address, "/status"))
    places = {"control_plane": address}
    for member in status["task_managers"]:
        places[f"task_manager {member['address']}"] = member["http"]
    return {
        f"{process} {name}": value
        for process, place in places.items()
        for name, value in _samples(_page(place, "/metrics")).items()
    }


def _samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = float(sample.value)
    return found


def _page(address: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=_TIMEOUT_S) as reply:
            text: str = reply.read().decode()
    except OSError as error:
        raise ConnectionLostError(
            f"http://{address}{path} does not answer ({error}); is `python -m experiments workflows server` running?"
        ) from error
    return text


def to_json(value: Any) -> str:
    """JSON for a terminal or a file."""
    return json.dumps(value, indent=1)
