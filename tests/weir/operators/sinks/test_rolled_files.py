"""What sinks that roll hold back, when they write it, and how partitions are named."""

from __future__ import annotations

import datetime
import errno
import json
import os

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.weir.operators.sinks.test_file_sinks import batch, hidden, ids, opened, parts, snapshot
from weir.errors import FailureKind, InputError, StateMismatchError, kind_of
from weir.operators.sinks.partitions import NULL_FOLDER, folder_of, split
from weir.operators.sources.files.folder_columns import folder_constants, folder_values
from weir.rows.records import with_system_columns
from weir.testing.manual_clock import ManualClock


def checkpoint(sink, number):
    taken = snapshot(sink, number)
    sink.commit(number)
    if sink._roll is not None:
        sink._roll.result()
    return taken


def test_files_hold_the_rows_of_many_checkpoints(tmp_path):
    """Rolled after 5 s: written at the checkpoint after that, visible with the next one."""
    spec, clock = weir.ParquetSink(str(tmp_path), roll_ms=5_000), ManualClock(0)
    sink = opened(spec, clock=clock)
    for number in range(1, 15):
        sink.process(batch(number))
        checkpoint(sink, number)
        clock.advance_ms(1000)
    # Rows 1 to 6 were there at checkpoint 6, 5 s after the first one; 7 to 12 at checkpoint 12.
    assert list(ids(spec, tmp_path).values()) == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]
    assert len(hidden(tmp_path)) == 2
    sink.finish()
    checkpoint(sink, 0)
    sink.close()
    assert [number for numbers in ids(spec, tmp_path).values() for number in numbers] == list(range(1, 15))
    assert hidden(tmp_path) == []


def test_a_sink_without_rows_still_rolls(tmp_path):
    spec, clock = weir.JsonLinesSink(str(tmp_path), roll_ms=1_000), ManualClock(0)
    sink = opened(spec, clock=clock)
    sink.process(batch(1))
    checkpoint(sink, 1)
    clock.advance_ms(1000)
    checkpoint(sink, 2)
    assert parts(tmp_path) == []
    checkpoint(sink, 3)
    assert list(ids(spec, tmp_path).values()) == [[1]]
    sink.close()


def test_size_rolls_also_without_checkpoints(tmp_path):
    spec = weir.ParquetSink(str(tmp_path), roll_bytes=1000)
    sink = opened(spec)
    for number in range(20):
        sink.process(batch(*range(number * 100, number * 100 + 100)))
        if sink._roll is not None:
            sink._roll.result()
    assert len(sink._written) > 10
    checkpoint(sink, 0)
    sink.close()
    found = ids(spec, tmp_path)
    assert len(found) == 20
    assert [number for numbers in found.values() for number in numbers] == list(range(2000))


def test_a_rescaled_stage_goes_on_with_the_rows_of_all(tmp_path):
    spec = weir.CsvSink(str(tmp_path), partition_by=["p"])
    sinks = [opened(spec, index, indices=(0, 1)) for index in (0, 1)]
    for index, sink in enumerate(sinks):
        sink.process(batch(index))
    restored = {index: snapshot(sink, 1) for index, sink in enumerate(sinks)}
    assert len(restored[0]["logs"]) == 1
    for sink in sinks:
        sink.close()
    alone = opened(spec, generation=2, restored=restored, indices=(0,))
    again = snapshot(alone, 2)
    assert [item[0] for item in again["logs"]] == [
        ".rows-00000-000001-00000001.pending",
        ".rows-00001-000001-00000001.pending",
    ]
    # A subtask that a rescale adds later takes nothing.
    joined = opened(spec, 2, generation=2, indices=(0, 2))
    assert "logs" not in snapshot(joined, 2)
    for sink in (joined, alone):
        checkpoint(sink, 0)
        sink.close()
    assert sorted(number for numbers in ids(spec, tmp_path).values() for number in numbers) == [0, 1]


def test_rows_that_are_gone_are_told_of(tmp_path):
    spec = weir.ParquetSink(str(tmp_path / "out"), roll_ms=0)
    sink = opened(spec)
    sink.process(batch(1))
    restored = {0: checkpoint(sink, 1)}
    sink.close()
    with pytest.raises(InputError, match=r"\.rows-00000-000001-00000001\.pending is gone, with rows"):
        opened(weir.ParquetSink(str(tmp_path / "elsewhere"), roll_ms=0), generation=2, restored=restored)
    with pytest.raises(StateMismatchError, match="the checkpoint holds rows that are in no file yet"):
        opened(weir.ParquetSink(str(tmp_path / "out")), generation=2, restored=restored)


def test_an_older_checkpoint_than_the_one_that_delivered_its_rows(tmp_path, caplog):
    spec = weir.ParquetSink(str(tmp_path), roll_ms=0)
    sink = opened(spec)
    sink.process(batch(1))
    restored = {0: checkpoint(sink, 1)}
    checkpoint(sink, 2)
    sink.close()
    assert list(ids(spec, tmp_path).values()) == [[1]]
    sink = opened(spec, generation=2, restored=restored)
    assert "a later checkpoint than this one has delivered its rows" in caplog.text
    checkpoint(sink, 0)
    sink.close()
    assert list(ids(spec, tmp_path).values()) == [[1]]


@pytest.mark.parametrize("settings", [{}, {"roll_ms": 0}])
@pytest.mark.parametrize("step", ["create", "seal"])
def test_a_full_disk_is_an_outage_and_nothing_is_delivered_after_it(tmp_path, monkeypatch, settings, step):
    spec = weir.ParquetSink(str(tmp_path), **settings)
    sink = opened(spec)
    sink.process(batch(1))
    restored = {0: snapshot(sink, 1)}

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sink._place, step, refuse)

    def go_on():
        sink.process(batch(2))
        sink.snapshot(2)

    with pytest.raises(InputError, match=r"cannot write to .*: No space left on device; make room") as raised:
        go_on()
    assert kind_of(raised.value) is FailureKind.OUTAGE
    monkeypatch.undo()
    for call in (lambda: sink.process(batch(3)), lambda: sink.snapshot(3)):
        with pytest.raises(InputError, match="No space left on device"):
            call()
    sink.close()
    sink = opened(spec, generation=2, restored=restored)
    sink.process(batch(2))
    checkpoint_all(sink)
    assert [number for numbers in ids(spec, tmp_path).values() for number in numbers] == [1, 2]


def checkpoint_all(sink):
    sink.snapshot(0)
    sink.commit(0)
    sink.close()


def test_a_fresh_start_refuses_partitions_of_an_earlier_run(tmp_path):
    spec = weir.ParquetSink(str(tmp_path), partition_by=["p"])
    sink = opened(spec)
    sink.process(batch(1))
    checkpoint_all(sink)
    with pytest.raises(InputError, match=r"p=a%2F1/part-.*\.parquet exists already"):
        opened(spec)


def test_folders_are_named_as_hive_has_it():
    assert folder_of((), ()) == ""
    assert folder_of(("day", "a=b"), ("2026-11-22", "x/y %é")) == "day=2026-11-22/a%3Db=x%2Fy %25%C3%A9/"
    assert folder_of(("p",), (None,)) == folder_of(("p",), ("",)) == f"p={NULL_FOLDER}/"
    own = folder_of(("p",), (NULL_FOLDER,))
    assert folder_values(f"{own}part") == {"p": NULL_FOLDER}
    assert folder_values(f"p={NULL_FOLDER}/part") == {"p": None}
    assert folder_of(("p",), ("..",)) == "p=../"
    long, other = folder_of(("p",), ("é" * 300,)), folder_of(("p",), ("é" * 301,))
    assert long != other
    assert len(long) <= 256
    assert "%~" not in long


@pytest.mark.parametrize(("column", "fits"), [("p", 253), ("a_longer_name", 241)])
def test_values_that_fit_into_a_folder_come_back_and_others_are_told_of(tmp_path, caplog, column, fits):
    for length in (fits, fits + 1, fits + 2):
        flow = weir.Dataflow("parts")
        (tmp_path / "in").write_text(json.dumps({column: "x" * length, "id": 1}) + "\n")
        rows = flow.source("rows", weir.JsonLines(str(tmp_path / "in"), schema={column: str, "id": int}))
        rows.sink("out", weir.CsvSink(str(tmp_path / str(length)), partition_by=[column]))
        weir.run(flow)
        (folder,) = (tmp_path / str(length)).glob("*=*")
        assert len(folder.name) == min(255, len(column) + 1 + length)
        assert ("x" * length in folder.name) == (length <= fits)
        assert (f"a value of {column} is too long for the name of its folder" in caplog.text) == (
            length > fits
        )


def test_rows_are_split_in_order():
    day = pa.array([datetime.date(2026, 1, 1), None, datetime.date(2026, 1, 1)])
    table = pa.table(
        {"id": [1, 2, 3], "day": day, "yes": [True, True, True], "raw": [b"\x01", b"\x01", b"\x01"]}
    )
    found = {values: rows.to_pydict() for values, rows in split(table, ["day", "yes", "raw"])}
    assert found == {("2026-01-01", "true", "01"): {"id": [1, 3]}, (None, "true", "01"): {"id": [2]}}


def test_polars_and_duckdb_read_the_partitions(tmp_path):
    values = ["a/b", "c=d %", "é[*]?", None, "plain", "'\"#:{}"]
    rows = pa.record_batch({"id": list(range(6)), "p": pa.array(values), "n": [1, 1, 2, 2, 3, None]})
    sink = opened(weir.ParquetSink(str(tmp_path), partition_by=["p", "n"]))
    sink.process(with_system_columns(rows, 1, 2))
    checkpoint_all(sink)
    expected = list(zip(range(6), values, [1, 1, 2, 2, 3, None], strict=True))
    assert pl.read_parquet(tmp_path).sort("id").select("id", "p", "n").rows() == expected
    query = (
        f"SELECT id, p, n FROM read_parquet('{tmp_path}/**/*.parquet', hive_partitioning=true) ORDER BY id"
    )
    assert duckdb.sql(query).fetchall() == expected


def test_folders_of_times_that_were_no_whole_minutes_from_utc_are_in_utc():
    """Texts leave the 28 seconds out; other times keep their folders whatever comes with them."""
    dtype = pa.timestamp("ms", "Europe/Berlin")
    column = pa.chunked_array([pa.array([-2_840_140_798_500, 1_577_836_800_000, None], dtype)])
    found = [values for (values,), _ in split(pa.table({"p": column, "n": range(3)}), ["p"])]
    assert found == ["1880-01-01 00:00:01.500Z", "2020-01-01 01:00:00.000+0100", None]
    file = f"/out/{folder_of(['p'], found[:1])}part.parquet"
    assert folder_constants(file, pa.schema([("p", dtype)]), ())["p"].value == -2_840_140_798_500
