"""Texts that are not UTF-8 are dead letters of the source that reads them, whatever form they are stored in."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.errors import InputError, UserFunctionError
from weir.keys.division import divided
from weir.operators.sources.parquet.parquet_source import ParquetReader
from weir.rows.records import Block
from weir.rows.utf8 import are_utf8, wrong_texts
from weir.specs import ParquetSpec

BROKEN = b"b\xe4d"


def texts_of(draw, rows, bad, length=8):
    """Texts, some beyond ASCII, of which those with these numbers are not UTF-8."""
    values = [
        BROKEN
        if n in bad
        else None
        if draw.random() < 0.1
        else f"{n}{draw.choice(['', 'ü'])}{'x' * length}".encode()
        for n in range(rows)
    ]
    return pa.array(values, pa.binary()).view(pa.string())


def nested(texts, form):
    """A column of this form with one text in each row, the type that a job declares, and the path of the text."""
    plain = pa.string()
    one_each = pa.array(range(len(texts) + 1), pa.int32())
    full = texts.cast(pa.binary()).fill_null(b"").view(pa.string())
    forms = {
        "plain": lambda: (texts, plain, "text"),
        "dictionary": lambda: (texts.dictionary_encode(), plain, "text"),
        "large": lambda: (texts.cast(pa.large_string()), plain, "text"),
        "view": lambda: (texts.cast(pa.string_view()), plain, "text"),
        "list": lambda: (pa.ListArray.from_arrays(one_each, texts), pa.list_(plain), "text"),
        "struct": lambda: (
            pa.StructArray.from_arrays([texts], ["in"]),
            pa.struct([("in", plain)]),
            "text.in",
        ),
        "map": lambda: (
            pa.MapArray.from_arrays(one_each, full, texts),
            pa.list_(pa.struct([("key", plain), ("value", plain)])),
            "text.key",
        ),
    }
    return forms[form]()


FORMS = ["plain", "dictionary", "large", "view", "list", "struct", "map"]


def write_parquet(path, table):
    pq.write_table(table, path, row_group_size=40)


def write_ipc(path, table):
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=40)


SOURCES = {"parquet": (write_parquet, weir.Parquet), "ipc": (write_ipc, weir.ArrowIpc)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_row_with_such_a_text_is_a_dead_letter(tmp_path, kind, form):
    bad = {3, 41, 99}
    column, dtype, path = nested(texts_of(random.Random(form), 100, bad), form)
    write, source = SOURCES[kind]
    write(tmp_path / "a", pa.table({"id": range(100), "text": column}))
    schema = {"id": int, "text": weir.Nullable(dtype)}
    flow = weir.Dataflow("texts")
    flow.source("rows", source(str(tmp_path / "a"), schema=schema)).sink("out", weir.Blackhole())
    result = weir.run(flow, collect="rows")
    assert [row["id"] for row in result["rows"]] == [n for n in range(100) if n not in bad]
    letters = result.dead_letters
    assert len(letters) == 3
    for letter, row in zip(letters, sorted(bad), strict=True):
        assert letter.source == str(tmp_path / "a")
        assert letter.position == (row if kind == "parquet" else row // 40)
        assert letter.reason.endswith(f"field {path} is not UTF-8")
        assert letter.raw.count("b\ufffdd") == (2 if form == "map" else 1)
    strict = weir.Dataflow("texts")
    failing = source(str(tmp_path / "a"), schema=schema, on_bad_record="fail")
    strict.source("rows", failing).sink("out", weir.Blackhole())
    with pytest.raises(
        InputError, match=rf"a r.* {3 if kind == 'parquet' else 0}: .*field {path} is not UTF-8"
    ):
        weir.run(strict, collect="rows")


#: Row whose other text is wrong.
BAD_NAME = 260


def late_file(path, bad):
    draw = random.Random(1)
    table = pa.table(
        {
            "id": pa.array(range(600), pa.int64()),
            "name": pa.array(
                [BROKEN if n == BAD_NAME else b"server-%d" % (n % 7) for n in range(600)], pa.binary()
            ).view(pa.string()),
            "payload": pa.array(
                [BROKEN * 30 if n in bad else b"x" * draw.randrange(80, 120) for n in range(600)], pa.binary()
            ).view(pa.string()),
        }
    )
    pq.write_table(table, path, use_dictionary=["name"], row_group_size=200, compression="snappy")


class Letters:
    """Keeps what is rejected."""

    def __init__(self):
        self.all = []

    def reject(self, source, position, reason, raw, length_bytes=None):
        self.all.append((source, position, reason, raw))


@pytest.mark.parametrize("rows_max", [1_000, 70])
def test_texts_that_come_late(tmp_path, rows_max):
    path, bad = str(tmp_path / "a"), {0, 250, 399, 400}
    late_file(path, bad)
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("payload", pa.string())]
    )
    reader = ParquetReader(ParquetSpec(schema=schema, path=path))
    reader.give_late(["name"])
    letters = Letters()
    reader.open(OperatorContext("job", "source", 0, 0, 1, batch_size=600, dead_letters=letters))
    ids, late_batches = [], 0
    while not (poll := reader.poll(rows_max)).finished:
        if poll.batch is None and poll.due is None:
            continue
        late_batches += poll.due is not None
        block = Block(poll.batch) if poll.due is None else poll.due.block
        for _, part, *_ in divided(block, ["name"], np.arange(128, dtype=np.int32) % 3, range(3)):
            part.validate(full=True)
            assert part.schema.names[:3] == ["id", "name", "payload"]
            ids += part.column("id").to_pylist()
    reader.close()
    assert bool(late_batches) == (rows_max == 1_000)
    assert sorted(ids) == [n for n in range(600) if n not in {*bad, BAD_NAME}]
    assert {place: reason for _, place, reason, _ in letters.all} == {
        BAD_NAME: "field name is not UTF-8"
    } | dict.fromkeys(bad, "field payload is not UTF-8")
    assert len(letters.all) == len(bad) + 1
    assert all(source == path and BROKEN in raw for source, _, _, raw in letters.all)


@pytest.mark.parametrize("form", FORMS)
def test_a_source_of_ones_own_that_yields_a_table(form):
    column, dtype, path = nested(texts_of(random.Random(2), 9, {4}), form)
    table = pa.table({"text": column})

    def read(position):
        if position is None:
            yield table, 1

    flow = weir.Dataflow("texts")
    flow.source("rows", weir.UserSource(read, schema={"text": weir.Nullable(dtype)})).sink(
        "out", weir.Blackhole()
    )
    result = weir.run(flow, collect="rows")
    assert len(result["rows"]) == 8
    (letter,) = result.dead_letters
    assert (letter.position, letter.reason) == (4, f"field {path} is not UTF-8")


def test_rows_of_python_with_such_bytes():
    def read(position):
        if position is None:
            yield [{"text": b"good"}, {"text": BROKEN}, {"text": "\udcff"}, {"text": "ü"}], 1

    flow = weir.Dataflow("texts")
    flow.source("rows", weir.UserSource(read, schema={"text": str})).sink("out", weir.Blackhole())
    result = weir.run(flow, collect="rows")
    assert [row["text"] for row in result["rows"]] == ["good", "ü"]
    assert [letter.position for letter in result.dead_letters] == [1, 2]


@pytest.mark.parametrize("exact", [True, False])
def test_what_a_function_returns(exact):
    def broken(batch):
        ids = batch.column("id").to_pylist()
        texts = pa.array([BROKEN if n == 5 else b"ok" for n in ids], pa.binary()).view(pa.string())
        return batch.append_column("text", texts if exact else texts.cast(pa.large_string()))

    flow = weir.Dataflow("texts")
    rows = flow.source("rows", weir.UserSource(lambda: Ids(), schema={"id": int}))
    rows.map_batches("broken", broken, schema={"id": int, "text": str}).sink("out", weir.Blackhole())
    with pytest.raises(
        UserFunctionError, match=r"step 'broken'.* bytes in column 'text' that are not UTF-8, in row 5"
    ):
        weir.run(flow)


class Ids(weir.Source):
    """The numbers 0 to 8."""

    def read(self, split, position):
        """See the base class."""
        if position is None:
            yield pa.table({"id": range(9)}), 1


def test_random_arrays_are_judged_as_arrow_does():
    draw = random.Random(3)
    for _ in range(300):
        rows = draw.randrange(1, 30)
        bad = {draw.randrange(rows)} if draw.random() < 0.5 else set()
        form = draw.choice(FORMS)
        column, _, path = nested(texts_of(draw, rows, bad, draw.choice([0, 70])), form)
        start = draw.randrange(rows)
        column = column.slice(start, draw.randrange(rows - start) + 1)
        here = {n - start for n in bad if start <= n < start + len(column)}
        batch = pa.record_batch({"text": column})
        assert wrong_texts(batch) == dict.fromkeys(here, path)
        if form in ("plain", "large", "view"):
            assert are_utf8(column) == (not here)


def test_a_character_that_is_cut_between_two_texts():
    texts = pa.Array.from_buffers(
        pa.string(), 4, [None, pa.py_buffer(np.array([0, 1, 2, 2, 4], np.int32)), pa.py_buffer("üß".encode())]
    )
    assert wrong_texts(pa.record_batch({"t": texts})) == {0: "t", 1: "t"}
    assert are_utf8(texts.slice(2))
    assert not are_utf8(texts.slice(1))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_name_of_a_column_that_is_not_utf_8_is_told_with_the_file(tmp_path, form):
    path = tmp_path / f"damaged.{form}"
    table = pa.table({"id": [1], "ÄÖÜ": [2]})
    if form == "parquet":
        pq.write_table(table, path, store_schema=False)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    path.write_bytes(path.read_bytes().replace("ÄÖÜ".encode(), b"\xff" * 6))
    kind = weir.Parquet if form == "parquet" else weir.ArrowIpc
    flow = weir.Dataflow("names")
    flow.source("rows", kind(str(tmp_path), schema={"id": int})).sink("out", weir.Collect())
    with pytest.raises(InputError, match=rf"damaged\.{form}: .*check"):
        weir.run(flow)
