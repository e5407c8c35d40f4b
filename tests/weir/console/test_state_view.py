"""``weir state`` on a savepoint."""

import json

import polars as pl
import pytest
from typer.testing import CliRunner

from weir import testing
from weir.console.command_line import app

JOB = """
import weir

def build():
    flow = weir.Dataflow("orders", max_parallelism=8)
    rows = flow.source("rows", weir.Parquet("unused", schema={"user": str, "amount": int}))
    rows.key_by("user").aggregate("totals", n=weir.count(), total=weir.sum("amount")).sink("out", weir.Blackhole())
    return flow
"""


@pytest.fixture
def say(tmp_path, monkeypatch):
    """The command, beside two savepoints of a job: exit code, what it prints, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "saved_job_of_this_test.py").write_text(JOB)
    namespace: dict = {}
    exec(compile(JOB, "job", "exec"), namespace)
    with testing.start(namespace["build"]()) as job:
        job.push("rows", [{"user": "ann", "amount": 3}, {"user": "bob", "amount": 4}])
        job.savepoint(tmp_path / "monday")
        job.push("rows", [{"user": "bob", "amount": 5}, {"user": "eve", "amount": 6}])
        job.savepoint(tmp_path / "tuesday")

    def call(*arguments: str):
        result = CliRunner().invoke(app, ["state", *arguments])
        return result.exit_code, result.stdout, result.stderr

    return call


JOB_FLAGS = ("--job", "saved_job_of_this_test.py")


def test_contents_need_no_job(say):
    code, out, _ = say("tuesday")
    assert code == 0
    assert out.splitlines()[0].startswith("orders: checkpoint 2 at ")
    assert out.splitlines()[1].split() == ["step", "state", "entries", "bytes", "groups", "largest", "group"]
    assert out.splitlines()[2].split()[:2] == ["totals", "3"]
    document = json.loads(say("tuesday", "--json")[1])
    assert (document["job"], document["key_groups"]) == ("orders", 8)
    assert [(each["step"], each["entries"]) for each in document["states"]] == [("totals", 3)]


def test_values_and_what_has_changed(say):
    code, out, _ = say("tuesday", "totals/total", *JOB_FLAGS, "--json")
    assert (code, list(map(json.loads, out.splitlines()))) == (
        0,
        [{"user": "ann", "total": 3}, {"user": "bob", "total": 9}, {"user": "eve", "total": 6}],
    )
    _, out, _ = say("tuesday", "totals/total", *JOB_FLAGS, "--before", "monday", "--json")
    assert list(map(json.loads, out.splitlines())) == [
        {"user": "bob", "before": 4, "total": 9},
        {"user": "eve", "before": None, "total": 6},
    ]
    _, out, _ = say("tuesday", "totals/n", *JOB_FLAGS, "--limit", "1")
    assert out.endswith("1 of 3 keys; --limit shows more\n")
    assert "bob" not in out


@pytest.mark.parametrize(
    ("suffix", "read"), [("parquet", pl.read_parquet), ("csv", pl.read_csv), ("jsonl", pl.read_ndjson)]
)
def test_values_go_to_a_file(say, tmp_path, suffix, read):
    assert say("tuesday", "totals/n", *JOB_FLAGS, "--out", f"n.{suffix}")[:2] == (
        0,
        f"3 rows in n.{suffix}\n",
    )
    assert read(tmp_path / f"n.{suffix}").rows() == [("ann", 1), ("bob", 2), ("eve", 1)]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("sunday",), 1, "there is no savepoint or checkpoint at "),
        (("monday", "totals", *JOB_FLAGS), 2, "step 'totals' has several states: totals/n, totals/total"),
        (("monday", "totals/m", *JOB_FLAGS), 2, "there is no state 'totals/m'; did you mean 'totals/n'?"),
        (("monday", "totals/n", *JOB_FLAGS, "--out", "n.xls"), 2, "use one of .parquet, .csv, .jsonl"),
        (("monday", "totals/n"), 2, "add --job JOB"),
    ],
)
def test_what_cannot_be_shown_is_one_line(say, arguments, code, told):
    found, out, errors = say(*arguments)
    assert (found, out) == (code, "")
    assert told in " ".join(errors.split())
    assert "Traceback" not in errors
