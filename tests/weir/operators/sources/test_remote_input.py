"""Input at URIs: listing, ranges, positions, failures that pass; against a real S3 server."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import weir
from experiments.ports import free_port
from experiments.s3_server import SECRET
from weir.author.operator import OperatorContext
from weir.errors import FailureKind, InputError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_reader
from weir.operators.sources.files import input_files, splits
from weir.operators.sources.lines import line_source

SCHEMA = {"id": int, "name": str}


def uri(port, path):
    options = f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
    return f"s3://key:{SECRET}@bucket/{path}?{options}"


def put(port, path, data):
    filesystem, name = fs.FileSystem.from_uri(uri(port, path))
    with filesystem.open_output_stream(name, compression=None) as stream:
        stream.write(data)


def flow_of(source, parallelism=1):
    flow = weir.Dataflow("remote")
    flow.source("rows", source, parallelism=parallelism).sink("out", weir.Blackhole())
    return flow


def read(source, parallelism=1, **more):
    return weir.run(flow_of(source, parallelism), collect="rows", **more)


def read_to_the_end(reader):
    while not reader.poll(10_000).finished:
        pass


def names(ids):
    return [{"id": n, "name": f"n-{n}"} for n in ids]


def lines(ids):
    return "".join(json.dumps(row) + "\n" for row in names(ids)).encode()


def records(ids):
    return b"id,name\n" + "".join(f"{n},n-{n}\n" for n in ids).encode()


def table(ids):
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(names(ids)), out, row_group_size=300)
    return out.getvalue()


KINDS = [(weir.JsonLines, lines, "jsonl"), (weir.Csv, records, "csv"), (weir.Parquet, table, "parquet")]


@pytest.mark.parametrize(("source", "content", "suffix"), KINDS)
def test_folders_of_s3_are_columns(s3_port, source, content, suffix):
    # As a URI has a space, and the % of what a folder has instead of a slash.
    for number, day in enumerate(("a%20b", "c%252Fd")):
        put(s3_port, f"days-{suffix}/day={day}/part.{suffix}", content([number]))
    found = read(source(uri(s3_port, f"days-{suffix}/**/*.{suffix}"), schema={**SCHEMA, "day": str}))
    rows = [{**row, "day": day} for row, day in zip(names(range(2)), ("a b", "c/d"), strict=True)]
    assert sorted(found["rows"].to_dicts(), key=lambda row: row["id"]) == rows


@pytest.mark.parametrize(("source", "content", "suffix"), KINDS)
def test_a_directory_a_glob_and_a_file_of_s3(s3_port, source, content, suffix, monkeypatch, caplog):
    monkeypatch.setattr(splits, "SPLIT_BYTES_MIN", 3000)
    caplog.set_level(logging.DEBUG)
    folder = f"in-{suffix}"
    for part in range(3):
        put(s3_port, f"{folder}/part-{part}.{suffix}", content(range(part * 1000, part * 1000 + 1000)))
    put(s3_port, f"{folder}/_SUCCESS", b"")
    put(s3_port, f"{folder}/below/part-9.{suffix}", content([9999]))
    for path, ids in (
        (folder, range(3000)),
        (f"{folder}/part-[!1].{suffix}", [*range(1000), *range(2000, 3000)]),
        (f"{folder}/**/part-9*", [9999]),
        (f"{folder}/part-1.{suffix}", range(1000, 2000)),
    ):
        result = read(source(uri(s3_port, path), schema=SCHEMA), parallelism=2)
        assert sorted(row["id"] for row in result["rows"]) == list(ids)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(("source", "content", "suffix"), KINDS)
def test_positions_name_files_without_credentials(s3_port, source, content, suffix, tmp_path):
    put(s3_port, f"cut-{suffix}/a", content(range(2000)))
    path = uri(s3_port, f"cut-{suffix}")
    restored, found, dice = {}, [], random.Random(1)
    for _ in range(6):
        letters = DeadLetterFile(tmp_path, "job", "rows", 0)
        reader = create_reader(source(path, schema=SCHEMA).to_spec())
        reader.open(
            OperatorContext("job", "rows", 0, 0, 1, restored=restored, dead_letters=letters, batch_size=50)
        )
        for _ in range(dice.randrange(4)):
            found += reader.poll(dice.randrange(1, 200)).batch.column("id").to_pylist()
        text = json.dumps(reader.snapshot())
        assert SECRET not in text
        assert f"s3://bucket/cut-{suffix}/a" in text
        restored = {0: json.loads(text)}
        reader.close()
        letters.close()
    assert found == list(range(len(found)))


def test_dead_letters_name_the_object(s3_port):
    put(s3_port, "bad/a.csv", b"id,name\n1,a\nx,b\n")
    result = read(weir.Csv(uri(s3_port, "bad/a.csv"), schema=SCHEMA))
    assert [(letter.source, letter.position) for letter in result.dead_letters] == [
        ("s3://bucket/bad/a.csv", 12)
    ]


def test_a_compressed_object_that_is_followed(s3_port):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(lines(range(10)))
    put(s3_port, "followed/a.jsonl.zst", out.getvalue())

    def until(result):
        if len(result["rows"]) == 10:
            put(s3_port, "followed/b.jsonl", lines(range(10, 20)))
        return len(result["rows"]) == 20

    result = read(weir.JsonLines(uri(s3_port, "followed"), schema=SCHEMA, follow=True), until=until, for_s=60)
    assert [row["id"] for row in result["rows"]] == list(range(20))


def test_reads_that_fail_are_tried_again(s3_port, monkeypatch):
    put(s3_port, "flaky/a.jsonl", lines(range(20_000)))
    monkeypatch.setattr(input_files, "WAIT_S", 0.001)
    real, failures = input_files._RemoteFile._read, []

    def read_at(self, size):
        if len(failures) < 3:
            failures.append(size)
            self._drop()
            raise OSError("curlCode: 56, Failure when receiving data from the peer")
        return real(self, min(size, 100_000))

    monkeypatch.setattr(input_files._RemoteFile, "_read", read_at)
    assert len(read(weir.JsonLines(uri(s3_port, "flaky"), schema=SCHEMA))["rows"]) == 20_000
    assert len(failures) == 3


@pytest.mark.parametrize(("source", "content", "suffix"), KINDS[:2])
def test_an_object_that_is_replaced_while_it_is_read_is_refused(
    s3_port, source, content, suffix, monkeypatch
):
    monkeypatch.setattr(input_files, "_READ_BYTES", 1 << 14)
    monkeypatch.setattr(line_source, "BUFFER_BYTES", 1 << 15)
    path = f"replaced-{suffix}/a"
    put(s3_port, path, content(range(10_000, 60_000)))
    reader = create_reader(source(uri(s3_port, path), schema=SCHEMA, rate=1e6).to_spec())
    reader.open(OperatorContext("job", "rows", 0, 0, 1, batch_size=50))
    assert reader.poll(50).batch.num_rows == 50
    # Of the same size; the service notes whole seconds.
    before = time.time()
    while int(time.time()) == int(before):
        time.sleep(0.05)
    put(s3_port, path, content(range(40_000, 90_000)))
    with (
        contextlib.closing(reader),
        pytest.raises(InputError, match=f"input s3://bucket/{path} was replaced while it was read"),
    ):
        read_to_the_end(reader)


def test_what_is_absent_or_away(s3_port, monkeypatch):
    monkeypatch.setattr(input_files, "ATTEMPTS_MAX", 1)
    with pytest.raises(
        InputError, match="cannot read input s3://bucket/absent: there is no such file"
    ) as caught:
        read(weir.JsonLines(uri(s3_port, "absent"), schema=SCHEMA))
    assert caught.value.failure_kind is FailureKind.PERMANENT
    reader = create_reader(weir.JsonLines(uri(free_port(), "in"), schema=SCHEMA).to_spec())
    with pytest.raises(InputError, match="check endpoint, network and credentials") as caught:
        reader.open(OperatorContext("job", "rows", 0, 0, 1))
    assert caught.value.failure_kind is FailureKind.OUTAGE
    assert SECRET not in str(caught.value)
    with pytest.raises(InputError, match="cannot read input nonsense://x/y: "):
        read(weir.JsonLines("nonsense://user:pw@x/y", schema=SCHEMA))


def test_who_may_not_read_is_told_to_look_at_the_credentials():
    error = OSError("When listing objects: AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation")
    made = input_files.unreadable("s3://bucket/in", error)
    assert made.failure_kind is FailureKind.PERMANENT
    assert str(made).endswith("; check credentials and permissions")


def test_a_file_uri_is_a_path(tmp_path):
    (tmp_path / "a b.jsonl").write_bytes(lines(range(3)))
    result = read(weir.JsonLines(f"file://{str(tmp_path).replace(' ', '%20')}/a%20b.jsonl", schema=SCHEMA))
    assert len(result["rows"]) == 3
