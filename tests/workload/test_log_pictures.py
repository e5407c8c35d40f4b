"""Pictures of the benchmark of the log, from the file that it writes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from benchmarks.wal.cases import CASES, Case
from benchmarks.wal.document import write_csv
from weir.errors import InputError
from workload.log_pictures import PICTURE_NAMES, draw_log_pictures, draw_medians, medians


def figures(system: str, case: Case, speed: float) -> dict[str, object]:
    return {
        **{"system": system, "case": case.name, "acks": case.acks, "mode": case.mode, "data": case.data},
        **{"compression": case.compression, "idempotent": system == "weir", "in_flight": case.in_flight or 5},
        **{
            "batch_records_max": 0,
            "retention": case.retention,
            "place": "disk" if case.on_disk else "memory",
        },
        **{"acknowledged_mb_per_second": speed, "records_per_second": 1000 * speed, "p50_ms": 1 / speed},
        **{"p99_ms": 4.0, "broker_processors": 1.0, "client_processors": 0.5, "peak_broker_bytes": 100 << 20},
    }


def write(path: Path, cases: tuple[Case, ...]) -> None:
    runs = [
        {
            "cases": [
                figures(system, case, factor * (number + 1))
                for number, case in enumerate(cases)
                for system in ("weir", "kafka")
            ]
        }
        for factor in (30.0, 10.0, 20.0)
    ]
    write_csv(path, {"repeats": runs})


@pytest.mark.spark
def test_each_picture_is_drawn_of_the_medians(spark, tmp_path: Path):
    write(tmp_path / "wal.csv", CASES)
    rows = medians(spark, tmp_path / "wal.csv")
    assert [row["Case"] for row in rows[::2]] == [case.name for case in CASES]
    speed = "Throughput(MBs/sec)"
    assert [rows[2][f"{what} {speed}"] for what in ("least", "median", "greatest")] == [20.0, 40.0, 60.0]
    paths = draw_medians(rows, tmp_path / "made" / "pictures")
    assert [path.name for path in paths] == list(PICTURE_NAMES)
    for path in paths:
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert width == 1_200
        assert 400 <= height <= 2_500
    # A part of the cases: what there is.
    write(tmp_path / "part.csv", (Case("sync", "random"),))
    paths = draw_medians(medians(spark, tmp_path / "part.csv"), tmp_path / "part")
    assert [path.name for path in paths] == ["log_acks.png", "log_storage.png"]


@pytest.mark.spark
def test_other_files_are_refused_in_one_line(spark, tmp_path: Path):
    with pytest.raises(InputError, match="there is no such file; python -m benchmarks wal --csv"):
        draw_log_pictures(tmp_path / "none.csv", tmp_path)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="it is no file of python -m benchmarks wal"):
        medians(spark, tmp_path / "other.csv")
