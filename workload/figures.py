"""Figures of experiments in CSV files, as Spark reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def medians_by(spark: SparkSession, figures: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Read figures; return a row for each value of the keys, in their order, with the median of each column of numbers.

    Args:
        spark: reads the file.
        figures: CSV with a heading.
        keys: columns; rows that are the same in them count with their median.
    """
    from pyspark.sql import functions

    frame = spark.read.csv(figures.absolute().as_uri(), header=True, inferSchema=True)
    counted = [name for name, kind in frame.dtypes if kind != "string" and name not in keys]
    columns = [functions.percentile(name, functions.lit(0.5)).alias(name) for name in counted]
    grouped = frame.groupBy(*keys).agg(*columns).orderBy(*keys)
    return [row.asDict() for row in grouped.collect()]
