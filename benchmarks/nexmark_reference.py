"""The auction's events as files, what Spark SQL makes of them, and whether two results are equal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq

import weir
from benchmarks.nexmark_sql import SQL
from weir.nexmark.model import STREAMS
from weir.nexmark.source import NexmarkSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The column of a changelog that says what a row does to the table, and the values that add a row.
_CHANGE, _ADDS = "_change", ("insert", "update_after")


def write_streams(directory: Path, events: int, seed: int, events_per_second: int) -> None:
    """All people, auctions and bids of an auction of so many events, as one Parquet file each, which Spark reads."""
    directory.mkdir(parents=True, exist_ok=True)
    for stream in STREAMS:
        spec = weir.Nexmark(stream, events=events, seed=seed, events_per_second=events_per_second, splits=1)
        batches = [batch for batch, _ in NexmarkSource(spec).read(0, None)]
        with pq.ParquetWriter(directory / f"{stream}.parquet", batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)


def open_streams(spark: SparkSession, directory: Path) -> None:
    """Make the views that the queries read of what :func:`write_streams` wrote."""
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    for stream in STREAMS:
        spark.read.parquet(str(directory / f"{stream}.parquet")).createOrReplaceTempView(stream)


def expected(spark: SparkSession, query: str, directory: Path) -> pl.DataFrame:
    """What Spark SQL makes of the events; its files go to the directory, which must not exist."""
    spark.sql(SQL[query]).coalesce(1).write.parquet(str(directory))
    return pl.read_parquet(directory / "*.parquet")


def comparable(query: str, found: pl.DataFrame) -> pl.DataFrame:
    """A query's result in the form of the reference: a changelog as the table that it leaves."""
    if query == "q12":
        return found.group_by("bidder").agg(pl.col("bid_count").sum())
    if query == "q4":
        # Numbers of auctions, and what they are sold for, only grow.
        last = found.sort("n", "total").group_by("category").last()
        return last.select("category", "average")
    return table_of(found) if _CHANGE in found.columns else found


def table_of(changes: pl.DataFrame) -> pl.DataFrame:
    """The rows that were added more often than they were taken away, so often."""
    adds = pl.when(pl.col(_CHANGE).is_in(_ADDS)).then(1).otherwise(-1)
    columns = [name for name in changes.columns if name != _CHANGE]
    left = changes.with_columns(adds.alias("_adds")).group_by(columns).agg(pl.col("_adds").sum())
    if (left["_adds"] < 0).any():
        raise ValueError("a row was taken away that was not there")
    return left.filter(pl.col("_adds") > 0).select(pl.col(columns).repeat_by("_adds")).explode(columns)


def equal_rows(found: pl.DataFrame, wanted: pl.DataFrame) -> bool:
    """Whether both have the same rows, as often each; numbers and texts to the last digit and letter."""
    if found.schema != wanted.schema:
        return False
    return found.sort(found.columns).equals(wanted.sort(wanted.columns))


def equal_choice(found: pl.DataFrame, wanted: pl.DataFrame, bids: pl.DataFrame) -> bool:
    """As :func:`equal_rows` for q19, which orders by price: which of equally high bids comes first, SQL leaves open.

    Two subtasks read the bids, so these do not always come in the order of their times, which Spark's query goes by.

    Args:
        found: the highest bids of auctions with their ``place``.
        wanted: the reference's.
        bids: all bids; those found must be among them, none more often than there.
    """
    decided, columns = ["auction", "price", "place"], [name for name in wanted.columns if name != "place"]
    if found.schema != wanted.schema or not equal_rows(found.select(decided), wanted.select(decided)):
        return False
    there = bids.group_by(columns).len("there")
    chosen = found.group_by(columns).len().join(there, on=columns, how="left", nulls_equal=True)
    return bool((chosen["len"] <= chosen["there"].fill_null(0)).all())
