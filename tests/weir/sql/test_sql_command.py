"""``weir plan`` and ``weir run`` of a file of SQL: real processes."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weir.console.command_line import app

pytestmark = pytest.mark.scenario

#: Rows of which more than two channels have some.
_ENOUGH = 1_000

_TEXT = """
CREATE SOURCE t (id BIGINT NOT NULL, k VARCHAR) WITH (connector = 'json', path = 'in.jsonl');
CREATE VIEW counts AS SELECT k, COUNT(*) AS n FROM t GROUP BY k;
CREATE SINK out WITH (connector = 'json', path = 'out') AS SELECT k, n FROM counts WHERE n > 0;
"""


def _weir(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weir", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """Calls a command that starts no process; in this one: returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            app([*arguments], prog_name="weir")
        return ended.value.code, *capfd.readouterr()

    return call


def _events_out(address: str) -> int:
    """Rows that a job has written so far."""
    with urllib.request.urlopen(f"http://{address}/status", timeout=30) as answer:
        written: int = json.load(answer)["totals"]["events_out"]
        return written


def _wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """What a condition returns as soon as that is true."""
    ends_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < ends_s, "it did not come true"
        time.sleep(0.2)
    return found


def test_a_file_is_planned_and_run(tmp_path: Path, called: Callable[..., Any]):
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"id": n, "k": "ab"[n % 2]}) + "\n" for n in range(9))
    )
    (tmp_path / "counts.sql").write_text(_TEXT)
    code, planned, error = called("plan", "counts.sql")
    assert code == 0, error
    assert "counts.group" in planned
    ran = _weir(tmp_path, "run", "counts.sql", "--param", "parallelism=2", "--no-follow", "--http-port", "0")
    assert ran.returncode == 0, ran.stderr
    lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    net = dict.fromkeys(("a", "b"), 0)
    for row in rows:
        net[row["k"]] += row["n"] if row["_change"] in ("insert", "update_after") else -row["n"]
    assert net == {"a": 5, "b": 4}


def test_a_mistake_is_one_line(tmp_path: Path, called: Callable[..., Any]):
    (tmp_path / "counts.sql").write_text(_TEXT.replace("SELECT k, n", "SELECT k, m"))
    code, _, error = called("run", "counts.sql")
    assert code == 2
    assert error.strip() == "weir run: error: counts.sql:4:70: there is no column 'm'; there are k, n"


def test_files_are_asked_without_a_prompt(tmp_path: Path, called: Callable[..., Any]):
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"id": n, "k": "ab"[n % 2]}) + "\n" for n in range(9))
    )
    query = "SELECT k, COUNT(*) AS n FROM 'in.jsonl' GROUP BY k ORDER BY k"
    told = _weir(tmp_path, "sql", "-c", query, "--format", "csv")
    assert (told.returncode, told.stdout) == (0, "k,n\na,5\nb,4\n"), told.stderr
    code, _, error = called("sql", "-c", query.replace("COUNT", "CONT"))
    assert code == 2
    assert error.startswith("weir sql: error: SQL:1:11: there is no function CONT")


def test_states_of_a_running_job_are_tables(tmp_path: Path):
    text = """
CREATE SOURCE t WITH (connector = 'nexmark', stream = 'bid', events = '100000000', rate = '2000');
CREATE VIEW counts AS SELECT channel, COUNT(*) AS n FROM t WHERE channel IS NOT NULL GROUP BY channel;
CREATE SINK out WITH (connector = 'blackhole') AS SELECT channel, n FROM counts;
"""
    (tmp_path / "counts.sql").write_text(text)
    command = [sys.executable, "-m", "weir", "run", "counts.sql", "--no-follow", "--http-port", "0"]
    log = tmp_path / "log"
    with log.open("w") as out, subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out) as job:
        try:
            found = _wait_for(lambda: re.search(r"page http://([^/]+)/", log.read_text()))
            address = found[1]
            query = "SELECT COUNT(*) AS keys FROM 'state/counts.group/totals'"

            # A look at the status costs less than a question from a process of its own.
            _wait_for(lambda: _events_out(address) > _ENOUGH)

            def keys() -> bool:
                told = _weir(tmp_path, "sql", "-c", query, "--job", address, "--format", "json")
                return told.returncode == 0 and json.loads(told.stdout)["keys"] > 2

            _wait_for(keys)
        finally:
            job.terminate()
            job.wait(60)
