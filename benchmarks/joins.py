"""An interval join of two streams with much state: rescaled and killed under load, and its speed on one core."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import recovery, rescale
from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY
from benchmarks.join_input import NEW_ORDER_EVERY, input_directory, occurrences, order_numbers
from benchmarks.loaded_job import LoadedJob
from benchmarks.rescale_figures import nothing_lost
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.sustained import at_a_rate_that_lasts
from weir.errors import ConfigError

JOB = "benchmarks.join_job"
#: The join.
STAGE = 3
BARS = (
    Bar("output_gap_ms_max", "at most", 100),
    # What the job does anyway: a gap that is as long before the request is none of the rescale's.
    Bar("output_gap_before_ms_max", "at most", 100),
    Bar("first_output_ms", "at most", 3000),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
)
#: A checkpoint every second, whatever is measured.
SETTINGS = {"controlPlane.checkpoint_interval_ms": recovery.SETTINGS["controlPlane.checkpoint_interval_ms"]}
PARTS = ("rescale", "recovery", "throughput")


@dataclass(frozen=True)
class JoinOptions:
    """Command-line options."""

    state_bytes: float = 1e9
    payload_bytes: int = 1024
    rate: float = 10_000
    #: Offered after the orders that fill the state; the request or the kill comes ``before_s`` after ``settle_s``.
    duration_s: float = 40
    settle_s: float = 3
    before_s: float = 5
    #: Events of the throughput run, as fast as possible, on one core.
    events: int = 2_000_000
    parts: tuple[str, ...] = PARTS
    repeat: int = 1
    data_root: Path = DATA_DIRECTORY

    @property
    def orders(self) -> int:
        """That are kept when the load is steady."""
        return max(1, round(self.state_bytes / self.payload_bytes))


def check_parts(names: Sequence[str]) -> tuple[str, ...]:
    """The parts of these names.

    Raises:
        ConfigError: there is no such one.
    """
    for name in names:
        if name not in PARTS:
            raise ConfigError(f"--only {name}: there are {', '.join(PARTS)}")
    return tuple(names)


def run(options: JoinOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the chosen parts, ``repeat`` times.

    Raises:
        BenchmarkError: pairs are lost or doubled.
        ClusterError: a job did not finish.
    """
    runs = []
    for _ in range(options.repeat):
        figures: dict[str, Any] = {}
        if "throughput" in options.parts:
            found = _throughput(options, report)
            figures |= {"events_per_second": found["events_per_second"], "throughput": found}
        if "rescale" in options.parts:
            found = at_a_rate_that_lasts(options.rate, lambda rate: _rescaled(options, rate, report), report)
            names = ("output_gap_ms_max", "output_gap_before_ms_max", "machine_stall_ms_max", "not_judged")
            figures |= {**{name: found[name] for name in names if name in found}, "rescale": found}
        if "recovery" in options.parts:
            found = at_a_rate_that_lasts(options.rate, lambda rate: _killed(options, rate, report), report)
            figures |= {name: found[name] for name in ("first_output_ms", "not_judged") if name in found}
            figures["recovery"] = found
        figures["judged"] = int("not_judged" not in figures)
        # A run in which a pair is lost or there twice has ended with an error.
        runs.append({**figures, "lost": 0, "duplicated": 0, "state_bytes": options.state_bytes})
    config = {
        **{key: value for key, value in asdict(options).items() if key not in ("data_root", "repeat")},
        "job": JOB,
        "orders": options.orders,
        "new_order_every": NEW_ORDER_EVERY,
        "from": 1,
        "to": 2,
        "task_managers": "2, and a standby for the recovery",
        **SETTINGS,
    }
    return BenchmarkResult(f"joins_{options.state_bytes / 1e6:.0f}_mb", config, runs, BARS)


def _rescaled(options: JoinOptions, rate: float, report: Callable[[str, float], None]) -> dict[str, Any]:
    load = _load(replace(options, rate=rate), report)
    with tempfile.TemporaryDirectory(prefix="weir-joins-") as name:
        return rescale.rescaled(load, 2, options.before_s, SETTINGS, Path(name), "rescale", report)


def _killed(options: JoinOptions, rate: float, report: Callable[[str, float], None]) -> dict[str, Any]:
    load = _load(replace(options, rate=rate), report)
    return recovery.killed(load, options.before_s, "recovery", report)


def _load(options: JoinOptions, report: Callable[[str, float], None]) -> LoadedJob:
    report("generating the input", 0.0)
    later = round(options.rate * (options.settle_s + options.duration_s))
    numbers = order_numbers(options.orders, later)
    source = input_directory(numbers, options.rate, f"{options.orders}-then-{later}", options.data_root)
    parameters = {
        "input": source,
        "rate": options.rate,
        "payload_bytes": options.payload_bytes,
        "parallelism": 1,
        "max_parallelism": 128,
    }
    return LoadedJob(
        job=JOB,
        parameters=parameters,
        rate=options.rate,
        stage=STAGE,
        max_parallelism=128,
        keys=int(numbers.max()),
        steady_s=options.orders / options.rate + options.settle_s,
        timeout_s=120 + len(numbers) / options.rate * 3,
        check=lambda records: no_pair_lost(records, numbers),
    )


def no_pair_lost(records: np.ndarray, numbers: np.ndarray) -> dict[str, int]:
    """Each event of an order but its first one makes one pair, which has its number among the order's events."""
    counted = records.copy()
    counted[:, 1] -= 1
    return nothing_lost(counted, numbers[occurrences(numbers) > 1])


def _throughput(options: JoinOptions, report: Callable[[str, float], None]) -> dict[str, Any]:
    """As fast as possible with one subtask: half a million orders without payloads, and their steps."""
    orders = min(500_000, options.events // 4)
    numbers = order_numbers(orders, options.events - orders)
    rate = 100_000
    source = input_directory(numbers, rate, f"{orders}-then-{options.events - orders}", options.data_root)
    report("throughput", 0.0)
    with tempfile.TemporaryDirectory(prefix="weir-joins-") as name:
        setup = EngineSetup(JOB, {"input": source}, task_managers=1, settings=SETTINGS)
        done = run_engine(setup, Path(name))
    pairs = len(numbers) - int(numbers.max())
    if done.events_out != pairs:
        raise BenchmarkError(f"the join made {done.events_out:,} pairs, not {pairs:,}")
    figures = done.figures()
    return {
        **figures,
        "pairs": pairs,
        "events_per_second_and_core": figures["events_per_second"] / figures["cores"],
    }
