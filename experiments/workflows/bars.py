"""``workflows run bars``: the figures of issue 30; what is not measured is there as null, with the reason."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.events_file import events_directory
from benchmarks.polars_reference import run_reference
from experiments.workflows.driver import Launch
from experiments.workflows.grown import bounded_settings, measure_grown
from experiments.workflows.hot_keys import run_hot_keys
from experiments.workflows.peer_run import run_peer
from experiments.workflows.relink import measure_relink
from experiments.workflows.sweep_trial import measure_sweep
from experiments.workflows.trial import WINDOW_MS, Say, Trial

#: Of the topic, subtasks of the engine, and threads of the peer; and processes of the job.
_PARTITIONS = _TASK_MANAGERS = 2

#: What ``--only`` takes.
PARTS = ("top", "paced", "sweep", "grown", "bounded", "hot-keys", "relink")
#: The part that has each field.
_PART_OF = {
    "commands_per_second": "top",
    "ratio_to_kafka_streams": "top",
    "ratio_on_grown": "grown",
    "ratio_bounded_memory": "bounded",
    "start_latency_ms_mean": "paced",
    "start_latency_ms_max": "paced",
    "pause_ms_max": "paced",
    "sweep_row_wait_ms_max": "sweep",
    "restore_first_output_ms": "grown",
    "relink_s": "relink",
    "relink_shipped_bytes": "relink",
    "hot_key_ratio": "hot-keys",
}
#: Of the paced run, of the top rate.
_QUARTER = 4
#: Lines that Polars counts, to tell how quick the machine is, with which bar; issue 30: so many commands for so many.
_LINES, _LINES_PER_SECOND, _COMMANDS_PER_SECOND = 5_000_000, 6_000_000, 80_000


@dataclass(frozen=True)
class BarOptions:
    """What to measure.

    Attributes:
        store: what ``--store`` takes.
        log: "weir" or "kafka".
        launch: as fast as possible, from empty.
        repeat: runs of it; the median counts.
        paced_workflows: of the paced run; between a task's end and the next start the driver itself leaves the time
            that a command for each of them takes.
        paced_s: about how long the paced run takes.
        timers: due at the sweep.
        sweep_after_ms: from the first timer to the sweep.
        grown_bytes: payloads in the store where its throughput is compared with that of an empty one; 0: not measured.
        bounded_bytes: as ``grown_bytes``, where the task managers together have ``memory_bytes`` of memory, and state
            has no page cache; 0: not measured.
        memory_bytes: see ``bounded_bytes``.
        relink_bytes: payloads in the store when half of its key groups move to another task manager; 0: not measured.
        hot_rows: of each run with a hot key; 0: not measured.
        peer: also run Kafka Streams, in turn with the job over Kafka.
        s3_delay_ms: of the parts with restores and relinking: checkpoints go to an S3 server that waits for so long
            with each request; None: to the disk.
        standby_replicas: of these parts: task managers that keep the tables of each other one.
        compare: measure also what relinking is compared with.
        only: of :data:`PARTS`; empty: all.
    """

    store: str = "rocksdb"
    log: str = "weir"
    launch: Launch = field(default_factory=lambda: Launch(1000, 2000, 100))
    repeat: int = 3
    paced_workflows: int = 100
    paced_s: float = 10.0
    timers: int = 150_000
    sweep_after_ms: int = 40_000
    grown_bytes: int = 256 << 20
    bounded_bytes: int = 0
    memory_bytes: int = 2 << 30
    hot_rows: int = 6_000_000
    relink_bytes: int = 256 << 20
    peer: bool = False
    s3_delay_ms: float | None = None
    standby_replicas: int = 0
    compare: bool = True
    only: tuple[str, ...] = ()

    def has(self, part: str) -> bool:
        """Whether a part is to be measured."""
        return not self.only or part in self.only


def run_bars(options: BarOptions, say: Say) -> dict[str, Any]:
    """Measure; returns the fields, those of the issue first. ``reasons`` says why one is null, or cannot be judged.

    Raises:
        WeirError: a process ended, or commands were not written or processed.
    """
    # The rate of the paced run is a quarter of the top rate.
    runs = options.repeat if options.has("top") else int(options.has("paced"))
    tops = [_top(options, say) for _ in range(runs)]
    rate = median(top["commands_per_second"] for top in tops) if tops else 0.0
    paced = _paced(options, rate / _QUARTER, say) if options.has("paced") else {}
    sweep = _sweep(options, say) if options.has("sweep") else {}
    against = _against_peer(options, tops, say) if options.peer and options.has("top") else {}
    grown = measure_grown(options, _home_trial, say) if options.grown_bytes and options.has("grown") else {}
    bounded = _bounded(options, say) if options.bounded_bytes and options.has("bounded") else {}
    has_hot_keys = options.hot_rows and options.has("hot-keys")
    hot = run_hot_keys(options.hot_rows, options.repeat, say) if has_hot_keys else {}
    relinked = _relinked(options, say) if options.relink_bytes and options.has("relink") else {}
    parts = [*tops, paced, sweep, grown, bounded, relinked]
    wrong = sum(part.get("wrong", 0) for part in parts) + against.pop("wrong", 0)
    fields = {
        "commands_per_second": round(rate) if options.has("top") else None,
        "ratio_to_kafka_streams": against.pop("ratio_to_kafka_streams", None),
        "ratio_on_grown": grown.get("ratio"),
        "ratio_bounded_memory": bounded.get("ratio"),
        "start_latency_ms_mean": paced.get("start_latency_ms_mean"),
        "start_latency_ms_max": paced.get("start_latency_ms_max"),
        "pause_ms_max": paced.get("pause_ms_max"),
        "sweep_row_wait_ms_max": sweep.get("sweep_row_wait_ms_max"),
        "restore_first_output_ms": grown.get("restore_first_output_ms"),
        "relink_s": relinked.get("relink_s"),
        "relink_shipped_bytes": relinked.get("relink_shipped_bytes"),
        "hot_key_ratio": hot.get("ratio"),
        "wrong": wrong,
    }
    unjudged = {"sweep_row_wait_ms_max": sweep["not_judged"]} if "not_judged" in sweep else {}
    return {
        **fields,
        "reasons": {name: _reason(name, options) for name, value in fields.items() if value is None}
        | unjudged,
        **_machine(),
        "top": tops,
        "paced": paced,
        "sweep": sweep,
        "grown": grown,
        "bounded": bounded,
        "relinked": relinked,
        "hot_keys": hot,
        **against,
        "store": options.store,
        "log": options.log,
        "payload": options.launch.payload,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_average_1_min": round(os.getloadavg()[0], 2),
    }


def _reason(name: str, options: BarOptions) -> str:
    if not options.has(_PART_OF[name]):
        return f"not asked for: --only {','.join(options.only)}"
    if name == "sweep_row_wait_ms_max":
        return "there are not as many windows before the sweep as it took, to compare it with"
    asked = {
        "ratio_to_kafka_streams": "--peer",
        "hot_key_ratio": "--hot-rows 6000000",
        "ratio_bounded_memory": "--bounded-state 20G --bounded-memory 2G",
        "relink_s": "--relink 1G",
        "relink_shipped_bytes": "--relink 1G",
    }
    return f"not asked for: {asked.get(name, '--grown 1G')}"


def _machine() -> dict[str, Any]:
    """How quick the machine is, and the bar of commands per second that this makes."""
    with tempfile.TemporaryDirectory() as place:
        lines = events_directory(_LINES, 100_000, root=Path(place))
        counted = run_reference(lines, Path(place) / "counts.parquet", threads=len(os.sched_getaffinity(0)))
    rate = counted["events_per_second"]
    return {
        "polars_lines_per_second": round(rate),
        "commands_per_second_bar": round(_COMMANDS_PER_SECOND * rate / _LINES_PER_SECOND),
    }


def _top(options: BarOptions, say: Say) -> dict[str, Any]:
    launch = replace(options.launch)
    with tempfile.TemporaryDirectory() as place, _trial(place, options, say) as trial:
        say(f"as fast as possible: {launch.commands:,} commands")
        began_s = time.time()
        sent = trial.launch(launch)
        sums = trial.wait_for(lambda sums: sums["messages_processed"] >= launch.commands)
        # By the engine's clock, which is this one: it is asked now and then only.
        took_s = sums["latest_command_ms"] / 1000 - began_s
        return {
            "commands_per_second": round(launch.commands / took_s),
            "sent_per_second": round(sent.commands_per_second),
            "seconds": round(took_s, 2),
            **_latencies(sums),
            "cpu_s": {
                name: round(process.cpu_s, 1)
                for name, process in trial.cluster.processes.items()
                if process.alive()
            },
            "wrong": trial.wrong([launch], sums),
        }


def _against_peer(options: BarOptions, tops: list[dict[str, Any]], say: Say) -> dict[str, Any]:
    """Both over Kafka, in turn; medians."""
    over_kafka = replace(options, log="kafka")
    ours, peers = [], []
    for number in range(options.repeat):
        ours.append(tops[number] if options.log == "kafka" else _top(over_kafka, say))
        with tempfile.TemporaryDirectory() as place:
            peers.append(run_peer(Path(place), options.launch, _PARTITIONS, say))
    rates = [median(run["commands_per_second"] for run in runs) for runs in (ours, peers)]
    return {
        "ratio_to_kafka_streams": round(rates[0] / rates[1], 2),
        "over_kafka": ours,
        "kafka_streams": peers,
        "wrong": sum(run["wrong"] for run in [*ours, *peers]),
    }


def _paced(options: BarOptions, rate: float, say: Say) -> dict[str, Any]:
    workflows = options.paced_workflows
    tasks = max(1, round(rate * options.paced_s / (2 * workflows)))
    launch = replace(options.launch, workflows=workflows, tasks=tasks, rate=rate)
    # The first rows load code: they are not of the measurement.
    warm_up = replace(launch, prefix="warm", tasks=max(1, tasks // 5))
    with tempfile.TemporaryDirectory() as place, _trial(place, options, say) as trial:
        say(f"paced: {launch.commands:,} commands at {rate:,.0f}/s")
        trial.launch(warm_up)
        trial.wait_for(lambda sums: sums["messages_processed"] >= warm_up.commands)
        time.sleep(2 * WINDOW_MS / 1000)
        since_ms = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS
        sent = trial.launch(launch)
        wanted = warm_up.commands + launch.commands
        trial.wait_for(lambda sums: sums["messages_processed"] >= wanted)
        sums, every = trial.sums(since_ms), trial.sums()
        return {
            "rate": round(rate),
            "workflows": workflows,
            "tasks": tasks,
            # What the order of the commands alone makes of the start latency.
            "gap_of_driver_ms": round(1000 * workflows / rate, 2),
            "driver_behind_ms_max": sent.behind_ms_max,
            **_latencies(sums),
            "wrong": trial.wrong([warm_up, launch], every),
        }


def _sweep(options: BarOptions, say: Say) -> dict[str, Any]:
    def make_trial(place: str, parameters: Mapping[str, object]) -> Trial:
        return _trial(place, options, say, parameters)

    return measure_sweep(options.launch, options.timers, options.sweep_after_ms, make_trial, say)


def _relinked(options: BarOptions, say: Say) -> dict[str, Any]:
    return measure_relink(
        options.relink_bytes,
        options.launch.payload,
        say,
        s3_delay_ms=options.s3_delay_ms,
        standby_replicas=options.standby_replicas,
        compare=options.compare,
    )


def _home_trial(place: str, options: BarOptions, say: Say) -> Trial:
    """A trial whose checkpoints are where they are wanted."""
    settings = {"controlPlane.standby_replicas": options.standby_replicas}
    return _trial(place, options, say, settings=settings, s3_delay_ms=options.s3_delay_ms)


def _bounded(options: BarOptions, say: Say) -> dict[str, Any]:
    """As with a store that has grown, with a bound of all memory."""
    settings = bounded_settings(options.memory_bytes, _TASK_MANAGERS)

    def trial(place: str, options: BarOptions, say: Say) -> Trial:
        return _trial(place, options, say, settings=settings)

    grown = replace(options, grown_bytes=options.bounded_bytes)
    return {**measure_grown(grown, trial, say), "memory_bytes": options.memory_bytes}


def _trial(
    place: str,
    options: BarOptions,
    say: Say,
    parameters: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    s3_delay_ms: float | None = None,
) -> Trial:
    return Trial(
        Path(place),
        store=options.store,
        log=options.log,
        say=say,
        partitions=_PARTITIONS,
        parallelism=_PARTITIONS,
        task_managers=_TASK_MANAGERS,
        parameters=parameters,
        settings=settings,
        s3_delay_ms=s3_delay_ms,
    )


def _latencies(sums: Mapping[str, int]) -> dict[str, Any]:
    return {
        "start_latency_ms_mean": round(sums["task_start_latency_ms"] / max(1, sums["task_starts"]), 2),
        "start_latency_ms_max": sums["task_start_latency_ms_max"],
        "message_latency_ms_mean": round(sums["message_latency_ms"] / max(1, sums["messages_processed"]), 2),
        "message_latency_ms_max": sums["message_latency_ms_max"],
        "pause_ms_max": sums["pause_ms_max"],
    }
