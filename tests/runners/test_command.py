"""``weir run --runner spark`` and ``weir plan --runner spark`` as a user calls them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weir.console.command_line import app

ROOT = Path(__file__).parents[2]
JOB = "tests.runners.shop"


def write_rows(directory, last=13):
    """14 rows, and a line that is none."""
    rows = [{"k": "ab"[v % 2], "at": v * 1_000, "v": v} for v in range(13)]
    rows.append({"k": "b", "at": 13_000, "v": last})
    lines = [*map(json.dumps, rows), '{"k": 1']
    (directory / "rows.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def weir_command(tmp_path, monkeypatch, capsys):
    """Calls the command in this process, where a JVM runs already; returns exit code, output and errors."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.syspath_prepend(str(ROOT))

    def call(command, *arguments):
        given = [command, JOB, "-p", f"input={tmp_path}/rows*.jsonl", "-p", f"output={tmp_path}/out"]
        with pytest.raises(SystemExit) as ended:
            app([*given, "--runner", "spark", *arguments], prog_name="weir")
        return ended.value.code, *capsys.readouterr()

    return call


def test_a_plan_says_how_steps_run_and_what_is_refused(weir_command):
    code, out, err = weir_command("plan")
    assert code == 0, err
    assert "each    keyed_process      Weir in Spark's tasks" in out
    code, out, _ = weir_command("plan", "-p", "rate=5")
    assert code == 1
    assert "refused: Spark does not pace rows; leave out rate and interval_ms" in out
    code, _, err = weir_command("run", "-p", "rate=5")
    assert code == 2
    assert err.startswith("weir run: error: step 'rows' does not run on Spark: Spark does not pace rows")
    assert "\n" not in err.strip()


@pytest.mark.spark
@pytest.mark.usefixtures("no_spark")
def test_a_job_runs_and_a_step_that_raises_is_one_line(weir_command, tmp_path):
    arguments = ("--master", "local[1]", "--spark-conf", "spark.sql.shuffle.partitions=1")
    write_rows(tmp_path)
    code, _, err = weir_command("run", *arguments)
    assert code == 1, err
    assert "each" in err
    assert "thirteen" in err
    assert "Traceback" not in err

    write_rows(tmp_path, last=12)
    code, out, err = weir_command("run", *arguments)
    assert code == 0, err
    printed = [json.loads(line) for line in out.splitlines()]
    assert sorted((row["k"], row["n"]) for row in printed) == [(k, n) for k in "ab" for n in range(1, 8)]
    written = [
        json.loads(line)
        for path in (tmp_path / "out").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert sum(row["total"] for row in written) == sum(range(13)) + 12
    assert 'put 1 row aside, such as: a record does not fit the schema: {"k": 1' in err
    assert err.endswith("weir run: job shop finished on Spark (batch)\n")


@pytest.mark.spark
@pytest.mark.scenario
def test_a_stream_of_a_file_follows_its_sources_until_it_is_stopped(tmp_path):
    write_rows(tmp_path)
    shutil.copy(Path(__file__).with_name("shop.py"), tmp_path)
    given = ["run", "shop.py", "-p", "input=rows*.jsonl", "-p", "output=out", "-p", "follow=true"]
    spark = ["--runner", "spark", "--streaming", "--master", "local[2]"]
    with subprocess.Popen(
        [sys.executable, "-m", "weir", *given, *spark, "--spark-conf", "spark.sql.shuffle.partitions=1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            printed = [json.loads(process.stdout.readline())["v"] for _ in range(14)]
            (tmp_path / "rows_2.jsonl").write_text('{"k": "a", "at": 99000, "v": 14}\n')
            printed.append(json.loads(process.stdout.readline())["v"])
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=100)
        finally:
            process.kill()
    assert sorted(printed) == [2 * v for v in range(15)]
    assert 'put 1 row aside, such as: a record does not fit the schema: {"k": 1' in said
    assert process.returncode == 3
    assert rest.splitlines()[-1] == "weir run: job shop stopped on Spark (streaming)"
    assert "Traceback" not in rest
    assert (tmp_path / ".weir" / "shop" / "spark" / "files" / "commits" / "0").exists()
