"""Compressed input: all codecs, and streams that are broken."""

from __future__ import annotations

import pyarrow as pa
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.errors import GraphError, InputError
from weir.operators.registry import create_reader

CODECS = [("gzip", "gz"), ("zstd", "zst"), ("bz2", "bz2"), ("lz4", "lz4")]
LINES = [f"{n},name-{n * 7919 % 10_007}\n" for n in range(150_000)]
SCHEMA = {"id": int, "name": str}


def compressed(text, codec):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(text.encode())
    return out.getvalue().to_pybytes()


def read(source, **more):
    flow = weir.Dataflow("compressed")
    flow.source("rows", source).sink("out", weir.Blackhole())
    return weir.run(flow, collect="rows", **more)


def csv(path, **more):
    return weir.Csv(str(path), schema=SCHEMA, header=False, **more)


@pytest.mark.parametrize(("codec", "suffix"), CODECS)
def test_by_the_name_or_by_the_setting(tmp_path, codec, suffix):
    data = compressed("".join(LINES[:10]), codec)
    (tmp_path / f"a.csv.{suffix.upper()}").write_bytes(data)
    (tmp_path / "data").write_bytes(data)
    assert len(read(csv(tmp_path / f"a.csv.{suffix.upper()}"))["rows"]) == 10
    assert len(read(csv(tmp_path / "data", compression=codec))["rows"]) == 10
    (tmp_path / f"plain.{suffix}").write_text("1,a\n")
    assert len(read(csv(tmp_path / f"plain.{suffix}", compression=None))["rows"]) == 1


@pytest.mark.parametrize(("codec", "suffix"), CODECS)
def test_all_rows_before_a_break_are_delivered_then_the_error_names_file_and_position(
    tmp_path, codec, suffix
):
    whole = compressed("".join(LINES), codec)
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    spec = csv(path).to_spec()
    reader = create_reader(spec)
    reader.open(OperatorContext("job", "rows", 0, 0, 1))
    ids = []

    def read_on():
        while True:
            poll = reader.poll(10_000)
            ids.extend(poll.batch.column("id").to_pylist() if poll.batch is not None else [])

    with pytest.raises(InputError) as caught:
        read_on()
    assert len(ids) > 100
    assert ids == list(range(len(ids)))
    read_bytes = sum(len(line) for line in LINES[: len(ids)])
    broken_at = int(str(caught.value).split("after byte ")[1].split()[0])
    assert read_bytes <= broken_at < read_bytes + len(LINES[len(ids)])
    assert str(path) in str(caught.value)
    # A restart comes to the same place, and gives nothing twice.
    rest = reader.snapshot()["rests"]
    assert rest[0][1] == read_bytes
    reader.close()


@pytest.mark.parametrize(("codec", "suffix"), CODECS)
def test_what_is_not_compressed(tmp_path, codec, suffix):
    (tmp_path / f"a.{suffix}").write_text("1,a\n" * 100)
    with pytest.raises(InputError, match=rf"a\.{suffix}.* or not {codec}"):
        read(csv(tmp_path / f"a.{suffix}"))


def test_an_unknown_codec():
    with pytest.raises(
        GraphError, match="compression is 'zip'; it is one of 'auto', 'gzip', 'zstd', 'bz2', 'lz4', or"
    ):
        read(csv("in", compression="zip"))
