"""Files over the same hours of which one has no good row: no row of the others is late, and no file stops the job."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import weir

_SCHEMA = {"at": pl.Int64}
_SOURCES = {
    "jsonl": weir.JsonLines,
    "jsonl.gz": weir.JsonLines,
    "csv": weir.Csv,
    "csv.gz": weir.Csv,
    "parquet": weir.Parquet,
    "arrow": weir.ArrowIpc,
}


def _write(path: Path, times: list[int]) -> None:
    frame = pl.DataFrame({"at": times}, schema=_SCHEMA)
    form, _, packed = path.name.partition(".")[2].partition(".")
    if form == "parquet":
        frame.write_parquet(path)
    elif form == "arrow":
        frame.write_ipc(path)
    else:
        text = (frame.write_csv() if form == "csv" else frame.write_ndjson()).encode()
        path.write_bytes(gzip.compress(text) if packed else text)


def _counted(source: Any, parallelism: int) -> int:
    flow = weir.Dataflow("hours")
    rows = flow.source(
        "rows",
        source,
        event_time="at",
        watermark=weir.bounded_out_of_orderness("0s"),
        parallelism=parallelism,
    )
    counts = rows.window_all(weir.tumbling("1s")).aggregate("counts", n=weir.count())
    result = weir.run(counts)
    assert not result.late_rows
    return sum(row["n"] for row in result["counts"])


@pytest.mark.parametrize("form", list(_SOURCES))
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_file_without_rows_holds_nothing_up(tmp_path: Path, form: str, parallelism: int) -> None:
    times = list(range(0, 20_000, 100))
    for number, content in enumerate([times, [], times, [], times]):
        _write(tmp_path / f"{number}.{form}", content)
    source = _SOURCES[form](str(tmp_path), schema=_SCHEMA)
    assert _counted(source, parallelism) == 3 * len(times)


def test_a_file_of_bad_lines_holds_nothing_up(tmp_path: Path) -> None:
    times = list(range(0, 20_000, 100))
    for number in range(3):
        _write(tmp_path / f"{number}.jsonl", times)
    (tmp_path / "1.jsonl").write_text("no\nnor this\n")
    assert _counted(weir.JsonLines(str(tmp_path), schema=_SCHEMA), 1) == 2 * len(times)
