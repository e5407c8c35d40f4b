"""What goes wrong before the control plane serves: one line on standard error and an exit code."""

import re
import signal
import socket
import subprocess
import sys

import pytest

from experiments.cluster import Cluster
from experiments.ports import free_port

# Control planes of one directory have one record.
pytestmark = pytest.mark.scenario

JOB = ["--job", "jobs.throughput"]
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d control_plane INFO ")


def start(*arguments):
    ports = ["--port", str(free_port()), "--http-port", str(free_port())]
    given = [] if "--port" in arguments or "--http-port" in arguments else ports
    return subprocess.run(
        [sys.executable, "-m", "control_plane", *given, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )


def the_error(result):
    """The one line on standard error that is no log line."""
    lines = [line for line in result.stderr.splitlines() if not LOG_LINE.match(line)]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("control_plane: error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--job", "jobs.no_such"], 2, ["jobs.no_such", "there is no module"]),
        (["--job", "jobs/throughput.py"], 2, ["jobs/throughput.py", "jobs.server_count"]),
        ([*JOB, "--param", "paralelism=2"], 2, ["'paralelism'", "'parallelism'"]),
        ([*JOB, "--param", "parallelism=two"], 2, ["parallelism='two'", "int"]),
        ([*JOB, "--param", "events=5", "--param", "events=6"], 2, ["--param events", "'5'", "'6'"]),
        ([*JOB, "--param", "parallelism"], 2, ["--param parallelism", "NAME=VALUE"]),
        ([*JOB, "--set", "taskManager.batchsize=1"], 2, ["batchsize", "batch_size"]),
        ([*JOB, "--set", "controlPlane.max_parallelism=0"], 2, ["controlPlane.max_parallelism", "0"]),
        ([*JOB, "--config", "no_such.json"], 2, ["no_such.json"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_wrong_arguments(arguments, code, words):
    result = start(*arguments)
    assert result.returncode == code
    error = the_error(result)
    assert not [word for word in words if word not in error], error


@pytest.mark.parametrize("flag", ["--port", "--http-port"])
def test_busy_port(flag):
    other = "--http-port" if flag == "--port" else "--port"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = start(*JOB, flag, str(port), other, str(free_port()))
    assert result.returncode == 1
    error = the_error(result)
    assert f"127.0.0.1:{port}" in error
    assert flag in error


def test_show_parameters():
    result = start(*JOB, "--show-parameters")
    assert result.returncode == 0
    assert "input: str (config.json: fileName)" in result.stdout.splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(tmp_path, number):
    with Cluster(tmp_path) as cluster:
        process = cluster.start_control_plane("jobs.throughput", {"input": "x"}, exit_when_finished=False)
        cluster.wait_for(lambda status: True, "the first status")
        process.popen.send_signal(number)
        assert process.wait() == 3, "the job was cancelled"
        assert "Traceback" not in process.log_tail(100)
