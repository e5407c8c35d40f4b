"""The commands on real processes with few events."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import throughput
from benchmarks.__main__ import app

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.scenario


@pytest.fixture
def call_benchmark(monkeypatch, forked, capsys):
    """Calls a command in this process: returns its exit code and errors. Those of the engine are forked."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app()
        return ended.value.code, capsys.readouterr().err

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def run_benchmark(call_benchmark, tmp_path):
    """Returns the JSON document of one benchmark."""
    path = tmp_path / "result.json"

    def run(*arguments):
        code, said = call_benchmark(*arguments, "--json", path)
        assert code == 0, said
        return document_of(path, arguments[0])

    return run


def document_of(path, name):
    document = json.loads(path.read_text())
    assert name in document["command"]
    assert str(path) not in document["command"]
    assert document["repeats"]
    return document


def test_throughput(run_benchmark):
    document = run_benchmark("throughput", "--events", 20_000, "--keys", 100, "--repeat", 1)
    assert document["events"] == 20_000
    assert (document["lost"], document["duplicated"]) == (0, 0)
    for figure in ("events_per_second", "cpu_seconds_per_million_events", "ratio_to_reference"):
        assert document[figure] > 0
    assert document["peak_rss_bytes_max"] > 10 << 20
    assert document["reference"]["events"] == 20_000


def test_latency(run_benchmark):
    arguments = ("--rate", 2000, "--duration-s", 1.5, "--keys", 10, "--repeat", 1)
    document = run_benchmark("latency", *arguments)
    assert document["events"] == 3000
    assert 0 < document["p50_ms"] <= document["p99_ms"] <= document["max_ms"]
    sleeping = document["reference"]
    assert 0 < sleeping["p50_ms"] <= sleeping["p99_ms"] <= sleeping["max_ms"]


def test_an_idle_job(run_benchmark):
    arguments = ("--rate", 0, "--duration-s", 0.5, "--keys", 10, "--repeat", 1)
    document = run_benchmark("latency", *arguments)
    assert 0 <= document["cores"] < 2
    assert set(document["cores_of"]) == {"control_plane", "task_manager_1", "task_manager_2"}


def test_transport_by_a_process_of_its_own(tmp_path):
    path = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", "transport", "--events", "3000", "--repeat", "1"]
    command += ["--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    document = document_of(path, "transport")
    assert document["batch_of_1000"]["batches"] == 3
    assert document["batch_of_1"]["rows_per_second"] > 0
    assert document["round_trip"]["p50_ms"] > 0


def test_a_wrong_count_ends_with_exit_code_1(call_benchmark, monkeypatch):
    read = throughput.stored_counts
    monkeypatch.setattr(throughput, "stored_counts", lambda directory: read(directory)[1:])
    code, said = call_benchmark("throughput", "--events", 2_000, "--keys", 10, "--repeat", 1)
    assert code == 1
    assert "benchmarks: error: final counts:" in said
    assert "events lost, 0 duplicated" in said
