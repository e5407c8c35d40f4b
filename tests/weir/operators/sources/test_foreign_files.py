"""Files that hold no lines of text fail a job with their name and the mend; a source that follows goes on."""

from __future__ import annotations

import bz2
import gzip

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.errors import InputError

LINES = b'{"id": 1}\n{"id": 2}\n'


def packed(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(LINES)
    return sink.getvalue().to_pybytes()


def written(form: str) -> bytes:
    sink = pa.BufferOutputStream()
    getattr(pl.DataFrame({"id": [1]}), f"write_{form}")(sink)
    return sink.getvalue().to_pybytes()


FORMS = {
    "gzip": (gzip.compress(LINES), 'compressed with gzip, .*; say compression="gzip"'),
    "bz2": (bz2.compress(LINES), 'compressed with bz2, .*; say compression="bz2"'),
    "zstd": (packed("zstd"), 'compressed with zstd, .*; say compression="zstd"'),
    "lz4": (packed("lz4"), 'compressed with lz4, .*; say compression="lz4"'),
    "parquet": (written("parquet"), r"a Parquet file; read it with weir\.Parquet"),
    "arrow": (written("ipc"), r"an Arrow IPC file; read it with weir\.ArrowIpc"),
    "utf-16": (LINES.decode().encode("utf-16"), "UTF-16; make UTF-8 of it: iconv -f UTF-16 -t UTF-8"),
    "zip": (b"PK\x03\x04\x14\0\0\0", "a zip archive; unpack it"),
}
SOURCES = {
    "json": (weir.JsonLines, {}),
    "csv": (weir.Csv, {}),
    "text": (weir.Csv, {"header": False, "quote": None, "quoted_newlines": False}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SOURCES)
def test_they_are_told_by_their_first_bytes(tmp_path, form, kind):
    content, what = FORMS[form]
    (tmp_path / "data").write_bytes(content)
    source, options = SOURCES[kind]
    flow = weir.Dataflow("foreign")
    flow.source("rows", source(str(tmp_path), schema={"id": int}, **options)).sink("out", weir.Collect())
    with pytest.raises(InputError, match=f"data.* is {what}"):
        weir.run(flow)


def test_the_codec_that_is_said_reads_it(tmp_path):
    (tmp_path / "data").write_bytes(gzip.compress(LINES))
    flow = weir.Dataflow("foreign")
    source = weir.JsonLines(str(tmp_path), schema={"id": int}, compression="gzip")
    flow.source("rows", source).sink("out", weir.Collect())
    assert [row["id"] for row in weir.run(flow)["out"]] == [1, 2]


def test_a_source_that_follows_goes_on(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(LINES))
    (tmp_path / "b").write_bytes(LINES)
    flow = weir.Dataflow("foreign")
    flow.source("rows", weir.JsonLines(str(tmp_path), schema={"id": int}, follow=True)).sink(
        "out", weir.Blackhole()
    )
    result = weir.run(flow, collect="rows", until=lambda result: len(result["rows"]) == 2)
    assert [row["id"] for row in result["rows"]] == [1, 2]
    assert result.dead_letters
