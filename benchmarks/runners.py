"""Jobs of Weir on Spark beside the same jobs written by hand in PySpark: in turn, in one session, equal row by row."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import psutil

from benchmarks.peers.processes import Usage
from benchmarks.peers.run import slope_figures
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.runners_job import build
from weir.spark.running import run_batch
from weir.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOBS = ("rows", "windows", "join")
BARS = tuple(Bar(f"{job}: ratio_to_by_hand", "at least", 0.7) for job in JOBS)
#: Files of the input: more than there are cores.
_PARTS = 8
_BID_SCHEMA = "auction BIGINT, bidder BIGINT, price BIGINT, at BIGINT, url STRING"
_AUCTION_SCHEMA = "id BIGINT, seller BIGINT, at BIGINT"
#: The larger input has so many times the events of the smaller one: what starting and planning take is in both.
_LARGER = 3
_WAYS = ("weir", "by_hand")


@dataclass(frozen=True)
class RunnersOptions:
    """Command-line options."""

    #: Of the larger input.
    events: int = 3_000_000
    repeat: int = 3
    master: str = "local[2]"


def run(options: RunnersOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run each job both ways, in turn, with two sizes; the first round warms up and is compared row by row.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: a job's rows are not those of its hand-written form.
        ConfigError: Java or pyspark is missing.
        SparkFailedError: Spark gave up.
    """
    rounds: list[dict[str, Any]] = []
    sizes = (max(options.events // _LARGER, 1), options.events)
    with (
        tempfile.TemporaryDirectory(prefix="weir-runners-") as name,
        open_session("runners", options.master, driver_memory_bytes=3 << 30) as spark,
    ):
        place = Path(name)
        for size in sizes:
            write_input(place / f"input-{size}", size)
        for number in range(options.repeat + 1):
            figures: dict[str, Any] = {}
            for job in JOBS:
                report(f"round {number} of {options.repeat}: {job}", number / (options.repeat + 1))
                ways = _WAYS if number % 2 == 0 else _WAYS[::-1]
                used = {(way, size): _used(spark, job, place, way, size) for size in sizes for way in ways}
                if number == 0:
                    _check_equal(job, place)
                figures[job] = _figures(used, *sizes)
            if number:
                rounds.append(figures)
    config = {**asdict(options), "smaller_events": sizes[0]}
    return BenchmarkResult("runners", config, rounds, BARS)


def _used(spark: SparkSession, job: str, place: Path, way: str, size: int) -> Usage:
    """What one run took; its rows are in the folder of its way."""
    shutil.rmtree(place / way, ignore_errors=True)
    before_s, began_s = _cpu_s(), time.perf_counter()
    if way == "weir":
        _by_weir(spark, job, place / f"input-{size}", place / way)
    else:
        _by_hand(spark, job, place / f"input-{size}", place / way)
    return Usage(time.perf_counter() - began_s, _cpu_s() - before_s, 0)


def _cpu_s() -> float:
    """CPU of this process and of those that it has started, also of ended ones; Spark's too if its master is local."""
    own, used_s = psutil.Process(), 0.0
    for each in (own, *own.children(recursive=True)):
        # One that ends meanwhile is counted with the children of the process that has waited for it.
        with contextlib.suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def _figures(used: Mapping[tuple[str, int], Usage], few: int, many: int) -> dict[str, Any]:
    """Slopes of both ways between two sizes, and how they compare; None: the larger run took no longer."""
    figures: dict[str, Any] = {}
    for way in _WAYS:
        slope = slope_figures(used[way, few], used[way, many], few, many)
        figures[way] = {name: value for name, value in slope.items() if name != "peak_rss_bytes"}
    for figure, ending in (("events_per_second", ""), ("events_per_second_per_core", "_per_core")):
        ours, theirs = figures["weir"][figure], figures["by_hand"][figure]
        figures[f"ratio_to_by_hand{ending}"] = ours / theirs if ours and theirs else None
    return figures


def _by_weir(spark: SparkSession, job: str, source: Path, output: Path) -> None:
    run_batch(spark, build(job, str(source), str(output)).build())


def _by_hand(spark: SparkSession, job: str, source: Path, output: Path) -> None:
    bids = spark.read.schema(_BID_SCHEMA).json(str(source / "bids"))
    made = _HAND[job](spark, bids, source)
    made.write.parquet(str(output), compression="zstd")


def _rows(spark: SparkSession, bids: DataFrame, source: Path) -> DataFrame:
    kept = bids.where("auction % 3 <> 0 AND url LIKE '%a%'")
    return kept.selectExpr("auction", "bidder", "price * 908 div 1000 AS euros")


def _windows(spark: SparkSession, bids: DataFrame, source: Path) -> DataFrame:
    bids.selectExpr("auction", "price", "timestamp_millis(at) AS time").createOrReplaceTempView("timed")
    return spark.sql(
        """SELECT auction, unix_millis(w.start) AS window_start, unix_millis(w.end) AS window_end, n, most, total FROM (
            SELECT auction, window(time, '10 seconds', '2 seconds') AS w, count(*) AS n, max(price) AS most,
                sum(price) AS total
            FROM timed GROUP BY auction, window(time, '10 seconds', '2 seconds'))"""
    )


def _join(spark: SparkSession, bids: DataFrame, source: Path) -> DataFrame:
    bids.createOrReplaceTempView("bids")
    auctions = spark.read.schema(_AUCTION_SCHEMA).json(str(source / "auctions"))
    auctions.createOrReplaceTempView("auctions")
    return spark.sql(
        """SELECT a.id, a.seller, b.bidder, b.price FROM auctions a
            JOIN bids b ON a.id = b.auction AND b.at BETWEEN a.at AND a.at + 20000"""
    )


_HAND = {"rows": _rows, "windows": _windows, "join": _join}


def _check_equal(job: str, place: Path) -> None:
    found, expected = (
        pl.read_parquet(place / way / "*.parquet").group_by(pl.all()).len().sort(pl.all())
        for way in ("weir", "by_hand")
    )
    if not found.equals(expected.select(found.columns)) or not found.height:
        raise BenchmarkError(f"{job}: the rows of Weir's job on Spark are not those of the job in PySpark")


def write_input(directory: Path, events: int) -> None:
    """Write bids and auctions as JSON lines: an auction for each 50 bids, which come within its first 30 s."""
    chance = np.random.default_rng(7)
    auctions = max(events // 50, 1)
    opened = np.sort(chance.integers(0, 600_000, auctions))
    chosen = chance.integers(0, auctions, events)
    bids = pl.DataFrame(
        {
            "auction": chosen,
            "bidder": chance.integers(0, 10_000, events),
            "price": chance.integers(1, 1_000_000, events),
            "at": opened[chosen] + chance.integers(0, 30_000, events),
            "url": chance.integers(0, 2**40, events),
        }
    ).with_columns(url=pl.format("https://example.org/{}/item", pl.col("url").cast(pl.String)))
    listed = pl.DataFrame({"id": np.arange(auctions), "seller": np.arange(auctions) % 997, "at": opened})
    for name, rows in (("bids", bids.sort("at")), ("auctions", listed)):
        (directory / name).mkdir(parents=True)
        size = -(-rows.height // _PARTS)
        for part in range(_PARTS):
            rows.slice(part * size, size).write_ndjson(directory / name / f"part-{part}.jsonl")
