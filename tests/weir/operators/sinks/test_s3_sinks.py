"""File sinks at S3-compatible storage, over a real socket: what a reader sees, and what stays."""

from __future__ import annotations

import urllib.request

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import fs

import weir
from experiments.ports import free_port
from experiments.s3_server import SECRET
from tests.weir.operators.sinks.test_file_sinks import batch, opened, snapshot
from weir.errors import FailureKind, InputError, kind_of


def uri_of(port, folder):
    options = f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
    return f"s3://key:{SECRET}@bucket/{folder}?{options}"


def keys(port, folder):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/bucket?prefix={folder}/") as reply:
        found = (part.partition("<")[0] for part in reply.read().decode().split("<Key>")[1:])
        return sorted(key.removeprefix(f"{folder}/") for key in found)


def rows_at(port, folder):
    store, _ = fs.FileSystem.from_uri(uri_of(port, folder))
    frames = []
    for key in keys(port, folder):
        if key.rpartition("/")[2].startswith("part-"):
            with store.open_input_file(f"bucket/{folder}/{key}") as file:
                frames.append(pl.read_parquet(pa.BufferReader(file.read())))
    return sorted(number for frame in frames for number in frame["id"])


@pytest.mark.parametrize("settings", [{}, {"partition_by": ["p"], "roll_ms": 0}])
def test_rows_come_once_over_a_crash(s3_port, settings):
    folder = f"crash{len(settings)}"
    spec = weir.ParquetSink(uri_of(s3_port, folder), **settings)
    sink = opened(spec)
    sink.process(batch(*range(10)))
    restored = {0: snapshot(sink, 1)}
    sink.process(batch(*range(10, 20)))
    if settings:
        sink._roll.result()
        restored = {0: snapshot(sink, 2)}
        assert restored[0]["transactions"]
        assert restored[0]["logs"]
    assert rows_at(s3_port, folder) == []
    sink.close()
    if settings:
        # The thread that writes files is told to stop, and not waited for.
        sink._pool.shutdown()
    successor = opened(spec, generation=2, restored=restored)
    assert rows_at(s3_port, folder) == list(range(10))
    successor.process(batch(*range(20 if settings else 10, 30)))
    successor.snapshot(0)
    successor.close()
    successor.commit(0)
    # A commit that comes again does nothing, also that of the process that was replaced.
    sink.commit(2)
    successor.commit(0)
    assert rows_at(s3_port, folder) == list(range(30))
    found = keys(s3_port, folder)
    assert not [key for key in found if key.startswith(".")]
    assert {key.partition("/")[0] for key in found if "/" in key} == (
        {"p=a%2F0", "p=a%2F1", "p=a%2F2", "p=__HIVE_DEFAULT_PARTITION__"} if settings else set()
    )
    with pytest.raises(
        InputError, match=rf"sink '.*': s3://bucket/{folder}/.*\.parquet exists already"
    ) as raised:
        opened(spec)
    assert SECRET not in str(raised.value)


def test_a_service_that_does_not_answer_is_an_outage_and_no_credentials_are_told():
    spec = weir.CsvSink(uri_of(free_port(), "nobody"))
    with pytest.raises(InputError, match="sink: cannot write to s3://bucket/nobody: ") as raised:
        opened(spec)
    assert kind_of(raised.value) is FailureKind.OUTAGE
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
