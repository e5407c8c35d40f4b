"""Damaged files of savepoints and checkpoints, and rows that end the process: real processes say so, and end."""

import json
import urllib.request
from collections import Counter

import pytest

from tests.scenarios.conftest import FLOWS
from tests.scenarios.flows.flow_damaged import ROWS, build, row
from tests.scenarios.run_command import Command, wait_for
from weir import testing

pytestmark = pytest.mark.scenario

JOB = "flow_damaged"
#: Checkpoints are made only when they are asked for; deaths are soon noticed.
SETTINGS = {"controlPlane.checkpoint_interval_ms": 3_600_000, "controlPlane.lease_timeout_ms": 1_500}


def allow(folder, rows):
    (folder / "allowed").write_bytes(bytes(rows))


def flip(path):
    """A bit in the middle; other links to the file stay whole."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def tables(directory):
    return set(directory.rglob("*.sst"))


def delivered(folder, output="out"):
    parts = sorted((folder / output).glob("*.jsonl"))
    return sorted(
        (json.loads(line) for part in parts for line in part.read_text().splitlines()),
        key=lambda row: row["id"],
    )


def counted(first, last):
    """What rows of these numbers become."""
    counts, found = Counter(), []
    for number in range(last):
        counts[row(number)["server"]] += 1
        found.append(row(number) | {"n": counts[row(number)["server"]]})
    return found[first:]


@pytest.fixture
def run(tmp_path):
    commands = []

    def start(*arguments, **settings):
        settings = [f"{key}={value}" for key, value in (SETTINGS | settings).items()]
        options = [item for setting in settings for item in ("--set", setting)]
        options += ["--param", f"folder={tmp_path}", *arguments]
        commands.append(Command(tmp_path, FLOWS / f"{JOB}.py", *options))
        return commands[-1]

    yield start
    for command in commands:
        command.close()


def test_a_damaged_savepoint_is_refused_by_name_before_a_row_is_read(run, tmp_path):
    allow(tmp_path, ROWS)
    with testing.start(build(tmp_path), state="rocksdb") as job:
        job.push("events", [row(number) for number in range(100)])
        job.savepoint(tmp_path / "savepoint")
    [damaged] = tables(tmp_path / "savepoint")
    flip(damaged)
    refused = run("--from-savepoint", "savepoint")
    assert refused.wait() == 1, refused.lines
    last = refused.lines[-1]
    assert last.startswith("weir run: error: job flow_damaged failed: ")
    assert f"(file {damaged.relative_to(tmp_path / 'savepoint')} of the savepoint that " in last
    assert "its content is not what was written, so it is damaged" in last
    assert not (tmp_path / "asked").exists()
    assert delivered(tmp_path) == counted(0, 100), "what the savepoint delivered"
    log = (tmp_path / ".weir" / JOB / "logs" / "control_plane.log").read_text()
    assert "restart" not in log, "one attempt"


def test_a_job_goes_on_from_a_damaged_checkpoint_only_when_another_one_is_named(make_cluster, tmp_path):
    cluster = make_cluster(settings=SETTINGS | {"controlPlane.restart_attempts": 10}, task_managers=1)
    checkpoints = cluster.directory / "checkpoints"

    def checkpoint(number, rows):
        allow(tmp_path, rows)
        cluster.wait_for(lambda status: status["totals"]["events_out"] == rows, "the rows")
        assert cluster.http("POST", "/checkpoints")[0] == 202
        cluster.wait_for(lambda status: status["latest_checkpoint"] == number, "the checkpoint")
        return tables(checkpoints)

    cluster.start_control_plane(JOB, {"folder": tmp_path})
    cluster.start_task_manager("first")
    before = checkpoint(1, 100)
    [damaged] = checkpoint(2, 200) - before
    flip(damaged)
    cluster.processes["first"].popen.kill()
    cluster.start_task_manager("second")
    for _ in range(2):
        # The second time as a user would try it again.
        control_plane = cluster.processes["control_plane"]
        assert control_plane.wait() == 1
        error = [line for line in control_plane.log_path.read_text().splitlines() if " ERROR " in line][-1]
        [job] = checkpoints.iterdir()
        assert str(damaged.relative_to(job)) in error
        assert "--from-checkpoint FOLDER/manifests/NUMBER.json" in error
        cluster.start_control_plane(JOB, {"folder": tmp_path})
        cluster.start_task_manager("third")
    allow(tmp_path, ROWS)
    again = make_cluster(settings=SETTINGS, task_managers=1)
    named = job / "manifests" / "000000000001.json"
    again.start_control_plane(
        JOB, {"folder": tmp_path, "output": "again"}, arguments=["--from-checkpoint", str(named)]
    )
    again.start_task_manager("first")
    assert again.wait_ended() == {"control_plane": 0, "first": 0}
    assert delivered(tmp_path) == counted(0, 200)
    assert delivered(tmp_path, "again") == counted(100, ROWS)


def test_a_row_that_ends_the_process_again_and_again_fails_the_job(run, tmp_path):
    allow(tmp_path, 100)
    command = run("--param", "deadly=150", **{"controlPlane.restart_attempts": 1})
    wait_for(lambda: command.said("/status"), "the address")
    [url] = [line.split()[-1].removesuffix("/status") for line in command.lines if "/status" in line]

    def asked(path, method="GET"):
        request = urllib.request.Request(f"{url}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    wait_for(lambda: asked("status")["totals"]["events_out"] == 100, "the first rows")
    asked("checkpoints", "POST")
    wait_for(lambda: len(delivered(tmp_path)) == 100, "their delivery")
    allow(tmp_path, ROWS)
    assert command.wait() == 1, command.lines
    assert command.said("was ended by signal 6") >= 2, command.lines
    last = command.lines[-1]
    assert "given up after 2 deaths of task managers without a complete checkpoint in between" in last
    assert "in checkpoint 1 sources stood at events: " in last
    assert "100, 100" in last.partition("events: ")[2]
    assert delivered(tmp_path) == counted(0, 100)
