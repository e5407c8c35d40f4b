from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from weir.errors import InputError
from workload.analysis import POINTS_MAX, Statistics, analyse
from workload.latency_files import find_latency_files

pytestmark = pytest.mark.spark
START_MS = 1_700_000_000_000


def nearest_rank(values: np.ndarray, percent: int) -> float:
    """Independent of the code: numpy's inverted CDF is the nearest rank."""
    return float(np.percentile(values, percent, method="inverted_cdf"))


def expected(values: np.ndarray) -> Statistics:
    p50_ms, p95_ms, p99_ms = (nearest_rank(values, percent) for percent in (50, 95, 99))
    return Statistics(len(values), p50_ms, p95_ms, p99_ms, float(values.max()))


def write(
    path: Path, seed: int, count: int, duration_ms: int, decimals: int = 6
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    arrivals_ms = np.sort(START_MS + random.integers(0, duration_ms, count))
    latencies_ms = np.round(random.lognormal(1.0, 1.0, count), decimals)
    lines = [f"{a},{v:.{decimals}f}\n" for a, v in zip(arrivals_ms, latencies_ms, strict=True)]
    path.write_text("".join(lines))
    return arrivals_ms, latencies_ms


@pytest.fixture(scope="module")
def odd_directory(tmp_path_factory) -> Path:
    """Glob characters, percent signs and blanks in a path must not confuse Spark."""
    return tmp_path_factory.mktemp("latencies") / "a [1] {b} #%20*"


def test_numbers_equal_an_independent_computation(spark, odd_directory: Path):
    odd_directory.mkdir()
    # Few distinct values, many ties between slices; a size for which 0.95 * n and 0.99 * n are whole.
    data = {
        "large": write(odd_directory / "large.txt", 1, 20_000, 9_500, decimals=3),
        "tied": write(odd_directory / "tied.txt", 2, 3_000, 4_000, decimals=0),
        "single": write(odd_directory / "single.txt", 3, 1, 1),
    }
    for cut_s in (0.0, 1.5):
        names = ["large", "tied"] if cut_s else list(data)
        files = find_latency_files([odd_directory / f"{name}.txt" for name in names])
        for analysis in analyse(spark, files, cut_warmup_s=cut_s):
            arrivals_ms, latencies_ms = data[analysis.file.label]
            since_ms = arrivals_ms - arrivals_ms[0]
            keep = since_ms >= cut_s * 1000
            assert analysis.statistics == expected(latencies_ms[keep])
            assert analysis.mean_ms == pytest.approx(latencies_ms[keep].mean())
            assert analysis.min_ms == latencies_ms[keep].min()
            assert analysis.cut == (~keep).sum()
            assert analysis.duration_s == np.ptp(arrivals_ms[keep]) / 1000
            seconds = since_ms // 1000
            assert [(piece.start_s, piece.statistics) for piece in analysis.slices] == [
                (float(second), expected(latencies_ms[keep & (seconds == second)]))
                for second in np.unique(seconds[keep])
            ]
            assert len(analysis.points) <= POINTS_MAX * 1.2
            known = set(zip(since_ms / 1000, latencies_ms, strict=True))
            assert set(analysis.points) <= known
            if keep.sum() <= POINTS_MAX:
                assert len(analysis.points) == keep.sum()


def test_phases_of_scaled_runs_equal_an_independent_computation(spark, tmp_path: Path):
    requested_ms, completed_ms = START_MS + 2_000, START_MS + 3_500
    for name, seed in (("scaled", 4), ("plain", 5), ("again", 6)):
        arrivals_ms, latencies_ms = write(tmp_path / f"{name}.txt", seed, 2_000, 6_000, decimals=0)
        if name == "scaled":
            scaled = arrivals_ms, latencies_ms
    marks = {"scale_requested_ms": [requested_ms], "scale_completed_ms": completed_ms}
    (tmp_path / "scaled.json").write_text(json.dumps(marks))
    # A request whose end nobody noted gives no phases.
    (tmp_path / "again.json").write_text(json.dumps({"scale_requested_ms": requested_ms}))
    by_name = {item.file.path.stem: item for item in analyse(spark, find_latency_files([tmp_path]))}
    assert (by_name["plain"].phases, by_name["again"].phases) == ({}, {})
    arrivals_ms, latencies_ms = scaled
    before, after = arrivals_ms < requested_ms, arrivals_ms >= completed_ms
    assert by_name["scaled"].phases == {
        "before": expected(latencies_ms[before]),
        "during": expected(latencies_ms[~before & ~after]),
        "after": expected(latencies_ms[after]),
    }


def test_malformed_lines_are_counted_and_left_out(spark, tmp_path: Path):
    good = [f"{START_MS + i},{i}.5" for i in range(100)]
    bad = [
        b"header",
        b"1700000000000",
        b"1700000000000,",
        b",5",
        b"12,5",
        b"1700000000000,NaN",
        b"1,2,3",
        b"\xff\xfe\x00",
    ]
    bad += [b"1700000000000,1e5", b"1700000000000;5", b"x" * 100_000, f"{START_MS},1d".encode()]
    content = [line.encode() for line in good] + bad + [b"", b"   "]
    (tmp_path / "run.txt").write_bytes(b"\r\n".join(content))
    (analysis,) = analyse(spark, find_latency_files([tmp_path]))
    assert analysis.statistics == expected(np.arange(100) + 0.5)
    assert analysis.malformed == len(bad)


def test_long_run_has_a_bounded_number_of_slices(spark, tmp_path: Path):
    lines = [f"{START_MS + i * 10_000},1.0\n" for i in range(2_000)]
    (tmp_path / "run.txt").write_text("".join(lines))
    (analysis,) = analyse(spark, find_latency_files([tmp_path]))
    assert analysis.slice_s == 12
    assert len(analysis.slices) <= 1_800
    assert sum(piece.statistics.events for piece in analysis.slices) == 2_000


def test_file_of_garbage_and_cut_of_everything_are_named(spark, tmp_path: Path):
    (tmp_path / "good.txt").write_text(f"{START_MS},1.0\n")
    (tmp_path / "garbage.txt").write_text("hello\nworld\n")
    with pytest.raises(InputError, match=r"garbage\.txt has no line of the form"):
        analyse(spark, find_latency_files([tmp_path]))
    with pytest.raises(InputError, match=r"good\.txt has no event after --cut-warmup-s 3"):
        analyse(spark, find_latency_files([tmp_path / "good.txt"]), cut_warmup_s=3.0)
