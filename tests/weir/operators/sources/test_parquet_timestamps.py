"""Timestamps of all forms in Parquet, by the kernels and by pyarrow, beside columns of folders."""

from __future__ import annotations

import datetime as dt
import random

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.errors import InputError
from weir.operators.sources.parquet import parquet_rows

FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
NEAR = dt.datetime(2026, 11, 23, 1, 2, 3, 456789)


def read(path, schema):
    flow = weir.Dataflow("times")
    flow.source("rows", weir.Parquet(str(path), schema=schema)).sink("out", weir.Collect())
    return weir.run(flow)["out"].to_arrow()


@pytest.fixture
def direct(monkeypatch):
    """Whether pyarrow's decoder may be used."""

    def forbid():
        def fail(*args):
            raise AssertionError("read by pyarrow")

        monkeypatch.setattr(parquet_rows, "_decoded", fail)

    return forbid


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Brussels"])
def test_old_timestamps_are_what_the_schema_says(tmp_path, direct, dictionary, version, zone):
    draw = random.Random(7)
    times = [draw.choice([None, FIRST, LAST, NEAR + dt.timedelta(microseconds=n)]) for n in range(3000)]
    table = pa.table({"at": pa.array(times, pa.timestamp("us")), "n": pa.array(range(3000), pa.int16())})
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        use_deprecated_int96_timestamps=True,
        use_dictionary=dictionary,
        data_page_version=version,
        data_page_size=5000,
    )
    direct()
    found = read(tmp_path / "a.parquet", {"at": weir.Nullable(pl.Datetime("us", zone)), "n": int})
    assert found["at"].type == pa.timestamp("us", zone)
    assert found["at"].cast(pa.int64()) == pa.chunked_array([table["at"].combine_chunks().cast(pa.int64())])
    assert found["n"].to_pylist() == list(range(3000))


@pytest.mark.parametrize("nested", [False, True])
def test_old_timestamps_beyond_nanoseconds_are_told(tmp_path, nested):
    def write(time):
        values = pa.array([NEAR, time], pa.timestamp("us"))
        array = pa.StructArray.from_arrays([values], ["at"]) if nested else values
        table = pa.table({"x": array})
        pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)

    name = "x.at" if nested else "x"
    write(NEAR)
    assert read(tmp_path / "a.parquet", {name: pl.Datetime("ns")})[name].cast(
        "timestamp[us]"
    ).to_pylist() == [NEAR, NEAR]
    write(LAST)
    assert read(tmp_path / "a.parquet", {name: pl.Datetime("us")})[name].to_pylist() == [NEAR, LAST]
    with pytest.raises(InputError, match=r'nanoseconds end.*declare the column as pl.Datetime\("us"\)'):
        read(tmp_path / "a.parquet", {name: pl.Datetime("ns")})
    with pytest.raises(InputError, match=r"timestamp\[us\], the source's schema says timestamp\[ms\]"):
        read(tmp_path / "a.parquet", {name: pl.Datetime("ms")})


def test_coarser_timestamps_and_other_zones_are_read(tmp_path, direct):
    at = NEAR.replace(microsecond=456000)
    table = pa.table(
        {
            "plain": pa.array([at, None], pa.timestamp("ms")),
            "zoned": pa.array([at, None], pa.timestamp("us", "Europe/Brussels")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    direct()
    schema = {"plain": pl.Datetime("us"), "zoned": pl.Datetime("us", "UTC")}
    first, second = read(
        tmp_path / "a.parquet", {name: weir.Nullable(dtype) for name, dtype in schema.items()}
    ).to_pylist()
    assert first == {"plain": at, "zoned": at.replace(tzinfo=dt.UTC)}
    assert second == {"plain": None, "zoned": None}


def test_rows_of_folders_and_of_other_names_come_from_the_kernels(tmp_path, direct):
    payloads = [f"{number}" * 200 for number in range(4000)]
    folder = tmp_path / "day=3"
    folder.mkdir()
    table = pa.table({"id": pa.array(range(4000), pa.int32()), "payload": payloads, "n": range(4000)})
    pq.write_table(table, folder / "a.parquet")
    direct()
    flow = weir.Dataflow("folders")
    source = weir.Parquet(
        f"{tmp_path}/*/*",
        schema={"payload": str, "day": int, "key": int, "same": str, "id": int},
        paths={"key": "n", "same": ["payload"]},
    )
    rows = flow.source("rows", source).key_by("key").map_batches("same", lambda batch: batch)
    rows.sink("out", weir.Collect())
    found = sorted(weir.run(flow)["out"].to_dicts(), key=lambda row: row["id"])
    assert found == [
        {"payload": payload, "day": 3, "key": number, "same": payload, "id": number}
        for number, payload in enumerate(payloads)
    ]
