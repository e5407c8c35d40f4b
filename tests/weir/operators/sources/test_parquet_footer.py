"""Damaged Parquet metadata are refused with an error: pyarrow's accessors would end the process over some of them."""

import io
import json
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import cases
from weir.operators.sources.parquet.parquet_footer import check_footer

FLIPS = cases(200)


def written(table, **options):
    data = io.BytesIO()
    pq.write_table(table, data, **options)
    return data.getvalue()


def plain():
    rows = np.arange(400)
    columns = {"id": rows, "name": [f"s{n % 9}" for n in rows], "at": pa.array(rows, pa.timestamp("ms"))}
    return written(pa.table(columns), row_group_size=200)


@pytest.mark.parametrize("codec", ["snappy", "zstd", "lz4", "gzip", "brotli", "none"])
def test_whole_metadata_pass(codec):
    nested = pa.table(
        {
            "list": [[1, 2], None, [3]],
            "struct": [{"a": 1, "b": [{"x": "q"}]}, None, {"a": None, "b": None}],
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
            "wide": pa.array([b"x" * 300, None, b""]),
        }
    )
    check_footer(io.BytesIO(written(nested, compression=codec)))


def footer_start(data):
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def look(numbers):
    """Opens files with flipped bytes as the source does; in a process of its own, which pyarrow may end."""
    from weir.operators.sources.parquet.parquet_rows import open_parquet

    data = plain()
    for number in numbers:
        print(number, flush=True)
        damaged = bytearray(data)
        rng = random.Random(number)
        damaged[rng.randrange(footer_start(data), len(data) - 8)] = rng.randrange(256)
        try:
            file = open_parquet(io.BytesIO(bytes(damaged)), ["id", "name", "at"])
            for group in map(file.metadata.row_group, range(file.num_row_groups)):
                for column in map(group.column, range(group.num_columns)):
                    assert str(
                        [
                            column.compression,
                            column.encodings,
                            column.statistics and column.statistics.min_raw,
                            column.path_in_schema,
                        ]
                    )
        except (OSError, ValueError, KeyError, UnicodeDecodeError, pa.ArrowException):
            continue


def test_no_flipped_byte_in_the_metadata_ends_the_process():
    call = f"import {__name__} as test; test.look(range({FLIPS}))"
    code = f"import sys, json; sys.path[:] = json.loads({json.dumps(json.dumps(sys.path))}); {call}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, f"flip {ended.stdout.split()[-1:]}: {ended.stderr[-500:]}"
