"""Watermarks of Spark's own streams: one follows all rows of a source, whatever is dropped on the way to a step.

Which steps have one says ``weir.spark.streams``; Spark takes no second one behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPARK_TIME = f"timestamp_millis({quoted(EVENT_TIME_COLUMN)})"
#: By this Spark knows a column that goes by a watermark.
_DELAY = "spark.watermarkDelayMs"


def watermarked(frame: DataFrame, bound_ms: int) -> DataFrame:
    """Return the rows; the watermark follows their event times at this distance."""
    timed = frame.selectExpr("*", f"{_SPARK_TIME} AS _time").withWatermark(
        "_time", f"{bound_ms} milliseconds"
    )
    # Spark moves filters to before a watermark, also those that it infers from a join, but none over a condition that
    # is not the same for each call.
    return timed.where("spark_partition_id() >= 0").drop("_time")


def with_spark_times(frame: DataFrame, bound_ms: int) -> DataFrame:
    """Return rows of :func:`watermarked` streams with their times as Spark takes them, as column ``_time``.

    The steps between may have made new columns of all, so that Spark is told anew that a watermark goes by this one.
    """
    from pyspark.sql.functions import expr

    return frame.select("*", expr(_SPARK_TIME).alias("_time", metadata={_DELAY: bound_ms}))
