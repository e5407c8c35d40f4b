"""The demo as a user runs it: a process in an empty directory."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from experiments.demo_display import (
    Display,
    JobProgress,
    closing_table,
    last_line,
    phases_table,
    what_one_sees,
)
from experiments.demo_steps import EVENTS_DIRECTORY, count_in_batch
from workload.directory import MARKER_FORMAT, MARKER_NAME
from workload.parameters import WorkloadParameters

ROOT = Path(__file__).parents[2]
EVENTS, KEYS = 20_000, 500
SMALL = [f"--events={EVENTS}", f"--keys={KEYS}"]


def start(directory, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.demo", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


#: Spark alone has taken a minute to start beside the other tests; less than the limit of a test.
END_S_MAX = 540


def run(directory, *arguments, **environment):
    with start(directory, *arguments, **environment) as process:
        try:
            out, err = process.communicate(timeout=END_S_MAX)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=50)
            pytest.fail(f"the demo did not end within {END_S_MAX} s\n{out}{err}")
    return process.returncode, out, err


@pytest.fixture
def small_workload(tmp_path):
    """What workgen.py would make, but made at once, so that Spark need not start."""
    directory = tmp_path / EVENTS_DIRECTORY
    directory.mkdir(parents=True)
    parameters = WorkloadParameters(events=EVENTS, keys=KEYS, partitions=4)
    marker = {"format": MARKER_FORMAT, "parameters": parameters.as_json()}
    (directory / MARKER_NAME).write_text(json.dumps(marker))
    for part in range(4):
        ids = range(part, EVENTS, 4)
        lines = [f'{{"id": {n % 100 + 1}, "server_name": "server-{n % KEYS + 1}"}}\n' for n in ids]
        (directory / f"part-{part:05d}.jsonl").write_text("".join(lines))
    return tmp_path


@pytest.mark.scenario
@pytest.mark.spark
def test_the_demo_shows_all_numbers_and_leaves_a_latency_file_and_pictures(tmp_path):
    # So slow that rows are left when a busy machine has started another task manager.
    code, out, err = run(tmp_path, *SMALL, "--rate=400", "--seconds=30", "--count-load-ms=0.1")
    assert (code, err) == (0, "")
    expected = count_in_batch(tmp_path / EVENTS_DIRECTORY)
    assert expected["events_in"] == EVENTS
    assert 0 < expected["events_out"] < EVENTS
    assert expected["distinct_keys"] == KEYS
    rows = {
        match[1]: re.split(r" {2,}", match[2])
        for match in re.finditer(r"(?m)^([a-z][a-z0-9 ]*?)  +(.*)$", out)
    }
    assert rows["events in"][:2] == [f"{EVENTS:,}", "12,000"]
    assert rows["events out"][0] == f"{expected['events_out']:,}"
    assert rows["distinct keys"][0] == f"{KEYS:,}"
    assert rows["throughput"][0].endswith("/s")
    assert re.search(rf"(?m)^log to log +{EVENTS:,} events into the log, counted, and back", out)
    summary = json.loads((tmp_path / "plots/demo/summary.json").read_bytes())["files"][0]
    assert list(summary["phases"]) == ["before", "during", "after"]
    for name in ("p50", "p95", "p99", "max"):
        shown = [f"{phase[f'{name}_ms']:,.1f} ms" for phase in summary["phases"].values()]
        assert rows[f"latency {name}"][:3] == shown
    sidecar = json.loads((tmp_path / "zout/latest.json").read_bytes())
    assert (sidecar["rescale"]["from"], sidecar["rescale"]["to"]) == (1, 2)
    assert summary["scale_requested_ms"] == [sidecar["scale_requested_ms"]]
    assert sidecar["rescale"]["groups_owned"] == 64
    assert re.search(r"64 of 128 key groups have a new owner \d+ ms later", out)
    latency_file = tmp_path / rows["latency file"][0]
    assert latency_file == (tmp_path / "zout/latest.txt").resolve()
    assert len(latency_file.read_text().splitlines()) == summary["events"]
    assert (tmp_path / rows["plot"][0]).read_bytes().startswith(b"\x89PNG")
    assert {entry.name for entry in tmp_path.iterdir()} == {"data", "zout", "plots"}


@pytest.mark.scenario
def test_a_signal_ends_all_processes(small_workload):
    with start(small_workload, *SMALL, "--rate=200", "--seconds=90") as process:
        watchdog = threading.Timer(END_S_MAX, process.kill)
        watchdog.start()
        seen = ""
        for line in process.stdout:
            seen += line
            # Without a terminal, such a line comes while the paced run goes on.
            # On a slow machine the run before it has one, too, and more processes.
            if "counts equal" in seen and re.search(r"running: +[\d,]+ events in", line):
                break
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=50)
        watchdog.cancel()
    assert len(children) == 2, seen + err
    assert "Spark" not in seen.partition("2/4")[2], "the workload was not reused"
    assert "counts equal those of a Polars batch query" in seen
    assert process.returncode == 130
    assert err == ""
    assert rest.endswith("interrupted; all processes have ended\n")
    assert not [child for child in children if child.is_running()]


@pytest.mark.scenario
def test_a_failed_step_shows_the_end_of_its_log_and_the_path(small_workload):
    code, _, err = run(small_workload, *SMALL, WEIR_TASK_MANAGER_BATCH_SIZE="none")
    assert code != 0
    reason, path, *log = err.splitlines()
    assert reason.startswith("demo: error: the control plane ended")
    first = log[: log.index("--- data/demo/flat_out/task_manager_1.log")]
    log_path = re.fullmatch(r"--- (\S+\.log)", path)[1]
    assert (small_workload / log_path).read_text().splitlines() == first
    assert "WEIR_TASK_MANAGER_BATCH_SIZE" in first[-1]


def test_without_java_nothing_starts(tmp_path):
    code, out, err = run(tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"demo: error: Spark needs Java.*\n", err)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_no_demo_made_is_left_alone(small_workload):
    precious = small_workload / "data/demo/flat_out/precious.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    code, _, err = run(small_workload, *SMALL)
    assert code == 1
    assert re.fullmatch(r"demo: error: data/demo/flat_out was not made by a demo.*\n", err)
    assert precious.read_text() == "mine"


def test_the_batch_count_counts_what_the_job_keeps(small_workload):
    directory = small_workload / EVENTS_DIRECTORY
    rows = [json.loads(line) for part in directory.glob("part-*") for line in part.read_text().splitlines()]
    kept = [row for row in rows if row["id"] % 4]
    assert count_in_batch(directory) == {
        "events_in": len(rows),
        "events_out": len(kept),
        "distinct_keys": len({row["server_name"] for row in kept}),
    }


def test_the_last_line_on_progress_is_shown_without_its_clock(tmp_path):
    log = tmp_path / "workgen.log"
    shown = []
    for text in (
        "",
        "Starting",
        "Starting Spark: (2 s)\n",
        "Starting Spark: (2 s)\nGenerating: 1/4 tasks (9 s)\n9 rows\nGen",
    ):
        log.write_text(text)
        shown.append(last_line(log))
    assert shown == ["", "", "Starting Spark:", "Generating: 1/4 tasks"]


def test_a_running_job_is_shown_with_its_events_and_rate():
    shown = []
    progress = JobProgress(lambda text, done: shown.append((text, done)))
    status = {"state": "DEPLOYING", "state_meaning": "task managers create the subtasks", "waiting_for": ""}
    progress({**status, "totals": {"events_in": 0, "events_per_second": 0.0}})
    progress({**status, "state": "RUNNING", "totals": {"events_in": 1200, "events_per_second": 400.0}})
    (waiting, none), (running, done) = shown
    assert (waiting, none) == ("task managers create the subtasks", 0)
    assert done == 1200
    assert "1,200 events in" in running
    assert "400 events/s" in running


def test_commands_are_broken_between_arguments_only():
    console = Console(width=200, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    with console.file:
        Display(console, 1).command(
            "python -m control_plane", *(f"--param name{n}={n:020}" for n in range(5))
        )
        text = console.export_text()
    assert all(len(line) <= 100 for line in text.splitlines())
    words = text.replace("\\\n", " ").split()
    assert words[:4] == ["$", "python", "-m", "control_plane"]
    assert words[4:] == [word for n in range(5) for word in ("--param", f"name{n}={n:020}")]


def test_the_closing_table_fits_into_a_hundred_columns():
    totals = {"events_in": 10**9, "events_out": 10**9, "distinct_keys": 10**8, "events_per_second": 1e7}
    latency = {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "max_ms": 112_345.678}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(closing_table(totals, totals, 1e6))
        console.print(phases_table({"before": latency, "during": latency, "after": latency}))
    lines = capture.get().splitlines()
    assert len(lines) == 12
    assert lines[-1].count("112,345.7 ms") == 3


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "told"),
    [
        (20.0, 30.0, "all rows came in time"),
        (3_300.9, 12.0, "rows came up to 3.3 s late; with a second one half of them took at most 0.01 s"),
        (3_300.9, 5_458.6, "rows came late with a second subtask, too, half of them by 5.5 s"),
    ],
)
def test_one_sentence_says_what_one_sees(before_ms, after_ms, told):
    phases = {name: {"p50_ms": ms, "max_ms": ms} for name, ms in (("before", before_ms), ("after", after_ms))}
    assert told in what_one_sees(phases)
    assert what_one_sees({"after": phases["after"]}) == ""
