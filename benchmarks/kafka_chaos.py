"""From a real Kafka to a real Kafka exactly once, while task managers, brokers and the control plane are killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Bar, BenchmarkResult
from experiments.chaos import ChaosSettings
from experiments.kafka_chaos import run_kafka_chaos

BARS = (
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
    Bar("out_of_order", "at most", 0),
    Bar("wrong_counts", "at most", 0),
)


@dataclass(frozen=True)
class KafkaChaosOptions:
    """Command-line options."""

    seconds: float = 600.0
    every_s: float = 5.0
    seed: int = 1
    rate: int = 1000


def run(options: KafkaChaosOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """One run with its faults; logs stay if it fails.

    Args:
        options: what to run.
        report: called with every fault and the part of the time that is over, 0 to 1.

    Raises:
        ChaosError: the job failed, hangs, or a process ended that nobody had ended.
        ServiceError: there is no Java or no Maven.
    """
    directory = Path(tempfile.mkdtemp(prefix="weir-kafka-chaos-"))
    settings = ChaosSettings(options.seconds, options.every_s, options.seed, options.rate)

    def tell(line: str) -> None:
        at_s = line.split(" s ")[0].strip()
        report(
            line.strip(), min(float(at_s) / options.seconds, 1.0) if at_s.replace(".", "").isdigit() else 0
        )

    result = run_kafka_chaos(directory, settings, tell)
    if result.first_wrong:
        report(f"wrong: {result.first_wrong}; logs stay in {directory}", 1.0)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    config = {
        "job": "experiments.kafka_chaos_job",
        "seconds": options.seconds,
        "every_s": options.every_s,
        "seed": options.seed,
        "rate": options.rate,
        "brokers": 3,
        "task_managers": settings.task_managers,
    }
    return BenchmarkResult("kafka_chaos", config, [result.to_json()], BARS)
