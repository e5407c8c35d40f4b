"""``weir plan --from-savepoint`` of a checkpoint that real processes made: they keep no column that nobody reads."""

import os
import subprocess
import sys

import pytest

from tests.scenarios.run_command import ROOT, Command, wait_for

pytestmark = pytest.mark.scenario

JOB = """
import weir


def rows(position):
    for number in range(position or 0, 50):
        yield [{"id": number, "server": f"server-{number % 5}", "note": "long"}], number + 1
    while True:
        yield None


def build() -> weir.Dataflow:
    flow = weir.Dataflow("latest")
    stream = flow.source("rows", weir.UserSource(rows, schema={"id": int, "server": str, "note": str}))
    best = stream.key_by("server").top("best", by="id", rows=2)
    best.select("few", "server", "_change").sink("out", weir.JsonLinesSink("delivered"))
    return flow
"""


def test_an_unchanged_job_would_start(tmp_path):
    (tmp_path / "latest.py").write_text(JOB)
    command = Command(tmp_path, "latest.py", "--set", "controlPlane.checkpoint_interval_ms=100")
    try:
        wait_for(lambda: list(tmp_path.glob("delivered/part-*")), "a checkpoint")
    finally:
        command.close()
    [checkpoints] = (tmp_path / ".weir/latest/checkpoints").iterdir()
    plan = [sys.executable, "-m", "weir", "plan", "latest.py", "--from-savepoint", str(checkpoints)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(plan, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "best  kept" in told.stdout
    assert told.returncode == 0, told.stdout + told.stderr
