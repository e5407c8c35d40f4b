"""Generating a workload: rows by Spark, files into their place, one closing line of facts."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from weir.spark.session import DEFAULT_MASTER, SparkFailedError, open_session, spark_path
from workload.columns import ROW
from workload.directory import check_target, publish, staging_directory
from workload.parameters import FileFormat, WorkloadParameters
from workload.progress import job_progress
from workload.rows import events, json_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHORT_RUN_EVENTS = 3_000_000


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What a run made."""

    path: Path
    rows: int
    part_count: int
    size_bytes: int
    #: Of Spark's writing; without the start of the JVM.
    write_s: float


def generate(
    parameters: WorkloadParameters,
    out: Path,
    *,
    master: str = DEFAULT_MASTER,
    overwrite: bool = False,
    console: Console | None = None,
) -> WorkloadFacts:
    """Generate a workload into a directory; what ``workgen.py`` does.

    Args:
        parameters: What to generate.
        out: The directory; made when missing, left untouched unless the whole run succeeds.
        master: Spark's master. The directory must be on a file system that the executors share.
        overwrite: Whether an earlier workload in ``out`` may be replaced.
        console: Where progress goes; nowhere when None.

    Returns:
        The facts of the run.

    Raises:
        InputError: ``out`` must not be written.
        ConfigError: Java or pyspark is missing, or the master is not of a known form.
        ConnectionLostError: The master does not answer.
        SparkFailedError: Spark fails, for example for want of disk space.
    """
    # Renaming onto a symbolic link would replace the link, not what it points to.
    target = out.resolve()
    check_target(target, overwrite=overwrite)
    shown = console or Console(quiet=True)
    short_run = parameters.events <= _SHORT_RUN_EVENTS
    with staging_directory(target) as staging, ExitStack() as stack:
        with job_progress(shown, "Starting Spark"):
            spark = stack.enter_context(open_session("weir workgen", master, short_run=short_run))
        return write_workload(spark, parameters, staging, target, overwrite=overwrite, console=shown)


def write_workload(
    spark: SparkSession,
    parameters: WorkloadParameters,
    staging: Path,
    target: Path,
    *,
    overwrite: bool,
    console: Console,
) -> WorkloadFacts:
    """Write the rows with a running session and put them in place; see ``generate``."""
    started = time.monotonic()
    written = staging / "spark"
    row_numbers = spark.range(0, parameters.events, 1, parameters.part_count).withColumnRenamed("id", ROW)
    event_rows = events(row_numbers, parameters)
    with job_progress(console, "Generating", spark, lambda: _size_text(_size_bytes(written))):
        if parameters.file_format is FileFormat.PARQUET:
            event_rows.write.parquet(spark_path(written))
        else:
            json_lines(event_rows, parameters).write.text(spark_path(written))
    parts = _named_parts(written, parameters)
    size_bytes = sum(part.stat().st_size for part in parts)
    write_s = time.monotonic() - started
    facts = {
        "rows": parameters.events,
        "parts": len(parts),
        "bytes": size_bytes,
        "seconds": round(write_s, 3),
    }
    marker = {"parameters": parameters.as_json(), "facts": facts}
    publish(parts, marker, staging, target, overwrite=overwrite)
    return WorkloadFacts(target, parameters.events, len(parts), size_bytes, write_s)


def _named_parts(written: Path, parameters: WorkloadParameters) -> list[Path]:
    """Return Spark's part files in row order, renamed to the suffix of the format.

    Raises:
        SparkFailedError: A part is missing: the executors wrote to another machine's file system.
    """
    parts = sorted(written.glob("part-*")) if (written / "_SUCCESS").is_file() else []
    if len(parts) != parameters.part_count:
        raise SparkFailedError(
            f"Spark wrote {len(parts)} of {parameters.part_count} parts to {written}:"
            " with a remote --master, --out must be on a file system that all machines share"
        )
    suffix = f".{parameters.file_format}"
    return [part.rename(part.with_name(f"part-{index:05d}{suffix}")) for index, part in enumerate(parts)]


def _size_bytes(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            # Spark moves its files while this runs on the progress thread.
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
