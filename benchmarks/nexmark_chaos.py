"""Nexmark queries while their stages are rescaled and their processes killed: results are those of Spark SQL."""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.nexmark import JOB, PARALLELISM, SETTINGS, Reference, chosen, open_reference
from benchmarks.rescale import wait_finished
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from experiments.cluster import FINAL_STATES, Cluster
from experiments.processes import ClusterError
from experiments.scaling import wait_running
from experiments.soak import StreamEndedError, rescale
from weir.examples import nexmark
from weir.plan.stages import physical_graph

#: Frequent checkpoints, and a loss that is soon noticed.
_SETTINGS = {
    **SETTINGS,
    "controlPlane.checkpoint_interval_ms": 500,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 1000,
    "controlPlane.heartbeat_interval_ms": 200,
    "controlPlane.restart_attempts": 100,
}
#: Between two disturbances.
_PAUSE_S = 1.0
_PARALLELISM_MAX = 3
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ChaosOptions:
    """Command-line options."""

    #: Names; empty: all.
    queries: tuple[str, ...] = ()
    #: People, auctions and bids together, and how many of them come in a second.
    events: int = 60_000
    rate: float = 3_000.0
    #: Of what is disturbed, and how.
    seed: int = 1


def run(options: ChaosOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run every query once, with a rescale of a random stage or a kill -9 of a random task manager in turn.

    Raises:
        BenchmarkError: a result is not that of Spark SQL, or a query ended before it was disturbed.
        ClusterError: a job did not finish, or a rescale failed.
        ConfigError: there is no such query.
    """
    names = chosen(options.queries)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="weir-nexmark-") as name, ExitStack() as stack:
        reference = open_reference(Path(name), options.events, stack, report)
        for number, query in enumerate(names):
            report(f"{query}, disturbed", number / len(names))
            found[query] = _disturbed(query, options, reference, Path(name))
    if different := [query for query, figures in found.items() if not figures["equal_to_reference"]]:
        raise BenchmarkError(
            f"{', '.join(different)}: the result is not that of Spark SQL over the same events"
        )
    config = {
        "job": JOB,
        "events": options.events,
        "rate": options.rate,
        "seed": options.seed,
        "task_managers": 2,
    }
    totals = {key: sum(figures[key] for figures in found.values()) for key in ("rescales", "kills")}
    runs = [{"queries_equal": len(found), **totals, "disturbed": found}]
    return BenchmarkResult("nexmark_chaos", config, runs, [Bar("queries_equal", "at least", len(names))])


def keyed_stages(query: str) -> list[int]:
    """The stages of a query that can be rescaled: those of key groups, but windows over all keys, which one ends."""
    graph = physical_graph(nexmark.build(query, parallelism=PARALLELISM).build())
    return [stage.index for stage in graph.stages if stage.has_groups and stage.parallelism > 1]


def _disturbed(query: str, options: ChaosOptions, reference: Reference, directory: Path) -> dict[str, Any]:
    output = directory / f"{query}-disturbed"
    parameters = reference.parameters(query, output) | {"rate": options.rate}
    with Cluster(directory / f"{query}-cluster", task_managers=2, settings=_SETTINGS) as cluster:
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        for _ in range(2):
            cluster.start_task_manager()
        wait_running(cluster)
        rescales, kills = _disturb(cluster, query, random.Random(f"{options.seed} {query}"))
        status = wait_finished(cluster, _TIMEOUT_S)
    if not kills or (keyed_stages(query) and not rescales):
        raise BenchmarkError(f"{query} ended before it was rescaled and killed; give a lower --rate")
    equal = reference.equals(query, output)
    return {
        "equal_to_reference": equal,
        "rescales": rescales,
        "kills": kills,
        "restarts": int(status["restarts"]),
        "rows": int(status["totals"]["events_out"]),
    }


def _disturb(cluster: Cluster, query: str, rng: random.Random) -> tuple[int, int]:
    """Rescale and kill in turn until the job has ended; returns how often each was done."""
    parallelism = dict.fromkeys(keyed_stages(query), PARALLELISM)
    rescales = kills = 0
    for number in itertools.count():
        time.sleep(_PAUSE_S)
        status = cluster.status()
        if status is None or status["state"] in (*FINAL_STATES, "FINISHING"):
            return rescales, kills
        if parallelism and number % 3 < 2:
            stage = rng.choice(list(parallelism))
            wanted = rng.choice([n for n in range(1, _PARALLELISM_MAX + 1) if n != parallelism[stage]])
            try:
                rescale(cluster, stage, wanted)
            except StreamEndedError:
                return rescales, kills
            parallelism[stage] = wanted
            rescales += 1
        elif _kill(cluster, rng):
            kills += 1
    raise AssertionError


def _kill(cluster: Cluster, rng: random.Random) -> bool:
    """Kill a task manager that has subtasks and start another; wait until the job runs again. False: it is over."""
    status = cluster.wait_for(lambda status: status["latest_checkpoint"] is not None, "a checkpoint")
    if status["state"] != "RUNNING":
        return False
    ports = {
        subtask["task_manager"].rpartition(":")[2]
        for stage in status["stages"]
        for subtask in stage["subtasks"]
    }
    alive = [
        process for process in cluster.processes.values() if str(process.port) in ports and process.alive()
    ]
    generation = int(status["generation"])
    rng.choice(alive).popen.kill()
    cluster.start_task_manager()
    found = cluster.wait_for(
        lambda status: (
            (status["generation"] > generation and status["state"] == "RUNNING")
            or status["state"] in FINAL_STATES
        ),
        "the restart",
    )
    if found["state"] not in ("RUNNING", "FINISHED"):
        raise ClusterError(
            f"the job {found['state'].lower()} after a kill: {found['cause']}\n{cluster.logs()}"
        )
    return True
