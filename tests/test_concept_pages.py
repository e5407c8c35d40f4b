"""The blocks of pages about one concept run, in order, in one directory."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("page", ["changelogs"])
def test_every_block_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text()
    names = {"__name__": page}
    for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], f"docs/{page}.md", "exec"), names)
