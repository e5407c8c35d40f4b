"""What goes wrong before the control plane serves: one line on standard error and an exit code."""

import os
import re
import signal
import socket
import sys

import pytest

from experiments.cluster import Cluster
from experiments.ports import free_port
from weir.process import bytecode

# Control planes of one directory have one record.
pytestmark = pytest.mark.scenario

JOB = ["--job", "jobs.throughput"]
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d control_plane INFO ")


@pytest.fixture
def start(forks, tmp_path):
    """Runs a control plane with arguments; returns its exit code and all that it has written."""

    def run(*arguments):
        ports = ["--port", str(free_port()), "--http-port", str(free_port())]
        given = [] if "--port" in arguments or "--http-port" in arguments else ports
        command = [sys.executable, "-m", "control_plane", *given, *arguments]
        with (tmp_path / "output").open("w+b") as output:
            process = forks.popen(command, output, {**os.environ, **bytecode.variables()})
            return process.wait(200), (tmp_path / "output").read_text()

    return run


def the_error(output):
    """The one line that is no log line."""
    lines = [line for line in output.splitlines() if not LOG_LINE.match(line)]
    assert len(lines) == 1, output
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
def test_wrong_arguments(start, arguments, code, words):
    ended, output = start(*arguments)
    assert ended == code
    error = the_error(output)
    assert not [word for word in words if word not in error], error


@pytest.mark.parametrize("flag", ["--port", "--http-port"])
def test_busy_port(start, flag):
    other = "--http-port" if flag == "--port" else "--port"
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, output = start(*JOB, flag, str(port), other, str(free_port()))
    assert code == 1
    error = the_error(output)
    assert f"127.0.0.1:{port}" in error
    assert flag in error


def test_show_parameters(start):
    code, output = start(*JOB, "--show-parameters")
    assert code == 0
    assert "input: str (config.json: fileName)" in output.splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(tmp_path, forks, number):
    with Cluster(tmp_path, popen=forks.popen) as cluster:
        process = cluster.start_control_plane("jobs.throughput", {"input": "x"}, exit_when_finished=False)
        cluster.wait_for(lambda status: True, "the first status")
        process.popen.send_signal(number)
        assert process.wait() == 3, "the job was cancelled"
        assert "Traceback" not in process.log_tail(100)
