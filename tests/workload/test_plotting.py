"""Both scripts as a user calls them; tests/experiments/test_demo.py runs them as processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import plot as plot_script
import workgen
from weir.errors import ConfigError, InputError
from workload.plotting import plot


@pytest.mark.spark
def test_script_writes_refuses_and_is_quiet(call_script, tmp_path: Path):
    out = tmp_path / "my events"
    asked = ("--keys", 10, "--out", out, "--master", "local[1]")
    code, told, said = call_script(workgen.app, "--events", 1_000, *asked)
    assert code == 0, said
    assert re.fullmatch(r"1,000 rows, [\d,]+ bytes in 4 parts in [\d.]+ s: .*my events\n", told)
    assert all(line.startswith(("Starting Spark:", "Generating:")) for line in said.splitlines())
    written = b"".join(path.read_bytes() for path in out.glob("part-*"))
    assert written.count(b"\n") == 1_000
    code, _, said = call_script(workgen.app, "--events", 10, *asked)
    assert code == 1
    assert said.count("\n") == 1
    assert "add --overwrite" in said
    assert b"".join(path.read_bytes() for path in out.glob("part-*")) == written


@pytest.mark.spark
def test_script_prints_draws_and_refuses_a_second_time(call_script, tmp_path: Path):
    latencies, out = tmp_path / "run.txt", tmp_path / "plots"
    lines = [f"{1_700_000_000_000 + i * 10},{i}.250" for i in range(1, 1_001)]
    latencies.write_text("\n".join([*lines, "garbage"]))
    asked = (latencies, "--out", out, "--master", "local[1]")
    code, told, said = call_script(plot_script.app, *asked)
    assert code == 0, said
    assert f"warning: {latencies}: 1 malformed lines left out" in said
    assert all(
        line.startswith(("Starting Spark:", "Analysing 1 file:", "Drawing:", "warning:"))
        for line in said.splitlines()
    )
    for cell in ("1,000", "500.2", "950.2", "990.2"):
        assert cell in told
    (file,) = json.loads((out / "summary.json").read_text())["files"]
    assert (file["p50_ms"], file["p95_ms"], file["p99_ms"], file["max_ms"]) == (
        500.25,
        950.25,
        990.25,
        1000.25,
    )
    written = sorted(entry.name for entry in out.iterdir())
    assert written == [
        "all_runs.png",
        "latency_over_time.png",
        "percentiles.png",
        "summary.json",
        "throughput.png",
    ]
    code, _, said = call_script(plot_script.app, *asked)
    assert code == 1
    assert said.count("\n") == 1
    assert "add --overwrite" in said


def test_failure_of_the_system_is_one_line(run_script, tmp_path: Path):
    # A file where a directory must be: refused for root too, whom permissions do not stop.
    (tmp_path / "file").write_text("")
    done = run_script("workgen.py", "--events", 10, "--out", tmp_path / "file" / "events")
    assert done.returncode == 1
    assert done.stderr == f"workgen.py: error: {tmp_path / 'file'}: File exists\n"


def test_bad_arguments_are_refused_before_spark_starts(tmp_path: Path):
    (tmp_path / "run.txt").write_text("1700000000000,1.0\n")
    with pytest.raises(ConfigError, match="--cut-warmup-s"):
        plot([tmp_path], tmp_path / "out", cut_warmup_s=-1)
    with pytest.raises(InputError, match="is a file"):
        plot([tmp_path], tmp_path / "run.txt")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "percentiles.png").write_text("mine")
    with pytest.raises(InputError, match=r"percentiles\.png already"):
        plot([tmp_path], tmp_path / "out")
