"""Snapshots in the forms that are in users' checkpoints: ``tests/golden/snapshots`` stays readable for ever.

A golden file is never changed. Whoever changes a form gives it a new version, lets today's snapshots be compared with a
new file, and keeps the old ones here for reading.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.weir.state.one_state import one_state
from weir.author.operator import OperatorContext
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_operator, create_reader
from weir.rows.records import with_system_columns
from weir.specs import (
    Aggregate,
    ArrowIpcSpec,
    CsvSpec,
    JsonLinesSinkSpec,
    JsonLinesSpec,
    KeyedAggregateSpec,
    LatencySinkSpec,
    ParquetSinkSpec,
    ParquetSpec,
)
from weir.state.stores.memory import MemoryBackend
from weir.testing.manual_clock import ManualClock

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
START_US = 1_700_000_000_000_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
LINES = "".join(f'{{"id": {n}}}\n' if n % 4 else "{}\n" for n in range(20))
RECORDS = "id\n" + "".join(f"{n}\n" if n % 4 else "x\n" for n in range(20))
AGGREGATES = (Aggregate("n", "count"), Aggregate("total", "sum", "id"), Aggregate("mean", "mean", "id"))


@pytest.fixture(autouse=True)
def _inputs(tmp_path, monkeypatch):
    """Paths in golden files are relative."""
    monkeypatch.chdir(tmp_path)
    Path("lines.jsonl").write_text(LINES)
    # Its bytes depend on the version of Arrow, and the snapshot on its bytes.
    shutil.copy(GOLDEN / "events.parquet", "events.parquet")


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def context(restored=None, generation=1, **more):
    return OperatorContext(
        "job",
        "step",
        0,
        0,
        1,
        batch_size=6,
        job_start_us=START_US,
        clock=ManualClock(START_US + 8_000),
        tables=one_state(MemoryBackend()),
        generation=generation,
        restored={} if restored is None else {0: restored},
        **more,
    )


def batch(*ids):
    return with_system_columns(pa.record_batch({"id": pa.array(ids)}), START_US // 1000, START_US)


def lines_reader(restored=None):
    reader = create_reader(JsonLinesSpec(schema=SCHEMA, path="lines.jsonl", rate=1000.0, events_max=14))
    letters = DeadLetterFile("dead", "job", "step", 0)
    reader.open(context(restored, dead_letters=letters))
    return reader, letters


def parquet_reader(restored=None):
    reader = create_reader(ParquetSpec(schema=SCHEMA, path="events.parquet"))
    reader.open(context(restored))
    return reader


def csv_reader(restored=None):
    reader = create_reader(
        CsvSpec(schema=SCHEMA, path="in", follow=True, grows=True, quoted_newlines=False, header=True)
    )
    reader.open(context(restored))
    return reader


def ipc_reader(restored=None):
    reader = create_reader(ArrowIpcSpec(schema=SCHEMA, path="events.arrow"))
    reader.open(context(restored))
    return reader


def sink(spec, restored=None):
    operator = create_operator(spec)
    operator.open(context(restored, generation=1 if restored is None else 2))
    return operator


def test_json_lines_source_v1():
    reader, letters = lines_reader()
    assert reader.poll(3).batch.column("id").to_pylist() == [1, 2, 3]
    assert reader.snapshot() == golden("json_lines_source_v1")
    reader.close()
    letters.close()
    reader, letters = lines_reader(golden("json_lines_source_v1"))
    assert reader.poll(9).batch.column("id").to_pylist() == [5, 6, 7, 9, 10]
    reader.close()
    letters.close()


def test_parquet_source_v1():
    reader = parquet_reader()
    assert reader.poll(4).batch.num_rows == 4
    assert reader.snapshot() == golden("parquet_source_v1")
    reader.close()
    reader = parquet_reader(golden("parquet_source_v1"))
    ids = []
    while not (poll := reader.poll(9)).finished:
        ids += poll.batch.column("id").to_pylist()
    assert ids == list(range(4, 20))
    reader.close()


def test_csv_source_v1():
    """Of a directory with files that grow."""
    Path("in").mkdir()
    Path("in/a").write_text(RECORDS)
    Path("in/b").write_text("id\n99\n")
    reader = csv_reader()
    assert reader.poll(3).batch.column("id").to_pylist() == [1, 2, 3]
    assert reader.snapshot() == golden("csv_source_v1")
    reader.close()
    reader = csv_reader(golden("csv_source_v1"))
    assert reader.poll(9).batch.column("id").to_pylist() == [5, 6, 7, 9, 10]
    reader.close()


def test_arrow_ipc_source_v1():
    shutil.copy(GOLDEN / "events.arrow", "events.arrow")
    reader = ipc_reader()
    assert reader.poll(4).batch.num_rows == 4
    assert reader.snapshot() == golden("arrow_ipc_source_v1")
    reader.close()
    reader = ipc_reader(golden("arrow_ipc_source_v1"))
    ids = []
    while not (poll := reader.poll(9)).finished:
        ids += poll.batch.column("id").to_pylist()
    assert ids == list(range(4, 20))
    reader.close()


def test_json_lines_sink_v1():
    operator = sink(JsonLinesSinkSpec("out"))
    operator.process(batch(1, 2))
    assert operator.snapshot(7) == golden("json_lines_sink_v1")
    sink(JsonLinesSinkSpec("out"), golden("json_lines_sink_v1"))
    (part,) = Path("out").glob("part-*.jsonl")
    assert part.read_text() == '{"id":1}\n{"id":2}\n'


def test_rolled_files_sink_v1():
    spec = ParquetSinkSpec("out", partition_by=["id"], roll_ms=0)
    operator = sink(spec)
    operator.process(valued(1, 2))
    operator.snapshot(5)
    operator._roll.result()
    operator.process(valued(3))
    # The first two rows are in files, the third is in a row log.
    assert operator.snapshot(6) == golden("rolled_files_sink_v1")
    operator._roll.result()
    operator.close()
    operator = sink(spec, golden("rolled_files_sink_v1"))
    folders = [str(path.parent) for path in sorted(Path("out").rglob("part-*"))]
    assert folders == ["out/id=1", "out/id=2"]
    operator.snapshot(0)
    operator.commit(0)
    operator.close()
    assert len(list(Path("out").rglob("part-*"))) == 3
    assert list(Path("out").glob(".*")) == []


def valued(*ids):
    rows = pa.record_batch({"id": pa.array(ids), "value": pa.array(ids)})
    return with_system_columns(rows, START_US // 1000, START_US)


def test_latency_sink_v1():
    operator = sink(LatencySinkSpec("out", "run"))
    operator.process(batch(1, 2, 3))
    assert operator.snapshot(7) == golden("latency_sink_v1")
    operator.close()
    operator = sink(LatencySinkSpec("out", "run"), golden("latency_sink_v1"))
    operator.process(batch(4))
    operator.close()
    assert operator.path.read_text() == "1700000000008,8.000\n" * 4


def test_keyed_aggregate_v1():
    operator = sink(KeyedAggregateSpec(("id",), AGGREGATES))
    list(operator.process(batch(1, 1, 2)))
    before = golden("keyed_aggregate_v1")
    # The types of keys are said since then.
    assert operator.snapshot(7) == before | {"codec": before["codec"] | {"keys": [["id", "int64"]]}}
    operator = sink(KeyedAggregateSpec(("id",), AGGREGATES), golden("keyed_aggregate_v1"))
    assert operator.distinct_keys == 2
