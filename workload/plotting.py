"""Analysing latency files into a table, pictures and a summary; what ``plot.py`` does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from weir.errors import ConfigError, InputError
from weir.spark.session import DEFAULT_MASTER, open_session
from workload.analysis import FileAnalysis, analyse
from workload.latency_files import find_latency_files
from workload.pictures import PICTURE_NAMES, draw_pictures
from workload.progress import job_progress
from workload.report import SUMMARY_NAME, summary, write_summary

#: About three million lines.
_SHORT_RUN_BYTES = 64 << 20


def plot(
    arguments: Sequence[Path],
    out: Path,
    *,
    overwrite: bool = False,
    cut_warmup_s: float = 0.0,
    title: str | None = None,
    master: str = DEFAULT_MASTER,
    console: Console | None = None,
) -> tuple[list[FileAnalysis], list[Path]]:
    """Analyse latency files and write the pictures and ``summary.json``.

    Args:
        arguments: Latency files, or directories of them.
        out: Directory of the results; made when missing.
        overwrite: Whether results of an earlier call may be replaced.
        cut_warmup_s: Seconds after each file's first arrival that are left out.
        title: Added to the pictures' headings.
        master: Spark's master; the files must be visible to its executors.
        console: Where progress and warnings go; nowhere when None.

    Returns:
        The analyses, and the paths that were written.

    Raises:
        ConfigError: A negative cut, no argument, Java or pyspark missing, an unknown form of master.
        InputError: A file is missing, empty or holds no latencies, or results exist and ``overwrite`` is off.
        ConnectionLostError: The master does not answer.
        SparkFailedError: Spark fails.
    """
    if not 0 <= cut_warmup_s < 1e9:
        raise ConfigError(f"--cut-warmup-s is {cut_warmup_s:g}; it must be 0 or more seconds")
    files = find_latency_files(arguments)
    _check_out(out, overwrite=overwrite)
    shown = console or Console(quiet=True)
    short_run = sum(file.path.stat().st_size for file in files) <= _SHORT_RUN_BYTES
    with ExitStack() as stack:
        with job_progress(shown, "Starting Spark"):
            spark = stack.enter_context(open_session("weir plot", master, short_run=short_run))
        with job_progress(shown, f"Analysing {len(files)} file{'s' * (len(files) > 1)}", spark):
            analyses = analyse(spark, files, cut_warmup_s=cut_warmup_s)
    for analysis in analyses:
        if analysis.file.warning:
            shown.print(f"warning: {analysis.file.warning}", style="yellow", markup=False, highlight=False)
        if analysis.malformed:
            text = f"warning: {analysis.file.path}: {analysis.malformed:,} malformed lines left out"
            shown.print(text, style="yellow", markup=False, highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    with job_progress(shown, "Drawing"):
        written = draw_pictures(analyses, out, title=title)
    write_summary(out / SUMMARY_NAME, summary(analyses, cut_warmup_s=cut_warmup_s))
    return analyses, [*written, out / SUMMARY_NAME]


def _check_out(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: give a directory")
    existing = [name for name in (*PICTURE_NAMES, SUMMARY_NAME) if (out / name).exists()]
    if existing and not overwrite:
        raise InputError(
            f"--out {out} holds {existing[0]} already: add --overwrite, or give another directory"
        )
