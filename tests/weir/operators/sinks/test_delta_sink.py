"""The Delta Lake sink: its commits come once, whoever repeats them."""

from __future__ import annotations

import datetime
import threading

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import weir
from experiments.s3_server import SECRET
from tests.weir.operators.sinks.test_file_sinks import batch, opened, snapshot
from tests.weir.operators.sinks.test_rolled_files import checkpoint
from weir.author.operator import OperatorContext
from weir.errors import GraphError, InputError
from weir.operators.registry import create_operator
from weir.operators.sinks.delta_table import table_of
from weir.rows.records import with_system_columns


def rows(path):
    return sorted(pl.read_delta(str(path))["id"])


def ended(sink):
    checkpoint(sink, 0)
    sink.close()


def test_each_roll_is_one_commit(tmp_path):
    sink = opened(weir.DeltaSink(str(tmp_path)))
    for number in range(1, 5):
        sink.process(batch(number))
        checkpoint(sink, number)
    assert rows(tmp_path) == [1, 2, 3]
    ended(sink)
    assert rows(tmp_path) == [1, 2, 3, 4]
    # The first version is the table's creation.
    assert DeltaTable(str(tmp_path)).version() == 4


def test_a_commit_that_is_repeated_by_several_at_once_counts_once(tmp_path):
    spec = weir.DeltaSink(str(tmp_path), partition_by=["p"])
    sinks = [opened(spec)]
    sinks[0].process(batch(*range(20)))
    sinks[0].snapshot(1)
    sinks[0]._roll.result()
    restored = {0: snapshot(sinks[0], 2)}
    (_, description) = restored[0]["transactions"][0]
    sinks += [opened(spec, index, indices=(0, 7, 8)) for index in (7, 8)]
    threads = [threading.Thread(target=sink.commit_prepared, args=(description,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.close()
    assert rows(tmp_path) == list(range(20))
    ended(opened(spec, generation=2, restored=restored))
    assert rows(tmp_path) == list(range(20))
    # A file that is added twice is read once: the log tells that there was one commit after the creation.
    assert DeltaTable(str(tmp_path)).version() == 1


def test_runs_append_to_a_table_that_is_there(tmp_path):
    spec = weir.DeltaSink(str(tmp_path))
    for number in range(3):
        sink = opened(spec)
        sink.process(batch(number))
        ended(sink)
    assert rows(tmp_path) == [0, 1, 2]


def test_a_second_start_from_a_savepoint_is_refused(tmp_path):
    spec = weir.DeltaSink(str(tmp_path))
    sink = opened(spec)
    sink.process(batch(1))
    checkpoint(sink, 1)
    restored = {0: checkpoint(sink, 2)}
    sink.close()
    first = opened(spec, generation=2, restored=restored)
    first.process(batch(2))
    ended(first)
    with pytest.raises(InputError, match="has commits of another run that went on from the same savepoint"):
        opened(spec, generation=2, restored=restored)
    assert rows(tmp_path) == [1, 2]


def test_another_table_is_refused(tmp_path):
    ended(opened(weir.DeltaSink(str(tmp_path), partition_by=["p"])))
    with pytest.raises(
        InputError, match=r"is partitioned by \['p'\], not by \[\]; give it that partition_by"
    ):
        opened(weir.DeltaSink(str(tmp_path)))
    sink = create_operator(weir.DeltaSink(str(tmp_path), partition_by=["p"]))
    other = pa.schema([("id", pa.string()), ("p", pa.string())])
    with pytest.raises(
        InputError, match=r"long.* for 'id', and the job .*string.*; give them the same columns"
    ):
        sink.open(OperatorContext("job", "out", 1, 0, 1, schema=other))
    sink.close()


def test_types_of_partitions_and_columns(tmp_path):
    found = pa.record_batch(
        {
            "id": [1, 2, 3],
            "day": pa.array([datetime.date(2026, 1, 1), None, datetime.date(2026, 1, 2)]),
            "at": pa.array([datetime.datetime(2026, 1, 1, 2, 3, 4, 5)] * 3, pa.timestamp("us")),
            "yes": [True, False, None],
            "text": ["a/b", "é %", "="],
        }
    )
    sink = create_operator(weir.DeltaSink(str(tmp_path), partition_by=["day", "at", "yes", "text"]))
    sink.open(OperatorContext("job", "out", 1, 0, 1, schema=found.schema))
    sink.process(with_system_columns(found, 1, 2))
    ended(sink)
    assert pl.read_delta(str(tmp_path)).sort("id").rows() == pl.from_arrow(found).rows()


def test_types_that_delta_lake_has_not():
    flow = weir.Dataflow("job")
    source = flow.source("rows", weir.JsonLines("in", schema={"n": pl.UInt32}))
    zoned = flow.source("zoned", weir.JsonLines("none", schema={"at": pl.Datetime("us", "Europe/Brussels")}))
    with pytest.raises(
        GraphError, match=r"column 'at' is timestamp.*no zone but UTC; take .*convert_time_zone"
    ):
        zoned.sink("zoned_out", weir.DeltaSink("table"))
    with pytest.raises(GraphError, match="column 'n' is uint32, which Delta Lake has not; cast it"):
        source.sink("out", weir.DeltaSink("out"))
    # Its library makes signed integers of these, and nobody reads what is beyond them.
    nested = {"p": bytes, "n": int, "s": pl.Struct({"l": pl.List(pl.UInt8)})}
    rows = flow.source("nested", weir.JsonLines("none", schema=nested))
    with pytest.raises(GraphError, match=r"column 's' is struct<.*, which Delta Lake has not; cast it"):
        rows.sink("nested_out", weir.DeltaSink("out"))
    # A text of hexadecimal digits would be read as these.
    with pytest.raises(GraphError, match=r"'p' is binary, and Delta Lake writes partitions as texts.*encode"):
        rows.select("bytes", "p", "n").sink("bytes_out", weir.DeltaSink("out", partition_by=["p"]))


def test_tables_in_s3(s3_port):
    options = f"scheme=http&endpoint_override=127.0.0.1:{s3_port}&region=us-east-1"
    spec = weir.DeltaSink(f"s3://key:{SECRET}@bucket/table?{options}", partition_by=["p"])
    sink = opened(spec)
    sink.process(batch(*range(10)))
    sink.snapshot(1)
    sink._roll.result()
    restored = {0: snapshot(sink, 2)}
    sink.close()
    sink = opened(spec, generation=2, restored=restored)
    sink.commit_prepared(restored[0]["transactions"][0][1])
    ended(sink)
    uri, storage = table_of(spec.path)
    assert uri == "s3://bucket/table"
    assert sorted(pl.read_delta(uri, storage_options=dict(storage))["id"]) == list(range(10))
