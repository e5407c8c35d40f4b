"""``weir run JOB --runner spark``: the job on Spark, from the driver in this process to its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from weir.console.given_job import GivenJob
from weir.console.job_files import find_job
from weir.errors import ConfigError, InputError
from weir.process.printable import one_entry
from weir.spark.modes import mode_of
from weir.spark.running import run_batch, run_stream
from weir.spark.session import check_master, open_session
from weir.spark.translation import job_on_spark

#: As without Spark.
_CANCELLED_EXIT_CODE = 3


@dataclass(frozen=True)
class SparkOptions:
    """What the user asked for.

    Attributes:
        given: the job.
        master: of Spark.
        streaming: sources are followed; None: if one of them never ends.
        conf: KEY=VALUE, settings of Spark.
        checkpoints: of streams; None: below the directory of the run.
        keep_dir: directory of the run; None: ``.weir/JOB``.
        strict: a row that is put aside fails the run.
    """

    given: GivenJob
    master: str
    streaming: bool | None
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
    mode = mode_of(graph, options.streaming)
    # What cannot run is told before Spark is started.
    job_on_spark(graph, mode).check()
    check_master(options.master)
    found = find_job(options.given.job)
    # Spark's Python processes import the job and Weir from where this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(found.python_path(os.environ))
    put_aside = _PutAside(options.strict)
    ended, code = "finished", 0
    with (
        open_session(f"weir {graph.name}", options.master, conf=_settings(options.conf)) as spark,
        _stoppable(),
    ):
        try:
            if mode == "streaming":
                folder = options.keep_dir or Path(".weir", found.name)
                place = options.checkpoints or str(folder.absolute() / "spark")
                run_stream(spark, graph, place, put_aside=put_aside.tell)
            else:
                put_aside.tell(run_batch(spark, graph).put_aside)
        except KeyboardInterrupt:
            ended, code = "stopped", _CANCELLED_EXIT_CODE
    print(f"weir run: job {graph.name} {ended} on Spark ({mode})", file=sys.stderr)
    return code


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the job alike; pyspark's own handler calls a JVM that may be about to answer."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigError(f"--spark-conf {item!r} is not of the form spark.NAME=VALUE")
        found[name] = value
    return found


@dataclass
class _PutAside:
    """Says which rows were put aside, when their number has changed."""

    strict: bool
    said: dict[tuple[str, str], int] = field(default_factory=dict)

    def tell(self, put_aside: Mapping[str, Mapping[str, int]]) -> None:
        """Take how many there are so far, by step and reason.

        Raises:
            InputError: there is one, and the run is strict.
        """
        for step, reasons in sorted(put_aside.items()):
            for reason, rows in reasons.items():
                if self.said.get((step, reason)) == rows:
                    continue
                self.said[step, reason] = rows
                told = f"step {step!r} put {rows:,} row{'s' if rows > 1 else ''} aside, such as: {reason}"
                if self.strict:
                    raise InputError(f"{told}; a strict run takes none")
                print(f"weir run: {one_entry(told)}", file=sys.stderr)
