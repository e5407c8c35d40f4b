"""Data frames of a job's sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.plan.graph import Node
from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.native import TIME_MS_MAX, Reading
from weir.spark.readers import CORRUPT_COLUMN, json_value
from weir.spark.task_steps import ORDER_COLUMN
from weir.spark.types import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

_TIME, _ORDER = quoted(EVENT_TIME_COLUMN), quoted(ORDER_COLUMN)


class SourceFrames:
    """Reads sources; what it has seen of their bad records is told once the frames have run.

    Args:
        spark: the session.
        now_ms: the wall clock, for event times that are too far ahead, and those of sources that have none.
        in_stream: sources are followed.
    """

    def __init__(self, spark: SparkSession, now_ms: int, *, in_stream: bool) -> None:
        self._spark, self._now_ms, self._in_stream = spark, now_ms, in_stream
        #: By source what a batch of Spark has seen of its bad records.
        self.observed: dict[str, Observation] = {}

    def read(self, node: Node, made: Reading, *, numbered: bool) -> DataFrame:
        """Return the good records: user columns, the event time, and the place; ``numbered``: that is of interest."""
        source = self._spark.readStream if self._in_stream else self._spark.read
        reader = source.format(made.format).options(**dict(made.options))
        if made.schema:
            reader = reader.schema(made.schema)
        frame = (
            reader.load(_folder(made.path) if self._in_stream else made.path) if made.path else reader.load()
        )
        if made.value:
            frame = frame.selectExpr("*", f"{json_value(made.value)} AS _value")
        order = "monotonically_increasing_id()" if numbered and not self._in_stream else "0L"
        # The text of a record that is not of the schema.
        corrupt = quoted(CORRUPT_COLUMN) if made.format == "json" else "CAST(NULL AS STRING)"
        corrupt = f"_value.{quoted(CORRUPT_COLUMN)}" if made.value else corrupt
        columns = [f"{text} AS {quoted(name)}" for name, text in made.columns]
        frame = frame.selectExpr(*columns, f"{order} AS {_ORDER}", f"{corrupt} AS _text")
        names = [quoted(name) for name in node.schema.names]
        time = self._reading_time if made.time is None else f"CAST({made.time} AS BIGINT)"
        frame = frame.selectExpr(*names, f"{time} AS {_TIME}", _ORDER, "_text")
        good = ["_text IS NULL", self.is_time(made.future_ms_max)]
        good += [f"{quoted(name)} IS NOT NULL" for name in made.required]
        return self._without_bad(node, made, frame, " AND ".join(good)).drop("_text")

    def is_time(self, future_ms_max: int | None) -> str:
        """The condition that a row has an event time, which is not too far ahead."""
        ahead_ms = TIME_MS_MAX if future_ms_max is None else self._now_ms + future_ms_max
        return f"{_TIME} IS NOT NULL AND {_TIME} BETWEEN {-TIME_MS_MAX}L AND {min(TIME_MS_MAX, ahead_ms)}L"

    @property
    def _reading_time(self) -> str:
        return "unix_millis(current_timestamp())" if self._in_stream else f"{self._now_ms}L"

    def _without_bad(self, node: Node, made: Reading, frame: DataFrame, good: str) -> DataFrame:
        """The good records of a source; the others are counted, or fail the job."""
        if made.fails:
            told = literal(f"source {node.name!r}: a record does not fit its schema: ")
            error = f"raise_error(concat({told}, coalesce(_text, 'a value is missing, or its event time is bad')))"
            return frame.where(f"CASE WHEN {good} THEN TRUE ELSE {error} END")
        from pyspark.sql import Observation
        from pyspark.sql.functions import expr

        counted = expr(f"count_if(NOT ({good}))").alias("rows")
        first = expr("max(left(_text, 200))").alias("text")
        if self._in_stream:
            # The progress of each query tells it, under this name.
            return frame.observe(node.name, counted, first).where(good)
        seen = self.observed[node.name] = Observation(f"weir {node.name}")
        return frame.observe(seen, counted, first).where(good)


def _folder(path: str) -> str:
    """The path as streams take it: of one file a pattern that only it has."""
    head, slash, name = path.rpartition("/")
    is_file = "." in name and "*" not in name
    return f"{head}{slash}{name[:-1]}[{name[-1]}]" if is_file else path
