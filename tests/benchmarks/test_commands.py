"""The commands on real processes with few events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.scenario


def run_benchmark(tmp_path: Path, *arguments: object) -> dict[str, object]:
    """The JSON document of one benchmark."""
    path = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments), "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert str(arguments[0]) in document["command"]
    assert str(path) not in document["command"]
    assert document["repeats"]
    return document


def test_throughput(tmp_path):
    document = run_benchmark(tmp_path, "throughput", "--events", 20_000, "--keys", 100, "--repeat", 1)
    assert document["events"] == 20_000
    assert (document["lost"], document["duplicated"]) == (0, 0)
    for figure in ("events_per_second", "cpu_seconds_per_million_events", "ratio_to_reference"):
        assert document[figure] > 0
    assert document["peak_rss_bytes_max"] > 10 << 20
    assert document["reference"]["events"] == 20_000


def test_latency(tmp_path):
    arguments = ("--rate", 2000, "--duration-s", 1.5, "--keys", 10, "--repeat", 1)
    document = run_benchmark(tmp_path, "latency", *arguments)
    assert document["events"] == 3000
    assert 0 < document["p50_ms"] <= document["p99_ms"] <= document["max_ms"]
    sleeping = document["reference"]
    assert 0 < sleeping["p50_ms"] <= sleeping["p99_ms"] <= sleeping["max_ms"]


def test_an_idle_job(tmp_path):
    arguments = ("--rate", 0, "--duration-s", 0.5, "--keys", 10, "--repeat", 1)
    document = run_benchmark(tmp_path, "latency", *arguments)
    assert 0 <= document["cores"] < 2
    assert set(document["cores_of"]) == {"control_plane", "task_manager_1", "task_manager_2"}


def test_transport(tmp_path):
    document = run_benchmark(tmp_path, "transport", "--events", 3000, "--repeat", 1)
    assert document["batch_of_1000"]["batches"] == 3
    assert document["batch_of_1"]["rows_per_second"] > 0
    assert document["round_trip"]["p50_ms"] > 0


def test_a_wrong_count_ends_with_exit_code_1(tmp_path):
    code = """
import sys
from benchmarks import throughput, stored_counts
from benchmarks.__main__ import app
read = throughput.stored_counts
throughput.stored_counts = lambda directory: read(directory)[1:]
sys.argv[1:] = ["throughput", "--events", "2000", "--keys", "10", "--repeat", "1"]
app()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False)
    assert done.returncode == 1
    assert "benchmarks: error: final counts:" in done.stderr
    assert "events lost, 0 duplicated" in done.stderr
