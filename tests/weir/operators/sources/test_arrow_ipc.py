"""The Arrow IPC source: both formats, positions, types, and files that are cut short."""

from __future__ import annotations

import json
import random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.errors import InputError
from weir.operators.registry import create_reader

FORMATS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}
SCHEMA = {"id": int, "text": weir.Nullable(str)}


def write(path, form, rows, size=7, **columns):
    plain = {"other": range(rows), "id": range(rows), "text": ["x"] * rows}
    types = {"other": pa.int64(), "id": pa.int64(), "text": pa.string()}
    table = pa.table(
        {
            name: column if isinstance(column, pa.Array) else pa.array(column, types[name])
            for name, column in {**plain, **columns}.items()
        }
    )
    with FORMATS[form](str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)


def read(source, parallelism=1):
    flow = weir.Dataflow("ipc")
    flow.source("rows", source, parallelism=parallelism).sink("out", weir.Blackhole())
    return weir.run(flow, collect="rows")


@pytest.mark.parametrize("form", FORMATS)
def test_columns_by_name_and_narrower_types(tmp_path, form):
    text = pa.array(["a", None, "a"]).dictionary_encode()
    write(tmp_path / "a", form, 3, id=pa.array([1, 2, 3], pa.int16()), text=text)
    result = read(weir.ArrowIpc(str(tmp_path), schema=SCHEMA))
    assert [(row["id"], row["text"]) for row in result["rows"]] == [(1, "a"), (2, None), (3, "a")]
    write(tmp_path / "a", form, 3)
    with pytest.raises(InputError, match="column id has type int64, the source's schema says int32"):
        read(weir.ArrowIpc(str(tmp_path), schema={"id": pa.int32()}))
    with pytest.raises(InputError, match=r"there is no column x \(string\), only other, id, text"):
        read(weir.ArrowIpc(str(tmp_path), schema={"x": str}))


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["ash", "beech that grows"])])
def test_categories_that_polars_writes(tmp_path, dtype):
    trees = ["ash", None, "beech that grows", "ash"]
    pl.DataFrame({"id": range(4), "text": pl.Series(trees, dtype=dtype)}).write_ipc(tmp_path / "a")
    result = read(weir.ArrowIpc(str(tmp_path / "a"), schema=SCHEMA))
    assert [row["text"] for row in result["rows"]] == trees


@pytest.mark.parametrize("form", FORMATS)
def test_nulls_where_there_may_be_none(tmp_path, form):
    write(tmp_path / "a", form, 10, id=[None if n == 8 else n for n in range(10)])
    result = read(weir.ArrowIpc(str(tmp_path / "a"), schema=SCHEMA))
    assert [row["id"] for row in result["rows"]] == [*range(8), 9]
    (letter,) = result.dead_letters
    assert (letter.source, letter.position) == (str(tmp_path / "a"), 1)
    assert letter.reason == "row 1 of the record batch: field id is null"


@pytest.mark.parametrize("seed", range(cases(15)))
def test_rows_come_once_over_restarts_with_other_subtasks(tmp_path, seed):
    dice = random.Random(seed)
    ids = []
    for name in range(3):
        rows = dice.randrange(60)
        form = dice.choice(list(FORMATS))
        write(
            tmp_path / str(name),
            form,
            rows,
            dice.choice([1, 7, 100]),
            id=range(1000 * name, 1000 * name + rows),
        )
        ids += range(1000 * name, 1000 * name + rows)
    spec = weir.ArrowIpc(str(tmp_path), schema=SCHEMA, ordered=dice.random() < 0.3).to_spec()
    restored, found = {}, []
    for turn in range(5):
        subtasks = dice.choice([1, 2, 3])
        readers = []
        for index in range(subtasks):
            reader = create_reader(spec)
            context = OperatorContext("job", "rows", 0, index, subtasks, restored=restored, batch_size=5)
            reader.open(context)
            readers.append(reader)
        for reader in readers:
            for _ in range(dice.randrange(12) if turn < 4 else 1000):
                poll = reader.poll(dice.randrange(1, 4))
                found += poll.batch.column("id").to_pylist() if poll.batch is not None else []
        restored = {n: json.loads(json.dumps(reader.snapshot())) for n, reader in enumerate(readers)}
        for reader in readers:
            reader.close()
    assert sorted(found) == ids


@pytest.mark.parametrize("form", FORMATS)
def test_a_limit_is_shared(tmp_path, form):
    for name, rows in (("a", 3), ("b", 50)):
        write(tmp_path / name, form, rows)
    assert len(read(weir.ArrowIpc(str(tmp_path), schema=SCHEMA, events=40), parallelism=2)["rows"]) == 40


def test_what_is_cut_short_or_something_else(tmp_path):
    path = tmp_path / "a"
    write(path, "file", 30)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="check that it is a whole file or stream of Arrow IPC"):
        read(weir.ArrowIpc(str(path), schema=SCHEMA))
    path.write_text("id\n1\n")
    with pytest.raises(InputError, match="check that it is a whole file or stream of Arrow IPC"):
        read(weir.ArrowIpc(str(path), schema=SCHEMA))
    write(path, "stream", 30, size=5)
    path.write_bytes(path.read_bytes()[:-300])
    reader = create_reader(weir.ArrowIpc(str(path), schema=SCHEMA).to_spec())
    reader.open(OperatorContext("job", "rows", 0, 0, 1))
    found = [reader.poll(100).batch.num_rows for _ in range(5)]
    assert found == [5] * 5
    with pytest.raises(InputError, match="all record batches before 5 were read"):
        reader.poll(100)
    reader.close()


def texts(ends):
    """Texts that end there, of which the bytes are "abc"."""
    buffers = [None, pa.py_buffer(np.array([0, *ends], np.int32)), pa.py_buffer(b"abc")]
    return pa.Array.from_buffers(pa.string(), len(ends), buffers)


def lists(ends, values):
    buffers = [None, pa.py_buffer(np.array([0, *ends], np.int32))]
    return pa.Array.from_buffers(pa.list_(values.type), len(ends), buffers, children=[values])


BEYOND = texts([900, 3])
#: Arrow follows these to other memory, or the process ends.
DAMAGED = {
    "a text beyond its bytes": (BEYOND, str),
    "texts that go back": (texts([2, 1, 3]), str),
    "a list beyond its elements": (lists([524_288, 2], texts([1, 3])), pl.List(pl.String)),
    "within a list": (lists([1, 2], BEYOND), pl.List(pl.String)),
    "within a struct": (pa.StructArray.from_arrays([BEYOND], ["x"]), pl.Struct({"x": pl.String})),
    "an index beyond its texts": (
        pa.DictionaryArray.from_arrays(pa.array([0, 7]), texts([1, 3]), safe=False),
        str,
    ),
    "within a dictionary": (pa.DictionaryArray.from_arrays(pa.array([0, 1]), BEYOND, safe=False), str),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", DAMAGED)
def test_offsets_and_indices_that_are_damaged_are_told_with_the_file(tmp_path, form, name):
    column, dtype = DAMAGED[name]
    table = pa.table({"text": column})
    with FORMATS[form](str(tmp_path / "damaged.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match=r"damaged\.arrow: .*all record batches before 0 were read"):
        read(weir.ArrowIpc(str(tmp_path), schema={"text": dtype}))
