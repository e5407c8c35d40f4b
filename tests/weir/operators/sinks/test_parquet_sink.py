from __future__ import annotations

import json

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.operators.registry import create_operator
from weir.rows.records import KEY_HASH_COLUMN, with_system_columns

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])


def batch(*ids):
    rows = pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"{n} é" for n in ids])], schema=SCHEMA)
    rows = with_system_columns(rows, 1, 2)
    return rows.append_column(KEY_HASH_COLUMN, pa.array([7] * len(ids), pa.uint64()))


def opened(directory, generation=1, restored=None, **settings):
    sink = create_operator(weir.ParquetSink(str(directory), **settings))
    sink.open(OperatorContext("job", "out", 1, 0, 1, generation=generation, restored=restored or {}))
    return sink


def ids(directory):
    return [
        number
        for path in sorted(directory.glob("part-*.parquet"))
        for number in pl.read_parquet(path)["id"].to_list()
    ]


def test_rows_appear_with_the_checkpoint_that_covers_them(tmp_path):
    sink = opened(tmp_path)
    sink.process(batch(1, 2))
    sink.process(batch(3))
    sink.snapshot(1)
    assert ids(tmp_path) == []
    sink.commit(1)
    (part,) = tmp_path.glob("part-*")
    assert part.name == "part-00000-000001-00000001.parquet"
    assert pq.read_table(part).schema.equals(SCHEMA)
    assert ids(tmp_path) == [1, 2, 3]
    sink.snapshot(2)
    sink.commit(2)
    sink.close()
    assert list(tmp_path.iterdir()) == [part]


def test_rows_come_once_over_a_crash(tmp_path):
    sink = opened(tmp_path)
    sink.process(batch(1))
    restored = {0: json.loads(json.dumps(sink.snapshot(1)))}
    sink.process(batch(2))
    sink.close()
    successor = opened(tmp_path, 2, restored)
    assert ids(tmp_path) == [1]
    successor.process(batch(2, 3))
    successor.snapshot(0)
    successor.commit(0)
    successor.close()
    assert ids(tmp_path) == [1, 2, 3]
    assert list(tmp_path.glob(".*")) == []


def test_large_parts_have_several_row_groups(tmp_path):
    sink = opened(tmp_path, row_group_rows=3)
    for number in range(7):
        sink.process(batch(number))
    sink.snapshot(0)
    sink.commit(0)
    sink.close()
    (part,) = tmp_path.glob("part-*")
    assert pq.ParquetFile(part).num_row_groups == 3
    assert ids(tmp_path) == list(range(7))


def test_results_of_an_earlier_run_are_kept(tmp_path):
    (tmp_path / "part-00000-000001-00000001.parquet").touch()
    with pytest.raises(InputError, match="exists already"):
        opened(tmp_path)
