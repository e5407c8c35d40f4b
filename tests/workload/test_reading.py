"""Files that Spark writes as it comes are read by sources, row for row."""

from __future__ import annotations

import polars as pl
import pytest

import weir

ROWS = """
select id, cast(id % 100 as int) i, cast(id % 7 as tinyint) b, id / 7.0D f, id % 2 = 0 ok, concat('k', id % 5) low,
  if(id % 7 = 3, null, concat('text "q" \\\\', id)) s, date_add(date'1969-12-20', cast(id as int) * 40) d,
  if(id % 7 = 3, null, timestamp_micros(id * 81234567890123 - 1000000000000)) ts, timestamp'9999-12-31' far,
  cast(id * 1.01 as decimal(7, 2)) d9, cast(id * 1.0001 as decimal(38, 6)) d38,
  if(id % 7 = 3, null, named_struct('a', id, 'u', array(id, null))) st, map('a', id) m, id % 2 part
from range(0, 3000, 1, 1)
"""
SCHEMA = {
    "id": int,
    "i": int,
    "b": int,
    "f": float,
    "ok": bool,
    "low": str,
    "s": weir.Nullable(str),
    "d": pl.Date,
    "ts": weir.Nullable(pl.Datetime("us", "UTC")),
    "far": pl.Datetime("us", "UTC"),
    "d9": pl.Decimal(7, 2),
    "d38": pl.Decimal(38, 6),
    "st": weir.Nullable(pl.Struct({"a": pl.Int64, "u": pl.List(pl.Int64)})),
    "m": pl.List(pl.Struct({"key": pl.String, "value": pl.Int64})),
    "part": int,
}
WRITERS = {
    "default": {},
    "pages of the second form": {"parquet.writer.version": "v2", "compression": "zstd"},
    "no dictionaries": {"parquet.writer.version": "v2", "parquet.enable.dictionary": "false"},
    "small pages": {"parquet.page.size": "2000", "parquet.block.size": "40000", "compression": "gzip"},
}


def read(source):
    flow = weir.Dataflow("spark")
    flow.source("rows", source, parallelism=2).sink("out", weir.Collect())
    result = weir.run(flow)
    assert not result.dead_letters
    return result["out"].to_polars().sort("id")


@pytest.mark.spark
def test_tables_of_all_types_are_read(spark, tmp_path):
    frame = spark.sql(ROWS).cache()
    # Spark's own rows: what it hands over needs no file.
    wanted = pl.from_arrow(frame.drop("st", "m").toArrow()).sort("id")
    nested = [row.asDict(recursive=True) for row in frame.select("id", "st", "m").sort("id").collect()]
    entries = [[{"key": key, "value": value} for key, value in row["m"].items()] for row in nested]
    for name, options in WRITERS.items():
        writer = frame.repartition(2).write.partitionBy("part")
        for option, value in options.items():
            writer = writer.option(option, value)
        writer.parquet(str(tmp_path / name))
        found = read(weir.Parquet(f"{tmp_path}/{name}/**/*.parquet", schema=SCHEMA))
        assert found["st"].to_list() == [row["st"] for row in nested]
        assert found["m"].to_list() == entries
        for column in wanted.columns:
            assert found[column].to_list() == wanted[column].to_list(), (name, column)
        # Without what is nested the kernels read them.
        flat = {column: SCHEMA[column] for column in ("id", "i", "low", "s", "d", "ts", "far", "part")}
        found = read(weir.Parquet(f"{tmp_path}/{name}/**/*.parquet", schema=flat))
        assert found.equals(wanted.select(found.columns).cast(found.schema)), name


@pytest.mark.spark
def test_texts_of_json_and_csv_are_read(spark, tmp_path):
    frame = spark.sql(ROWS).select("id", "f", "ok", "s", "d", "low").cache()
    wanted = frame.toArrow()
    schema = {name: SCHEMA[name] for name in wanted.column_names}
    frame.repartition(2).write.option("compression", "gzip").json(str(tmp_path / "json"))
    frame.repartition(2).write.option("header", "true").csv(str(tmp_path / "csv"))
    sources = {
        "json": weir.JsonLines(str(tmp_path / "json"), schema=schema),
        "csv": weir.Csv(str(tmp_path / "csv"), schema=schema, escape="\\"),
    }
    for name, source in sources.items():
        found = read(source)
        assert found.equals(pl.from_arrow(wanted).sort("id").cast(found.schema)), name
