"""The wheel in an empty environment, outside the repository, beside packages of the user's that are called as ours."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

import weir

# The wheel is built and installed once.
pytestmark = pytest.mark.scenario

ROOT = Path(__file__).parents[2]
ROWS = 100
SERVERS = 7

JOB = """
import time

import benchmarks.helpers
import jobs
import proto
import weir
import workload


def build(input: str = "rows.jsonl", rate: float | None = None, output: str = "") -> weir.Dataflow:
    flow = weir.Dataflow("counts")
    rows = flow.source("rows", weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate))
    sink = weir.JsonLinesSink(output) if output else weir.Print()
    rows.key_by("server").count("count").sink("out", sink)
    return flow
"""


class Project:
    """A user's own folder with a job, and the environment that the wheel is installed in."""

    def __init__(self, environment, folder):
        self.command = environment / "bin" / "weir"
        self.folder = folder
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
        }
        # In place of what the tests of this repository set for all. Nothing is compiled yet.
        self.variables = variables | {"XDG_CACHE_HOME": str(environment / "cache")}

    def start(self, *arguments):
        return subprocess.Popen(
            [self.command, *arguments],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, timeout_s=600):
        """Run to the end; returns exit code, lines of standard output, and of standard error."""
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return process.returncode, out.splitlines(), err.splitlines()

    def processes(self):
        """All processes that run in the folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if Path(process.cwd()) == self.folder:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the wheel and what it depends on, nothing else."""
    directory = tmp_path_factory.mktemp("package")
    source = directory / "source"
    for name in (
        "weir",
        "control_plane",
        "task_manager",
        "log_broker",
        "proto",
        "jobs",
        "benchmarks",
        "workload",
    ):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    uv = shutil.which("uv") or ROOT / ".venv/bin/uv"
    built = directory / "built"
    run = {"check": True, "cwd": directory, "timeout": 300, "stdin": subprocess.DEVNULL}
    subprocess.run([uv, "build", "-q", "--wheel", "--out-dir", built, source], **run)
    (wheel,) = built.glob("*.whl")
    subprocess.run([uv, "venv", "-q", directory / "environment"], **run)
    python = directory / "environment/bin/python"
    constraints = ["--constraint", ROOT / "requirements.lock"]
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *constraints, wheel], **run)
    return directory / "environment"


@pytest.fixture(scope="module")
def project(environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for name in ("proto", "jobs", "benchmarks", "workload"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
    (folder / "benchmarks/helpers.py").write_text("MINE = True\n")
    (folder / "counts.py").write_text(JOB)
    rows = [json.dumps({"id": number, "server": f"server-{number % SERVERS}"}) for number in range(ROWS)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return Project(environment, folder)


def wait_for(condition, timeout_s=120):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def check_counts(rows):
    """Each server was counted from 1 on, once per row."""
    seen = Counter(row["server"] for row in rows)
    assert seen == Counter(f"server-{number % SERVERS}" for number in range(ROWS))
    assert all(
        {row["count"] for row in rows if row["server"] == server} == set(range(1, n + 1))
        for server, n in seen.items()
    )


def test_the_wheel_has_our_packages_only(environment):
    (packages,) = environment.glob("lib/python3*/site-packages")
    names = {path.name for path in packages.iterdir()}
    assert {"weir", "control_plane", "task_manager", "log_broker"} <= names
    assert not names & {"proto", "jobs", "benchmarks", "workload", "experiments", "tests"}
    for path in (ROOT / "weir").rglob("*.py"):
        assert (packages / path.relative_to(ROOT)).exists()
    assert (packages / "weir/py.typed").exists()


def test_a_job_of_the_users_runs_and_leaves_nothing_but_its_directory(project):
    before = set(os.listdir(project.folder))
    code, out, err = project.run("run", "counts.py", "--task-managers", "2")
    assert code == 0, err
    check_counts([json.loads(line) for line in out])
    assert err[-1].startswith("weir run: job counts finished: 100 events in, 100 out")
    assert not [line for line in err if "WARNING" in line], err
    # The kernels were compiled with a word.
    assert [line for line in err if line.startswith("compiling kernels, once: ")]
    assert set(os.listdir(project.folder)) - before == {".weir", "__pycache__"}
    assert project.processes() == []
    # Again: nothing is in the way, and nothing is compiled.
    code, out, err = project.run("run", "counts.py")
    assert (code, len(out)) == (0, ROWS), err
    assert not err[0].startswith("compiling")


def test_an_example_needs_nothing(project):
    code, out, err = project.run("run", "weir.examples.word_count", "--no-follow")
    assert code == 0, err
    last = {row["word"]: row["count"] for row in map(json.loads, out)}
    assert (last["hare"], last["tortoise"]) == (6, 7)


def test_version_and_plan(project):
    assert project.run("version") == (0, [weir.__version__], [])
    code, out, err = project.run("plan", "counts.py")
    assert (code, err) == (0, [])
    assert any("count (keyed_aggregate" in line for line in out)
    code, out, err = project.run("plan", "counts.py", "--json")
    plan = json.loads("\n".join(out))
    assert [stage["name"] for stage in plan["stages"]] == ["rows", "count -> out"]
    assert project.run("task-manager", "--help")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["counts.py", "--param", "input=nowhere"], 1, "nowhere"),
        (["countz.py"], 2, "countz.py"),
        (["counts.py", "--param", "inptu=rows.jsonl"], 2, "inptu"),
        (["counts.py", "--set", "taskManager.bath_size=1"], 2, "bath_size"),
    ],
)
def test_what_is_wrong_is_the_last_line(project, arguments, code, reason):
    fails_at_once = ["--set", "controlPlane.restart_attempts=0"] if code == 1 else []
    ended, out, err = project.run("run", *arguments, *fails_at_once)
    assert (ended, out) == (code, [])
    assert reason in err[-1]
    assert "error: " in err[-1]
    assert len(err) == 1 or code == 1
    assert sum(reason in line for line in err) == 1, err
    assert project.processes() == []


def test_a_run_that_is_killed_leaves_no_process_and_goes_on(project):
    output = project.folder / "delivered"
    command = ["run", "counts.py", "--param", "rate=10", "--param", f"output={output}"]
    first = project.start(*command)
    wait_for(lambda: list(output.glob("*.jsonl*")) and first.poll() is None)
    first.kill()
    first.communicate()
    wait_for(lambda: not project.processes())
    code, _, err = project.run(*command)
    assert code == 0, err
    assert any("starts again from its latest checkpoint" in line for line in err), err
    check_counts(
        [
            json.loads(line)
            for path in sorted(output.glob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_job_and_ends_all(project, number):
    process = project.start("run", "counts.py", "--param", "rate=1")
    assert process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    assert err.splitlines()[-1].startswith("weir run: job counts cancelled")
    assert project.processes() == []
