"""How long a range of ten keys takes of each kind of state in a database, over HTTP, and how many requests it makes."""

from __future__ import annotations

import http.client
import json
import re
import statistics
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import BenchmarkError
from experiments.cluster import Cluster
from experiments.ports import free_port

JOB = "benchmarks.database_ranges_job"
#: Step and state of each kind.
KINDS = {
    "value": "states/value",
    "list": "states/items",
    "map": "states/names",
    "versioned": "states/versions",
    "window": "states/times",
    "session": "states/visits",
    "aggregate": "seen/seen",
    "tumbling": "tumbling/rows",
    "sliding": "sliding/rows",
    "session_windows": "sessions/rows",
    "distinct": "sliding/kinds",
    "window_rows": "kept/rows",
    "join": "paired/rows",
    "top": "newest/top",
}
_KEYS, _RANGE_KEYS = 1_000, 10
#: Of a key, so far apart.
_ROWS, _APART_MS = 12, 300_000
#: A full hour.
_FIRST_MS = 1_699_999_200_000
#: Ranges of each kind, the first of which are not looked at: statements are prepared, images opened.
_ASKED, _WARM = 12, 2
#: A checkpoint cannot be read any more when the next one is written.
_TRIES_MAX = 20
_FILLED_S_MAX = 300.0


def latencies(
    settings: Mapping[str, object], directory: Path, report: Callable[[str, float], None]
) -> dict[str, Any]:
    """Fill the states, and ask for ranges until all has been asked.

    Returns:
        The median in ms of each kind and consistency, requests of one range, and the slowest kind's median.

    Raises:
        BenchmarkError: a range has other keys than the ten.
        ClusterError: the job did not start.
    """
    source = directory / "input"
    source.mkdir(parents=True)
    with (source / "rows.jsonl").open("w") as lines:
        for number in range(_KEYS * _ROWS):
            at_ms = _FIRST_MS + number // _KEYS * _APART_MS + number % _KEYS
            row = {"k": f"key-{number % _KEYS:04d}", "t": at_ms, "v": number // _KEYS}
            lines.write(json.dumps(row) + "\n")
    metrics_port = free_port()
    own = {"taskManager.operator_quota": 16, "taskManager.cassandra.apply_pause_ms_max": 0}
    with Cluster(directory / "cluster", task_managers=1, settings={**settings, **own}) as cluster:
        cluster.start_control_plane(JOB, {"input": source})
        cluster.start_task_manager(metrics_port=metrics_port)
        report("filling states", 0.0)
        _await_filled(cluster, metrics_port)
        figures = {
            f"{kind}_{consistency}": _of_state(cluster.http_port, metrics_port, path, consistency, report)
            for kind, path in KINDS.items()
            for consistency in ("latest", "checkpoint")
        }
        cluster.http("POST", "/cancel")
    return {
        "range_ms": {name: took_ms for name, (took_ms, _) in figures.items()},
        "range_requests": {name: requests for name, (_, requests) in figures.items()},
        "range_ms_max": max(took_ms for took_ms, _ in figures.values()),
    }


def _await_filled(cluster: Cluster, metrics_port: int) -> None:
    """Wait until all rows are in a checkpoint, and its changes in the database."""
    status = cluster.wait_for(
        lambda status: status["totals"]["events_in"] >= _KEYS * _ROWS, "all rows", _FILLED_S_MAX
    )
    latest = status["latest_checkpoint"] or 0
    cluster.wait_for(
        lambda status: (
            (status["latest_checkpoint"] or 0) > latest + 3
            and not _metric(metrics_port, "waiting_checkpoints")
        ),
        "all rows in the database",
        _FILLED_S_MAX,
    )


def _of_state(
    port: int, metrics_port: int, path: str, consistency: str, report: Callable[[str, float], None]
) -> tuple[float, int]:
    """The median of ranges, ms, and the fewest requests of one: rows and checkpoints have others now and then."""
    report(f"{path}, {consistency}", 0.0)
    took_ms, requests = [], []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for number in range(_ASKED):
        first = number * 70
        target = f"/state/{path}?from=key-{first:04d}&to=key-{first + _RANGE_KEYS - 1:04d}&consistency={consistency}"
        for _ in range(_TRIES_MAX):
            before = _metric(metrics_port, "requests_total")
            began_s = time.monotonic()
            connection.request("GET", target)
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            took_s = time.monotonic() - began_s
            # 503: the database went on to a later checkpoint meanwhile.
            if reply.status != 503:
                break
        took_ms.append(took_s * 1e3)
        requests.append(_metric(metrics_port, "requests_total") - before)
        # 504: it takes longer than a question may, which is a figure, too.
        if reply.status == 504:
            continue
        if reply.status != 200 or len(answer["rows"]) != _RANGE_KEYS:
            raise BenchmarkError(f"{path}, {consistency}: {reply.status} {str(answer)[:500]}")
    return statistics.median(took_ms[_WARM:]), min(requests[_WARM:])


def _metric(port: int, name: str) -> int:
    """Of the store, the most of all subtasks: they share what it has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        page = reply.read().decode()
    found = re.findall(rf"^weir_store_{name}\{{.*\}} (\S+)$", page, re.MULTILINE)
    return max((int(float(value)) for value in found), default=0)
