"""``weir plan`` and ``weir run`` of a file of SQL: real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.scenario

_TEXT = """
CREATE SOURCE t (id BIGINT NOT NULL, k VARCHAR) WITH (connector = 'json', path = 'in.jsonl');
CREATE VIEW counts AS SELECT k, COUNT(*) AS n FROM t GROUP BY k;
CREATE SINK out WITH (connector = 'json', path = 'out') AS SELECT k, n FROM counts WHERE n > 0;
"""


def _weir(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weir", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def test_a_file_is_planned_and_run(tmp_path: Path):
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"id": n, "k": "ab"[n % 2]}) + "\n" for n in range(9))
    )
    (tmp_path / "counts.sql").write_text(_TEXT)
    planned = _weir(tmp_path, "plan", "counts.sql")
    assert planned.returncode == 0, planned.stderr
    assert "counts.group" in planned.stdout
    ran = _weir(tmp_path, "run", "counts.sql", "--param", "parallelism=2", "--no-follow", "--http-port", "0")
    assert ran.returncode == 0, ran.stderr
    lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    net = dict.fromkeys(("a", "b"), 0)
    for row in rows:
        net[row["k"]] += row["n"] if row["_change"] in ("insert", "update_after") else -row["n"]
    assert net == {"a": 5, "b": 4}


def test_a_mistake_is_one_line(tmp_path: Path):
    (tmp_path / "counts.sql").write_text(_TEXT.replace("SELECT k, n", "SELECT k, m"))
    for command in ("plan", "run"):
        told = _weir(tmp_path, command, "counts.sql")
        assert told.returncode == 2
        assert told.stderr.strip() == (
            f"weir {command}: error: counts.sql:4:70: there is no column 'm'; there are k, n"
        )
