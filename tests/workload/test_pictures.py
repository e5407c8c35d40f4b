from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.effort import IS_LONG
from workload import pictures
from workload.analysis import FileAnalysis, Slice, Statistics
from workload.latency_files import LatencyFile
from workload.pictures import PICTURE_NAMES, draw_pictures
from workload.report import milliseconds_text, phases_table, summary, summary_table


def analysis(
    label: str, values: list[float], *, marks_ms: tuple[float, ...] = (), gap: bool = False
) -> FileAnalysis:
    def statistics(value: float, events: int) -> Statistics:
        return Statistics(events, value, value * 2, value * 3, value * 4)

    starts = [float(i + 5 * (gap and i > 2)) for i in range(len(values))]
    return FileAnalysis(
        file=LatencyFile(Path(f"/runs/{label}.txt"), label, {"job": "server_count"}, marks_ms),
        statistics=statistics(max(values), 1_000),
        mean_ms=sum(values) / len(values),
        min_ms=min(values),
        first_arrival_ms=1_700_000_000_000,
        duration_s=starts[-1],
        malformed=0,
        cut=0,
        slice_s=1,
        slices=tuple(Slice(s, statistics(v, 10)) for s, v in zip(starts, values, strict=True)),
        points=tuple(zip(starts, values, strict=True)),
    )


CASES = {
    "one event, formula and long label": [analysis(r"$\frac{ " + "x" * 200, [1.0])],
    "zero and negative": [analysis("a", [0.0, -3.0, 5.0, 9_000.0])],
    "all zero": [analysis("a", [0.0, 0.0])],
    "gap and marks": [analysis("a", [2.0] * 9, gap=True, marks_ms=(1_700_000_003_000.0, 0.0, 9e15))],
    "many files": [analysis(f"run {i}", [1.0 + i, 500.0, 2.0]) for i in range(30)],
}
#: Laying out takes seconds: in each run of the suite what has nothing to draw, and all others in the same pictures.
SHORT = {
    "all zero": CASES["all zero"],
    "others": [each for name, some in CASES.items() if name != "all zero" for each in some],
}


@pytest.mark.parametrize("analyses", (CASES if IS_LONG else SHORT).values(), ids=CASES if IS_LONG else SHORT)
def test_pictures_are_drawn(tmp_path: Path, analyses: list[FileAnalysis], monkeypatch: pytest.MonkeyPatch):
    if not IS_LONG:
        # Laying out a panel takes a third of a second.
        monkeypatch.setattr(pictures, "_PANELS_MAX", 3)
    paths = draw_pictures(analyses, tmp_path, title="costs $5")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(PICTURE_NAMES)
    for path in paths:
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:24])
        assert width == 1_200
        assert 500 <= height <= 4_000


def test_latencies_are_written_with_four_digits():
    assert [milliseconds_text(v) for v in (0.0, 1.23456, 12.3456, 123.456, 1234.56)] == [
        "0.000",
        "1.235",
        "12.35",
        "123.5",
        "1,235",
    ]


def test_summary_and_table_hold_the_numbers():
    analyses = CASES["gap and marks"]
    (file,) = summary(analyses, cut_warmup_s=0.0)["files"]
    assert (file["events"], file["p50_ms"], file["p99_ms"], file["max_ms"]) == (1_000, 2.0, 6.0, 8.0)
    assert file["job"] == "server_count"
    assert file["events_per_second"] == pytest.approx(1_000 / 13)
    assert file["slices"][0] == {
        "start_s": 0.0,
        "events": 10,
        "p50_ms": 2.0,
        "p95_ms": 4.0,
        "p99_ms": 6.0,
        "max_ms": 8.0,
    }
    assert [column.header for column in summary_table(analyses).columns][:3] == ["file", "events", "events/s"]


def test_phases_are_shown_for_scaled_runs_only():
    plain, scaled = analysis("plain", [1.0]), analysis("scaled", [1.0])
    assert phases_table([plain]) is None
    numbers = Statistics(5, 1.0, 2.0, 30.0, 400.0)
    table = phases_table([plain, replace(scaled, phases={"before": numbers})])
    assert table is not None
    cells = [list(column.cells) for column in table.columns]
    assert cells == [["scaled"], ["1.000 / 30.00 / 400.0"], ["-"], ["-"]]
