"""The driver of one streaming query of Spark: ``python -m benchmarks.peers.spark_driver ORDER.json``.

Reads what is there and ends. What it did stands in the order's ``outcome``: ``refused`` is Spark's reason, if it has no
such query.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.texts import EVENT_TIME, OUT_OF_ORDERNESS_S
from weir.spark.session import SparkFailedError, open_session, spark_failures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
HEAP_BYTES = 4 << 30
TRIGGER = "availableNow, maxFilesPerTrigger=1"
_STORES = "spark.sql.streaming.stateStore"
CONF = {
    f"{_STORES}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STORES}.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}
_TYPES = {"TIME": "BIGINT"}
#: Conditions of Spark's errors that say that streams have no such query.
_IS_NOT_THERE = re.compile("STREAM|UNSUPPORTED|_LEGACY_ERROR_TEMP_3102")
_REASON_MAX = 200


def main(path: str) -> int:
    """Run the query that an order describes."""
    order = json.loads(Path(path).read_text("utf-8"))
    refused = ""
    with open_session("peers", MASTER, driver_memory_bytes=HEAP_BYTES, conf=CONF) as spark:
        for name, table in order["tables"].items():
            _open_stream(spark, name, table, order["form"])
        try:
            with spark_failures():
                _run(spark.sql(order["text"]), order)
        except SparkFailedError as error:
            # Other errors of the text are faults of this benchmark.
            told: Any = error.__cause__
            condition = getattr(told, "getCondition", str)() or ""
            if not _IS_NOT_THERE.search(condition):
                raise
            refused = str(told).splitlines()[0].partition(". ")[0][:_REASON_MAX]
    Path(order["outcome"]).write_text(json.dumps({"refused": refused}), "utf-8")
    return 0


def _open_stream(spark: SparkSession, name: str, table: dict[str, Any], form: str) -> None:
    columns: dict[str, str] = table["columns"]
    schema = ", ".join(f"{column} {_TYPES.get(kind, kind)}" for column, kind in columns.items())
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    rows = reader.format(form).load(table["path"])
    if EVENT_TIME in columns:
        rows = rows.selectExpr(
            *(
                f"timestamp_millis({column}) AS {column}" if kind == "TIME" else column
                for column, kind in columns.items()
            )
        ).withWatermark(EVENT_TIME, f"{OUT_OF_ORDERNESS_S} seconds")
    rows.createOrReplaceTempView(name)


def _run(result: DataFrame, order: dict[str, Any]) -> None:
    def keep(batch: DataFrame, number: int) -> None:
        batch.write.parquet(f"{order['result']}/part={number}")

    writer = result.writeStream.outputMode(order["mode"]).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", order["checkpoints"])
    writer = writer.foreachBatch(keep) if order["result"] else writer.format("noop")
    query = writer.start()
    query.awaitTermination()
    if error := query.exception():
        raise error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
