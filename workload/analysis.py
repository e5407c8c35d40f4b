"""Latency files in, numbers out: read and aggregated by Spark, with exact percentiles by nearest rank.

The percentile p of n values is the value at rank ``ceil(p * n / 100)`` of the sorted values. It is found by
counting equal values and adding up the counts in order; Spark goes to disk where memory does not suffice.
Only a bounded number of rows comes to the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from weir.errors import InputError
from weir.spark.session import spark_path
from workload.latency_files import LatencyFile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

PERCENTILES = (50, 95, 99)
#: Parts of a run in which something was scaled.
PHASES = ("before", "during", "after")
#: An event's line: epoch ms (12 to 14 digits: 1973 to 5138), comma, latency in ms.
LINE_PATTERN = r"^\d{12,14},-?\d{1,12}(\.\d{1,12})?$"
#: Longer lines are malformed without a look at them; keeps binary garbage away from the pattern.
LINE_LENGTH_MAX = 60
#: Rows per file that come to the driver: time slices, and single events for the scatter plot.
SLICES_MAX = 1_800
POINTS_MAX = 6_000
#: Number of the slice that stands for all of a file.
_WHOLE_FILE = -1
_GLOB_CHARACTER = re.compile(r"([\\{}\[\]*?,])")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of a set of latencies; all values in ms."""

    events: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Slice:
    """The events that arrived in one slice of ``FileAnalysis.slice_s`` seconds."""

    #: Seconds from the file's first arrival to the beginning of the slice.
    start_s: float
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class FileAnalysis:
    """Everything that tables and pictures need about one file."""

    file: LatencyFile
    statistics: Statistics
    mean_ms: float
    min_ms: float
    #: Earliest arrival in the file, before any warm-up was cut; zero of the time axis.
    first_arrival_ms: int
    #: Time between the first and the last arrival after the cut.
    duration_s: float
    malformed: int
    #: Events left out because they arrived in the warm-up.
    cut: int
    #: 1 second, or a multiple where the run was so long that there would be more than ``SLICES_MAX`` slices.
    slice_s: int
    #: In order of time; slices without an event are absent.
    slices: tuple[Slice, ...]
    #: All events, or about ``POINTS_MAX`` drawn by a hash: (seconds since first arrival, latency in ms).
    points: tuple[tuple[float, float], ...]
    #: Of a scaled run, by ``PHASES``: events that arrived before the first request, from then to the completion,
    #: and after it. Phases without an event are absent.
    phases: Mapping[str, Statistics] = field(default_factory=dict)

    @property
    def throughput(self) -> float | None:
        """Events per second between the first and the last arrival; None when all arrived at once."""
        return self.statistics.events / self.duration_s if self.duration_s > 0 else None


def analyse(
    spark: SparkSession, files: Sequence[LatencyFile], *, cut_warmup_s: float = 0.0
) -> list[FileAnalysis]:
    """Read latency files and compute their statistics.

    Args:
        spark: A session.
        files: At least one file.
        cut_warmup_s: Events that arrive in so many seconds after the file's first arrival are left out.

    Returns:
        One analysis per file, in the same order.

    Raises:
        InputError: A file has no well-formed line, or none after the cut.
    """
    from pyspark.sql import functions as f

    lines = read_lines(spark, [file.path for file in files])
    whole = _overviews(lines, files)
    order = range(len(files))
    since_ms = f.col("arrival_ms") - _per_file([whole[index]["first_ms"] for index in order])
    slice_s = [_slice_seconds(whole[index]) for index in order]
    kept = (
        lines.where(f.col("latency_ms").isNotNull())
        .withColumn("since_ms", since_ms)
        .where(f.col("since_ms") >= cut_warmup_s * 1000.0)
    )
    totals = whole if cut_warmup_s == 0 else {row["file"]: row for row in _totals(kept).collect()}
    for index, file in enumerate(files):
        if index not in totals:
            raise InputError(f"{file.path} has no event after --cut-warmup-s {cut_warmup_s:g}: cut less")
    ranked = _ranked(kept.withColumn("slice", f.floor(f.col("since_ms") / (_per_file(slice_s) * 1000))))
    rows = sorted(ranked.collect(), key=lambda row: (row["file"], row["slice"]))
    points = _thinned_points(kept, [totals[index]["events"] for index in order])
    phases = _phases(kept, files)
    return [
        _file_analysis(
            file,
            whole[index],
            totals[index],
            slice_s[index],
            [row for row in rows if row["file"] == index],
            points.get(index, []),
            phases.get(index, {}),
        )
        for index, file in enumerate(files)
    ]


def _file_analysis(
    file: LatencyFile,
    overview: Row,
    total: Row,
    slice_s: int,
    rows: Sequence[Row],
    points: Sequence[tuple[float, float]],
    phases: Mapping[str, Statistics],
) -> FileAnalysis:
    by_slice = {row["slice"]: _statistics(row) for row in rows}
    return FileAnalysis(
        file=file,
        statistics=by_slice.pop(_WHOLE_FILE),
        mean_ms=total["mean_ms"],
        min_ms=total["min_ms"],
        first_arrival_ms=overview["first_ms"],
        duration_s=(total["last_ms"] - total["first_ms"]) / 1000.0,
        malformed=overview["malformed"],
        cut=overview["events"] - total["events"],
        slice_s=slice_s,
        slices=tuple(Slice(float(number * slice_s), numbers) for number, numbers in by_slice.items()),
        points=tuple(points),
        phases=phases,
    )


def read_lines(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Read latency files, one row per line that is not blank.

    Args:
        spark: A session.
        paths: Absolute paths.

    Returns:
        Columns ``file`` (int, index into ``paths``), ``arrival_ms`` (long) and ``latency_ms`` (double); the
        latter two are null where the line is malformed.
    """
    from pyspark.sql import functions as f

    whole: DataFrame | None = None
    for index, path in enumerate(paths):
        # Spark takes every path for a pattern.
        literal = _GLOB_CHARACTER.sub(r"\\\1", spark_path(path))
        part = spark.read.text(literal).select(f.lit(index).alias("file"), "value")
        whole = part if whole is None else whole.unionAll(part)
    if whole is None:
        raise ValueError("no paths")
    text = f.trim("value")
    good = (f.octet_length(text) <= LINE_LENGTH_MAX) & text.rlike(LINE_PATTERN)
    return whole.where(f.octet_length(text) > 0).select(
        "file",
        f.when(good, f.substring_index(text, ",", 1).cast("long")).alias("arrival_ms"),
        f.when(good, f.substring_index(text, ",", -1).cast("double")).alias("latency_ms"),
    )


def _overviews(lines: DataFrame, files: Sequence[LatencyFile]) -> dict[int, Row]:
    from pyspark.sql import functions as f

    rows = _totals(lines, (f.count("*") - f.count("arrival_ms")).alias("malformed"))
    overviews = {row["file"]: row for row in rows.collect()}
    for index, file in enumerate(files):
        if index not in overviews or not overviews[index]["events"]:
            raise InputError(
                f"{file.path} has no line of the form arrival_epoch_ms,latency_ms: is it a latency file?"
            )
    return overviews


def _totals(lines: DataFrame, *more: Column) -> DataFrame:
    """Return one row per file over its well-formed lines; nulls are left out by the functions themselves."""
    from pyspark.sql import functions as f

    return lines.groupBy("file").agg(
        f.count("arrival_ms").alias("events"),
        f.avg("latency_ms").alias("mean_ms"),
        f.min("latency_ms").alias("min_ms"),
        f.min("arrival_ms").alias("first_ms"),
        f.max("arrival_ms").alias("last_ms"),
        *more,
    )


def _ranked(kept: DataFrame) -> DataFrame:
    """Return events, maximum and percentiles per file and slice, and per file as slice ``_WHOLE_FILE``.

    One pass for both: equal values are counted first, so that taking each count twice costs little.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    counted = kept.groupBy("file", "slice", "latency_ms").agg(f.count("*").alias("occurrences"))
    both = counted.withColumn("slice", f.explode(f.array(f.col("slice"), f.lit(_WHOLE_FILE).cast("long"))))
    group = Window.partitionBy("file", "slice")
    # Equal values of a whole file, found in several slices, share a rank: a range frame takes them together.
    ranked = both.select(
        "file",
        "slice",
        "latency_ms",
        f.sum("occurrences").over(group.orderBy("latency_ms")).alias("rank"),
        f.sum("occurrences").over(group).alias("events"),
    )
    # Whole numbers: 0.99 * n is not always what it seems in floating point.
    at_rank = [
        f.min(f.when(f.col("rank") * 100 >= f.col("events") * percent, f.col("latency_ms"))).alias(
            f"p{percent}_ms"
        )
        for percent in PERCENTILES
    ]
    return ranked.groupBy("file", "slice").agg(
        f.max("events").alias("events"), f.max("latency_ms").alias("max_ms"), *at_rank
    )


def _thinned_points(kept: DataFrame, events: Sequence[int]) -> dict[int, list[tuple[float, float]]]:
    """Return about ``POINTS_MAX`` events per file, or all, chosen by a hash: the same every time."""
    from pyspark.sql import functions as f

    share = [min(1.0, POINTS_MAX / count) for count in events]
    chance = f.shiftrightunsigned(f.xxhash64("arrival_ms", "latency_ms"), 11).cast("double") * 2.0**-53
    chosen = kept.where(chance < _per_file(share)).select("file", "since_ms", "latency_ms")
    points: dict[int, list[tuple[float, float]]] = {}
    # A file of many equal lines would be kept whole by the hash; the limit holds then.
    for row in chosen.limit(2 * POINTS_MAX * len(events)).collect():
        points.setdefault(row["file"], []).append((row["since_ms"] / 1000.0, row["latency_ms"]))
    return points


def _phases(kept: DataFrame, files: Sequence[LatencyFile]) -> dict[int, dict[str, Statistics]]:
    """Return the statistics of each phase, by file, of those files that say when scaling began and ended."""
    from pyspark.sql import functions as f

    scaled = [index for index, file in enumerate(files) if file.marks_ms and file.completed_ms is not None]
    if not scaled:
        return {}
    requested = _per_file([min(file.marks_ms, default=0.0) for file in files])
    completed = _per_file([file.completed_ms or 0.0 for file in files])
    arrival = f.col("arrival_ms")
    number = (arrival >= requested).cast("long") + (arrival >= completed).cast("long")
    rows = _ranked(kept.where(f.col("file").isin(scaled)).withColumn("slice", number)).collect()
    found: dict[int, dict[str, Statistics]] = {}
    for row in sorted(rows, key=lambda row: (row["file"], row["slice"])):
        if row["slice"] != _WHOLE_FILE:
            found.setdefault(row["file"], {})[PHASES[row["slice"]]] = _statistics(row)
    return found


def _per_file(values: Sequence[float]) -> Column:
    """Return the value that belongs to the row's file."""
    from pyspark.sql import functions as f

    return f.element_at(f.array(*(f.lit(value) for value in values)), f.col("file") + 1)


def _slice_seconds(overview: Row) -> int:
    duration_s = (overview["last_ms"] - overview["first_ms"]) / 1000.0
    return max(1, -(-int(duration_s + 1) // SLICES_MAX))


def _statistics(row: Row) -> Statistics:
    return Statistics(row["events"], row["p50_ms"], row["p95_ms"], row["p99_ms"], row["max_ms"])
