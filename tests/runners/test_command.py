"""``weir run --runner spark`` and ``weir plan --runner spark`` as a user calls them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB = """
import polars as pl
import weir


class Counter(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        if row["v"] == 13:
            raise ValueError("thirteen")
        yield {"k": key[0], "n": self.n.value}


def build(input: str, output: str, rate: float | None = None, follow: bool = False) -> weir.Dataflow:
    flow = weir.Dataflow("shop")
    lines = weir.JsonLines(input, schema={"k": str, "at": int, "v": int}, rate=rate, follow=follow)
    rows = flow.source("rows", lines, event_time="at", watermark=weir.bounded_out_of_orderness("0s"))
    if follow:
        rows.sink("out", weir.Print())
    else:
        rows.key_by("k").process("each", Counter, {"k": str, "n": int}).sink("out", weir.Print())
    totals = rows.key_by("k").window(weir.tumbling("5s")).aggregate("totals", total=weir.sum("v"))
    totals.sink("files", weir.JsonLinesSink(output))
    return flow
"""


@pytest.fixture
def weir_started(tmp_path):
    (tmp_path / "shop.py").write_text(JOB)
    rows = [{"k": "ab"[v % 2], "at": v * 1_000, "v": v} for v in range(14)]
    lines = [json.dumps(row) for row in rows] + ['{"k": 1']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")

    def start(command, *arguments):
        given = [
            command,
            "shop.py",
            "-p",
            "input=rows*.jsonl",
            "-p",
            "output=out",
            "--runner",
            "spark",
            *arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-m", "weir", *given],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    return start


@pytest.fixture
def weir_command(weir_started):
    def run(*arguments):
        with weir_started(*arguments) as process:
            out, err = process.communicate(timeout=250)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.mark.scenario
def test_a_plan_says_how_steps_run_and_what_is_refused(weir_command):
    done = weir_command("plan")
    assert done.returncode == 0, done.stderr
    assert "each    keyed_process      Weir in Spark's tasks" in done.stdout
    refused = weir_command("plan", "-p", "rate=5")
    assert refused.returncode == 1
    assert "refused: Spark does not pace rows; leave out rate and interval_ms" in refused.stdout
    ran = weir_command("run", "-p", "rate=5")
    assert ran.returncode == 2
    assert ran.stderr.startswith(
        "weir run: error: step 'rows' does not run on Spark: Spark does not pace rows"
    )
    assert "\n" not in ran.stderr.strip()


@pytest.mark.spark
@pytest.mark.scenario
def test_a_job_runs_and_a_step_that_raises_is_one_line(weir_command, tmp_path):
    arguments = ("--master", "local[2]", "--spark-conf", "spark.sql.shuffle.partitions=2")
    failed = weir_command("run", *arguments)
    assert failed.returncode != 0
    assert "each" in failed.stderr
    assert "thirteen" in failed.stderr
    assert "Traceback" not in failed.stderr

    rows = (tmp_path / "rows.jsonl").read_text().replace('"v": 13', '"v": 12')
    (tmp_path / "rows.jsonl").write_text(rows)
    done = weir_command("run", *arguments)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((row["k"], row["n"]) for row in printed) == [(k, n) for k in "ab" for n in range(1, 8)]
    written = [
        json.loads(line)
        for path in (tmp_path / "out").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert sum(row["total"] for row in written) == sum(range(13)) + 12
    assert 'put 1 row aside, such as: a record does not fit the schema: {"k": 1' in done.stderr


@pytest.mark.spark
@pytest.mark.scenario
def test_a_stream_follows_its_sources_until_it_is_stopped(weir_started, tmp_path):
    arguments = ("--streaming", "-p", "follow=true", "--master", "local[2]")
    with weir_started("run", *arguments, "--spark-conf", "spark.sql.shuffle.partitions=2") as process:
        try:
            printed = [json.loads(process.stdout.readline())["v"] for _ in range(14)]
            (tmp_path / "rows_2.jsonl").write_text('{"k": "a", "at": 99000, "v": 14}\n')
            printed.append(json.loads(process.stdout.readline())["v"])
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=100)
        finally:
            process.kill()
    assert sorted(printed) == [*range(15)]
    assert 'put 1 row aside, such as: a record does not fit the schema: {"k": 1' in said
    assert process.returncode == 3
    assert rest.splitlines()[-1] == "weir run: job shop stopped on Spark (streaming)"
    assert "Traceback" not in rest
    assert (tmp_path / ".weir" / "shop" / "spark" / "files" / "commits" / "0").exists()
