"""Data frames of a job's sources, and of steps that give rows other event times: bad rows are counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weir.plan.graph import Node
from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.lines import FILE_COLUMN, LINE_COLUMN
from weir.spark.native import TIME_MS_MAX, Reading
from weir.spark.readers import CORRUPT_COLUMN
from weir.spark.task_steps import ORDER_COLUMN
from weir.spark.types import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

_TIME, _ORDER = quoted(EVENT_TIME_COLUMN), quoted(ORDER_COLUMN)
#: The text of a record that is not of the schema, and what is wrong with a row; null: nothing is.
_TEXT, _WRONG = "_weir_text", "_weir_wrong"
_NO_FIT = "a record does not fit the schema"


class SourceFrames:
    """Reads sources, and checks event times; what is bad of them is told once the frames have run.

    Args:
        spark: the session.
        now_ms: the wall clock, for event times that are too far ahead, and those of sources that have none.
        in_stream: sources are followed.
    """

    def __init__(self, spark: SparkSession, now_ms: int, *, in_stream: bool) -> None:
        self._spark, self._now_ms, self._in_stream = spark, now_ms, in_stream
        self._observed: dict[str, Observation] = {}
        #: By source what is wrong with its bad records, where the frame that counts them does not say which ones.
        self._reasons: dict[str, DataFrame] = {}

    @property
    def seen(self) -> dict[str, Mapping[str, Any]]:
        """Return, by source or step, ``rows`` that were bad, and the ``reason`` of one: once a batch has run."""
        found: dict[str, Mapping[str, Any]] = {}
        for name, observation in self._observed.items():
            inner: Any = observation._jo  # noqa: SLF001
            # Where Spark knows that no row is left it reads none, which pyspark cannot tell of.
            if inner.getRow().size():
                found[name] = self._told(name, observation.get)
        return found

    def _told(self, name: str, seen: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was seen, with the text of a bad record, for which the source is read once more."""
        from pyspark.errors import PySparkException

        if not seen["rows"] or name not in self._reasons:
            return seen
        try:
            first = self._reasons[name].first()
        except PySparkException:
            # The job has run; its files may be gone since.
            first = None
        return seen if first is None else {**seen, "reason": first[0]}

    def read(self, node: Node, made: Reading, *, numbered: bool) -> DataFrame:
        """Return the good records: user columns, the event time, and the place; ``numbered``: that is of interest."""
        source = self._spark.readStream if self._in_stream else self._spark.read
        reader = source.format(made.format).options(**dict(made.options))
        if made.schema:
            reader = reader.schema(made.schema)
        frame = (
            reader.load(_folder(made.path) if self._in_stream else made.path) if made.path else reader.load()
        )
        order = "monotonically_increasing_id()" if numbered and not self._in_stream else "0L"
        # The text of a record that is not of the schema.
        corrupt = quoted(CORRUPT_COLUMN) if made.format == "json" else "CAST(NULL AS STRING)"
        columns = [f"{text} AS {quoted(name)}" for name, text in made.columns]
        frame = frame.selectExpr(*columns, f"{order} AS {_ORDER}", f"{corrupt} AS {_TEXT}")
        names = [quoted(name) for name in node.schema.names]
        time = self._reading_time if made.time is None else f"CAST({made.time} AS BIGINT)"
        frame = frame.selectExpr(*names, f"{time} AS {_TIME}", _ORDER, _TEXT)
        good = [self._is_time(made.future_ms_max)]
        good += [f"{quoted(name)} IS NOT NULL" for name in made.required]
        good += [f"coalesce(abs({quoted(name)}) < DOUBLE('Infinity'), TRUE)" for name in made.finite]
        return self._without_bad(node, made, frame, " AND ".join(good)).drop(_TEXT)

    def lines(self, path: str) -> DataFrame:
        """The lines of the files of a stream, with the files that they are of."""
        read = self._spark.readStream.format("text").option("lineSep", "\n").load(_folder(path))
        return read.selectExpr(
            f"CAST(value AS BINARY) AS {LINE_COLUMN}", f"_metadata.file_path AS {FILE_COLUMN}"
        )

    def with_good_times(self, node: Node, frame: DataFrame, future_ms_max: int | None) -> DataFrame:
        """The rows whose event time is one; the others are counted as put aside by the step."""
        wrong = f"""CASE WHEN {_TIME} IS NULL THEN 'the event time is null' ELSE concat('the event time ', {_TIME},
            ' is no time in ms since 1970, or too far ahead of the clock') END"""
        return self._counted(node.name, frame, self._is_time(future_ms_max), wrong)

    def _is_time(self, future_ms_max: int | None) -> str:
        """The condition that a row has an event time, which is not too far ahead."""
        ahead_ms = TIME_MS_MAX if future_ms_max is None else self._now_ms + future_ms_max
        return f"{_TIME} IS NOT NULL AND {_TIME} BETWEEN {-TIME_MS_MAX}L AND {min(TIME_MS_MAX, ahead_ms)}L"

    @property
    def _reading_time(self) -> str:
        return "unix_millis(current_timestamp())" if self._in_stream else f"{self._now_ms}L"

    def _without_bad(self, node: Node, made: Reading, frame: DataFrame, good: str) -> DataFrame:
        """The records of a source that Spark could read, with good values; the others are counted, or fail the job."""
        whole = f"{_TEXT} IS NULL AND {good}"
        if made.fails:
            source = literal(f"source {node.name!r}: a record does not fit its schema: ")
            error = f"raise_error(concat({source}, coalesce({_TEXT}, 'a value is missing, or its event time is bad')))"
            return frame.where(f"CASE WHEN {whole} THEN TRUE ELSE {error} END")
        reason = f"concat({literal(_NO_FIT)}, coalesce(concat(': ', left({_TEXT}, 200)), ''))"
        if self._in_stream or made.format != "json" or len(made.required) < len(made.columns):
            return self._counted(node.name, frame, whole, reason)
        # A record that Spark could not read lacks a value that it must have. Its text is not asked for while the job
        # runs: it would cost each record, good or bad.
        self._reasons[node.name] = frame.where(f"NOT ({whole})").selectExpr(reason).limit(1)
        return self._counted(node.name, frame, good, literal(_NO_FIT))

    def _counted(self, name: str, frame: DataFrame, good: str, wrong: str) -> DataFrame:
        """The good rows of a source, or step; the others are counted, and what is wrong with one of them is kept."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import expr

        # Spark does not compile what it observes into one loop with the steps around: so nothing is computed there.
        frame = frame.selectExpr("*", f"CASE WHEN NOT ({good}) THEN {wrong} END AS {_WRONG}")
        counted, reason = expr(f"count({_WRONG})").alias("rows"), expr(f"max({_WRONG})").alias("reason")
        # The progress of each query of a stream tells it, under this name.
        seen = name if self._in_stream else Observation(f"weir {name}")
        if not isinstance(seen, str):
            self._observed[name] = seen
        return frame.observe(seen, counted, reason).where(f"{_WRONG} IS NULL").drop(_WRONG)


def _folder(path: str) -> str:
    """The path as streams take it: of one file a pattern that only it has."""
    head, slash, name = path.rpartition("/")
    is_file = "." in name and "*" not in name
    return f"{head}{slash}{name[:-1]}[{name[-1]}]" if is_file else path
