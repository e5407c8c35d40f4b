"""The Nexmark queries as batch queries of Spark SQL over the same events, and whether two results are equal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq

import weir
from weir.nexmark.source import NexmarkSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: By name; ``bid`` is the view of the bids. ``date_time`` is in ms since 1970, UTC.
SQL = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, price * 0.908D AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q14": """
        SELECT auction, bidder, price * 0.908D AS price,
            CASE WHEN hour(timestamp_millis(date_time)) BETWEEN 8 AND 18 THEN 'dayTime'
                 WHEN hour(timestamp_millis(date_time)) <= 6 OR hour(timestamp_millis(date_time)) >= 20 THEN 'nightTime'
                 ELSE 'otherTime' END AS bid_time_type,
            date_time, extra, CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bid WHERE price * 0.908D > 1000000 AND price * 0.908D < 50000000""",
    "q21": """
        SELECT * FROM (
            SELECT auction, bidder, price, channel,
                CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                    WHEN 'baidu' THEN '3'
                    ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id
            FROM bid) WHERE channel_id IS NOT NULL""",
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
            split_part(url, '/', 6) AS dir3 FROM bid""",
}


def write_bids(path: Path, events: int, seed: int) -> None:
    """All bids of an auction of so many events, as one Parquet file that Spark reads."""
    source = NexmarkSource(weir.Nexmark("bid", events=events, seed=seed, splits=1))
    batches = [batch for batch, _ in source.read(0, None)]
    with pq.ParquetWriter(path, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def expected(spark: SparkSession, query: str, bids: Path, directory: Path) -> pl.DataFrame:
    """What Spark SQL makes of the bids; its files go to the directory, which must not exist."""
    spark.read.parquet(str(bids)).createOrReplaceTempView("bid")
    spark.sql(SQL[query]).write.parquet(str(directory))
    return pl.read_parquet(directory / "*.parquet")


def equal_rows(found: pl.DataFrame, wanted: pl.DataFrame) -> bool:
    """Whether both have the same rows, as often each; numbers and texts to the last digit and letter."""
    if found.schema != wanted.schema:
        return False
    return found.sort(found.columns).equals(wanted.sort(wanted.columns))
