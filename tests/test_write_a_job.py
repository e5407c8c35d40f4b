"""The blocks of docs/write-a-job.md run, and show every operation of the API."""

import re
from pathlib import Path

import weir

PAGE = (Path(__file__).resolve().parents[1] / "docs/write-a-job.md").read_text()
#: Not for jobs to call.
NOT_SHOWN = {"sink", "source", "schema", "is_changelog", "keyed_step", "added_step", "partitioned"}


def test_every_block_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "write_a_job"}
    for block in re.finditer(r"```python\n(.*?)```", PAGE, re.DOTALL):
        line = PAGE[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], "docs/write-a-job.md", "exec"), names)


def test_every_step_and_every_exported_name_is_shown():
    steps = {
        name for kind in (weir.Stream, weir.KeyedStream) for name in vars(kind) if not name.startswith("_")
    }
    missing = {name for name in steps - NOT_SHOWN if not re.search(rf"\.{name}\(", PAGE)}
    assert not missing
    exported = set(weir.__all__) - {"__version__"}
    assert {name for name in exported if f"weir.{name}" not in PAGE} <= {
        "KeyedStream",
        "OperatorContext",
        "Poll",
        "Stream",
        "TransactionId",
        "WeirError",
        "WindowedStream",
    }
