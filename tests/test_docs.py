"""Pages that repeat what the code says are equal to it."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import weir
from weir.config import Config
from weir.config.keys import all_keys, section_models

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("configuration", "configuration.md"),
        ("metrics", "metrics.md"),
        ("alerts", "monitoring/alerts.yml"),
        ("dashboard", "monitoring/dashboard.json"),
    ],
)
def test_what_is_made_from_the_code_is_what_the_command_prints(name, page):
    command = [sys.executable, "-m", "pages", name]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / page).read_text() == printed, "run: make docs"


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_to_one(page):
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert heading in headings(page.parent / target if target else page), f"{target}#{heading}"


def test_every_make_target_named_in_a_page_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M)}
    assert {"setup", "demo", "test"} <= named <= targets


def test_the_architecture_picture_is_a_picture_with_the_real_ports():
    picture = ElementTree.parse(ROOT / "docs/images/architecture.svg").getroot()
    assert picture.tag.endswith("svg")
    text = " ".join("".join(item.itertext()) for item in picture.iter())
    config = Config()
    for port in (
        config.control_plane.cp_grpc_port,
        config.control_plane.control_port,
        config.task_manager.tm_port,
    ):
        assert str(port) in text


def test_the_job_in_the_readme_runs_on_the_input_that_the_readme_makes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    [command] = re.findall(r"^seq .* > \S+$", readme, re.MULTILINE)
    subprocess.run(command, shell=True, check=True)
    names = {}
    exec(compile(re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1], "README.md", "exec"), names)
    assert len(weir.run(names["build"](), collect="count")["count"]) == 75
    assert len(capsys.readouterr().out.splitlines()) == 75


def test_the_settings_named_in_pages_exist():
    leaves = {dotted.rpartition(".")[2] for dotted in all_keys()}
    sections = "|".join(name for name in section_models() if name)
    for page in PAGES:
        for dotted in re.findall(rf"\b(?:{sections})\.\w+(?:\.\w+)?", page.read_text()):
            # What librdkafka calls one of its own, and a page.
            is_other = dotted in ("security.protocol", "security.md")
            is_known = is_other or dotted in all_keys() or dotted in section_models()
            assert is_known, f"{page.name}: {dotted}"
        for word in re.findall(r"`(batch_\w+|operator_\w+|state_\w+_ms|max_parallelism)`", page.read_text()):
            assert word in leaves, f"{page.name}: {word}"


#: Pages whose Python blocks are run, one after the other, in a directory of their own.
RUNNABLE = ["aggregates.md", "event-time.md", "sql.md", "testing.md", "windows.md"]


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text()
    names = {"__name__": "page"}
    for found in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        # So that a line in a traceback is the line of the page.
        code = "\n" * text[: found.start(1)].count("\n") + found[1]
        exec(compile(code, f"docs/{page}", "exec"), names)
