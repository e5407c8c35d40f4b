"""Columns that are in the names of folders, as the sinks and other programs write partitions."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import InputError

ROWS = [
    {
        "id": number,
        "day": dt.date(2026, 11, 20 + number % 3),
        "country": ("be", "é/x=1", None)[number % 3],
        "price": 1.5,
    }
    for number in range(30)
]
SCHEMA = {
    "id": int,
    "country": weir.Nullable(str),
    "day": pl.Date,
    "price": float,
}


def read(source, step=lambda rows: rows):
    flow = weir.Dataflow("folders")
    step(flow.source("rows", source)).sink("out", weir.Collect())
    return weir.run(flow)["out"].to_dicts()


def test_what_a_partitioned_sink_wrote_is_read_back(tmp_path):
    (tmp_path / "in").mkdir()
    pl.DataFrame(ROWS).write_parquet(tmp_path / "in/a.parquet")
    flow = weir.Dataflow("partitions")
    rows = flow.source("rows", weir.Parquet(str(tmp_path / "in"), schema=SCHEMA))
    rows.sink("out", weir.ParquetSink(str(tmp_path / "out"), partition_by=["day", "country"]))
    weir.run(flow)
    found = read(weir.Parquet(f"{tmp_path}/out/**/*.parquet", schema=SCHEMA))
    assert sorted(found, key=lambda row: row["id"]) == [{name: row[name] for name in SCHEMA} for row in ROWS]
    # Columns of folders alone.
    source = weir.Parquet(f"{tmp_path}/out/**/*.parquet", schema={"day": str})
    assert sorted(row["day"] for row in read(source)) == sorted(str(row["day"]) for row in ROWS)


def test_arrow_files_have_them_too_and_their_own_columns_come_first(tmp_path):
    for number in range(2):
        folder = tmp_path / f"n={number}" / "id=7"
        folder.mkdir(parents=True)
        pl.DataFrame({"id": [1, 2]}).write_ipc(folder / "a.arrow")
    found = read(weir.ArrowIpc(f"{tmp_path}/*/*/*", schema={"n": int, "id": int}))
    assert [tuple(row.values()) for row in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row["n"] for row in read(weir.ArrowIpc(f"{tmp_path}/*/*/*", schema={"n": int}))] == [0, 0, 1, 1]


def test_files_are_passed_over_by_their_folders(tmp_path):
    """The values of all other files are overwritten."""
    for number in range(4):
        path = tmp_path / f"n={number}" / "a.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"id": [number] * 100}), path)
        chunk = pq.read_metadata(path).row_group(0).column(0)
        raw = bytearray(path.read_bytes())
        if number != 2:
            raw[4 : 4 + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
        path.write_bytes(raw)
    source = weir.Parquet(f"{tmp_path}/*/*", schema={"n": int, "id": int})
    found = read(source, lambda rows: rows.filter("one", pl.col("n") == 2))
    assert [tuple(row.values()) for row in found] == [(2, 2)] * 100


def test_a_folder_with_another_type_and_one_without_a_value(tmp_path):
    for text in ("x", "__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / text / f"n={text}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), path)
    with pytest.raises(InputError, match="column n is 'x' by its folder, which is not of type int64"):
        read(weir.Parquet(f"{tmp_path}/x/*/*", schema={"n": int}))
    flow = weir.Dataflow("null")
    source = weir.Parquet(f"{tmp_path}/__HIVE_DEFAULT_PARTITION__/*/*", schema={"n": int, "id": int})
    flow.source("rows", source).sink("out", weir.Collect())
    assert [letter.reason for letter in weir.run(flow).dead_letters] == ["field n is null"]


@pytest.mark.parametrize("name", ["a.jsonl.xz", "a.zip", "a.tar.gz"])
def test_what_is_packed_in_another_way_is_not_read_as_lines(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"id": 1}\n')
    with pytest.raises(InputError, match="packed in this way are not read; unpack it"):
        read(weir.JsonLines(str(tmp_path), schema={"id": int}))
    assert len(read(weir.JsonLines(str(tmp_path), schema={"id": int}, compression=None))) == 1
