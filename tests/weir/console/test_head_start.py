"""Processes that import before they know what to do."""

import types

import pytest

from weir.console import head_start
from weir.process.lifeline import send
from weir.process.prepared_process import order


@pytest.fixture
def started(monkeypatch):
    """Which processes were started; none is in truth."""
    calls = []

    def start(module, environment, *, is_relayed, owns_terminal):
        calls.append((module, is_relayed))
        return head_start.Started(None, types.SimpleNamespace(close=lambda: None), is_relayed)

    monkeypatch.setattr(head_start, "start", start)
    monkeypatch.setattr(head_start, "_started", {})
    return calls


@pytest.mark.parametrize("arguments", [[], ["plan", "job.py"], ["version"], ["run", "--help"]])
def test_other_commands_start_none(started, arguments):
    head_start.begin(arguments)
    assert started == []


def test_each_is_taken_once_and_only_if_it_writes_where_it_should(started):
    head_start.begin(["run", "job.py"])
    assert [module for module, _ in started] == ["task_manager", "control_plane"]
    assert head_start.take("control_plane", is_relayed=False) is not None
    assert head_start.take("control_plane", is_relayed=False) is None
    assert head_start.take("task_manager", is_relayed=not started[0][1]) is None


def test_one_becomes_what_it_is_told(tmp_path):
    """Its job is found on the Python path that comes with the arguments."""
    (tmp_path / "here_only.py").write_text("def build(rate: float = 2.5): ...\n")
    process = head_start.start("control_plane", None, is_relayed=True, owns_terminal=False)
    with process.connection, process.popen as popen:
        arguments = ["--job", "here_only", "--show-parameters"]
        send(process.connection, order(str(tmp_path), arguments))
        assert (popen.wait(60), popen.stderr.read()) == (0, b"")
        if popen.stdout is not None:
            assert b"rate" in popen.stdout.read()


def test_one_ends_with_the_command():
    process = head_start.start("task_manager", None, is_relayed=False, owns_terminal=False)
    process.connection.close()
    assert process.popen.wait(60) == 1
