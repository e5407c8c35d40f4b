"""``weir run JOB --runner spark``: the job on Spark, from the driver in this process to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.console.given_job import GivenJob
from weir.console.job_files import find_job
from weir.errors import ConfigError, InputError
from weir.spark.running import SparkResult, run_batch, run_stream
from weir.spark.session import check_master, open_session
from weir.spark.translation import job_on_spark


@dataclass(frozen=True)
class SparkOptions:
    """What the user asked for.

    Attributes:
        given: the job.
        master: of Spark.
        streaming: sources are followed.
        conf: KEY=VALUE, settings of Spark.
        checkpoints: of streams; None: below the directory of the run.
        keep_dir: directory of the run; None: ``.weir/JOB``.
        strict: a row that is put aside fails the run.
    """

    given: GivenJob
    master: str
    streaming: bool
    conf: Sequence[str]
    checkpoints: str | None
    keep_dir: Path | None
    strict: bool = False


def run_on_spark(options: SparkOptions) -> int:
    """Run it to its end; returns the exit code.

    Raises:
        ConfigError: a flag is wrong, or Java or pyspark is missing.
        GraphError: the job cannot be loaded, or has a step that does not run on Spark.
        SparkFailedError: Spark gave up.
    """
    graph = options.given.graph()
    mode = "streaming" if options.streaming else "batch"
    # What cannot run is told before Spark is started.
    job_on_spark(graph, "streaming" if options.streaming else "batch").check()
    check_master(options.master)
    found = find_job(options.given.job)
    # Spark's Python processes import the job and Weir from where this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(found.python_path(os.environ))
    with open_session(f"weir {graph.name}", options.master, conf=_settings(options.conf)) as spark:
        if options.streaming:
            place = options.checkpoints or str(
                (options.keep_dir or Path(".weir", found.module)).absolute() / "spark"
            )
            run_stream(spark, graph, place)
            return 0
        result = run_batch(spark, graph)
    _tell_put_aside(result, strict=options.strict)
    print(f"weir run: job {graph.name} finished on Spark ({mode})", file=sys.stderr)
    return 0


def _settings(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigError(f"--spark-conf {item!r} is not of the form spark.NAME=VALUE")
        found[name] = value
    return found


def _tell_put_aside(result: SparkResult, *, strict: bool) -> None:
    for step, reasons in sorted(result.put_aside.items()):
        for reason, rows in reasons.items():
            told = f"step {step!r} put {rows:,} row{'s' if rows > 1 else ''} aside, such as: {reason}"
            if strict:
                raise InputError(f"{told}; a strict run takes none")
            print(f"weir run: {told}", file=sys.stderr)
