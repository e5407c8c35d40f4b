"""The commands ``weir log``, as processes."""

import json
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

import weir.log
from experiments.ports import free_port, is_free
from weir.console.log_commands import log_app
from weir.console.log_moves import partition_of
from weir.console.log_processes import LogStart, run_log
from weir.errors import AddressInUseError, ConfigError
from weir.process.owned_directory import owned_directory

pytestmark = pytest.mark.scenario


def weir_log(*arguments):
    command = [sys.executable, "-m", "weir", "log", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def called(*arguments):
    """The same without a process of its own, which takes a second to begin."""
    return CliRunner().invoke(log_app, arguments)


def check_commands(brokers, http_port):
    """Once: they say the same when the log has been started again."""
    status = json.loads(called("status", "--brokers", brokers, "--json").stdout)
    assert status["partitions"][0]["leader_id"] in (1, 2, 3)
    assert "wal/0" in called("status", "--brokers", brokers).stdout
    over_http = httpx.get(f"http://127.0.0.1:{http_port}/log")
    assert over_http.json().keys() == status.keys()
    assert over_http.json()["partitions"][0]["replica_ids"] == status["partitions"][0]["replica_ids"]
    other = called("create", "wal", "--brokers", brokers, "--partitions", "2")
    assert (other.exit_code, "is there with other settings" in other.stderr) == (2, True)


def test_a_log_is_started_used_and_ended_and_goes_on_with_what_it_had(tmp_path):
    # The ports of the brokers are those behind it.
    port = next(port for port in iter(free_port, 0) if all(map(is_free, range(port - 1, port + 3))))
    brokers = f"127.0.0.1:{port}"
    http_port = free_port()
    command = [sys.executable, "-m", "weir", "log", "start", "--dir", tmp_path, "--port", str(port)]
    command += ["--http-port", str(http_port)]
    for round_number in range(2):
        with open(tmp_path / "output.txt", "ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            if not round_number:
                created = None
                while created is None or created.returncode:
                    assert process.poll() is None, (tmp_path / "output.txt").read_text()
                    created = weir_log("create", "wal", "--brokers", brokers, "--retention", "1d")
                assert created.stdout == "wal: 1 partitions, 3 replicas each, durability os\n"
            with weir.log.Producer(brokers, topic="wal", delivery_timeout_s=120) as producer:
                producer.send(round_number, b"data").result()
            records = list(weir.log.Reader(brokers, topic="wal"))
            assert [record.id for record in records] == list(range(round_number + 1))
            if not round_number:
                check_commands(brokers, http_port)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_log_that_is_not_there_is_one_clear_line():
    port = free_port()
    result = weir_log("status", "--brokers", f"127.0.0.1:{port}")
    assert result.returncode == 1
    assert result.stderr == (
        f"weir log status: error: the log broker at 127.0.0.1:{port} does not answer; start it: weir log start\n"
    )


def test_what_keeps_a_log_from_starting_is_told_before_anything_runs(tmp_path):
    # The controller's port is the one before it, which is looked at first.
    port = next(port for port in iter(free_port, 0) if is_free(port - 1))
    http_port = free_port()
    with socket.socket() as taken, socket.socket() as page:
        for each, address in ((taken, port), (page, http_port)):
            each.bind(("127.0.0.1", address))
            each.listen()
        with pytest.raises(AddressInUseError, match=rf"127.0.0.1:{port}: .*; choose another with --port"):
            run_log(LogStart(tmp_path, 1, port, 0, 1000))
        with pytest.raises(AddressInUseError, match=rf"127.0.0.1:{http_port}: .* --http-port"):
            run_log(LogStart(tmp_path, 1, free_port(), http_port, 1000))
    with pytest.raises(ConfigError, match="64 brokers need ports up to 65536, and 65535 is the last"):
        run_log(LogStart(tmp_path, 64, 65500, 0, 1000))
    with (
        owned_directory(tmp_path, "log"),
        pytest.raises(AddressInUseError, match="is in use by another log; stop that one"),
    ):
        run_log(LogStart(tmp_path, 1, free_port(), 0, 1000))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--dir .*/file/log: .*; name another directory"):
        run_log(LogStart(tmp_path / "file" / "log", 1, free_port(), 0, 1000))


@pytest.mark.parametrize("text", ["wal", "wal/", "/0", "wal/x", "wal/-1"])
def test_what_is_no_partition_is_told(text):
    assert partition_of("a/b/12") == ("a/b", 12)
    with pytest.raises(ConfigError, match="is no partition: give TOPIC/NUMBER"):
        partition_of(text)
