"""Headers that the kernel reads are those that are read in Python."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.operators.sources.parquet.parquet_header_kernels import (
    DEPTH_MAX,
    HEADER_BYTES,
    HEADER_FIELDS,
    find_header,
    find_headers,
)
from weir.operators.sources.parquet.parquet_headers import (
    KEPT_AT,
    DamagedPageError,
    PageHeader,
    header_of,
    read_header,
)


def by_kernel(descriptor: int, at: int, stop: int) -> tuple[PageHeader, int] | None:
    fields, depths = np.empty(HEADER_FIELDS, dtype=np.int64), np.empty(DEPTH_MAX, dtype=np.int64)
    size = find_header(descriptor, at, stop, np.empty(HEADER_BYTES, dtype=np.uint8), fields, depths)
    header = header_of(fields[KEPT_AT].tolist()) if size else None
    return None if header is None else (header, size)


def places_by_kernel(path: Path, at: int, stop: int, count_max: int) -> list[list[int]]:
    """Where the headers of a file begin from one on, and their bytes."""
    fields = np.empty((count_max, HEADER_FIELDS), dtype=np.int64)
    places = np.empty((count_max, 2), dtype=np.int64)
    depths, data = np.empty(DEPTH_MAX, dtype=np.int64), np.empty(HEADER_BYTES, dtype=np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    count = find_headers(descriptor, at, stop, data, fields, places, depths)
    os.close(descriptor)
    assert count <= count_max
    return places[:count].tolist()


def headers_of(path: Path, **options: object) -> list[tuple[int, int]]:
    """Where the headers of a file with one column begin, and where the column ends."""
    texts = [f"text-{row % 3000}" * 9 for row in range(9000)]
    pq.write_table(pa.table({"text": texts}), path, data_page_size=20_000, write_batch_size=64, **options)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    places = []
    begins = [column.data_page_offset, column.dictionary_page_offset]
    at = min(begin for begin in begins if begin)
    stop = at + column.total_compressed_size
    data = path.read_bytes()
    while at < stop:
        found = read_header(data, at)
        assert found is not None
        places.append((at, stop))
        at = found[1] + found[0].compressed_bytes
    return places


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_headers_of_a_file_are_the_same(tmp_path, version, use_dictionary):
    path = tmp_path / "a.parquet"
    places = headers_of(path, data_page_version=version, use_dictionary=use_dictionary)
    data = path.read_bytes()
    descriptor = os.open(path, os.O_RDONLY)
    found = [by_kernel(descriptor, at, stop) for at, stop in places]
    os.close(descriptor)
    expected = []
    for at, _ in places:
        header, end = read_header(data, at) or (None, 0)
        expected.append((header, end - at))
    # Data pages of the second form are left to Python.
    is_read = [header.kind != 3 for header, _ in expected if header is not None]
    assert found == [one if read else None for one, read in zip(expected, is_read, strict=True)]
    assert any(is_read) == (version == "1.0" or use_dictionary)


def test_headers_are_read_together_up_to_one_that_is_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    places = headers_of(path, data_page_version="1.0", use_dictionary=False)
    begins, (first, stop) = [at for at, _ in places], places[0]
    assert [at for at, _ in places_by_kernel(path, first, stop, 100)] == begins
    assert [at for at, _ in places_by_kernel(path, first, stop, 3)] == begins[:3]
    # All of a header, but not of its page.
    assert [at for at, _ in places_by_kernel(path, first, begins[4] + 100, 100)] == begins[:4]
    data = bytearray(path.read_bytes())
    data[begins[2]] = 255
    path.write_bytes(data)
    assert [at for at, _ in places_by_kernel(path, first, stop, 100)] == begins[:2]


@pytest.mark.parametrize("seed", range(10))
def test_what_is_no_usual_header_is_left_to_python(tmp_path, seed):
    draw = random.Random(seed)
    path = tmp_path / "a.parquet"
    places = headers_of(path, data_page_version="1.0", use_dictionary=draw.random() < 0.5)
    data = path.read_bytes()
    damaged = tmp_path / "damaged"
    for _ in range(200):
        at, _ = draw.choice(places)
        header = bytearray(data[at : at + draw.choice([10, 300])])
        for _ in range(draw.choice([1, 3])):
            header[draw.randrange(min(60, len(header)))] = draw.choice([0, 255, draw.randrange(256)])
        damaged.write_bytes(header)
        descriptor = os.open(damaged, os.O_RDONLY)
        found = by_kernel(descriptor, 0, len(header))
        os.close(descriptor)
        expected = None
        with contextlib.suppress(DamagedPageError):
            expected = read_header(bytes(header), 0)
        assert found in (None, expected)
