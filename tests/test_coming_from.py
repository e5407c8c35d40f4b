"""What the pages for those who come from other systems name is there."""

import inspect
import re
from pathlib import Path

import pytest

import weir
from weir import testing
from weir.author import states, timed_states
from weir.dataflow import streams, windowed_streams

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: Values, settings, side outputs and methods of what a function is called with.
OTHERS = {
    "insert",
    "update_before",
    "update_after",
    "delete",
    "checkpoint_uri",
    "late_left",
    "late_right",
    "register",
}
#: Of an address.
OTHER_ARGUMENTS = {"stage"}


def public():
    """Names of everything that a job's author can call, and of their arguments."""
    classes = [
        each
        for module in (weir, streams, windowed_streams, states, timed_states, testing)
        for each in (getattr(module, name) for name in dir(module))
        if inspect.isclass(each)
    ]
    exported = {name: getattr(weir, name) for name in dir(weir)} | {"testing": testing}
    methods = {
        name: getattr(each, name) for each in classes for name in dir(each) if not name.startswith("_")
    }
    arguments = set()
    alike = [getattr(each, name) for each in classes for name in methods if hasattr(each, name)]
    for called in [*exported.values(), *alike, *classes]:
        try:
            arguments |= set(inspect.signature(called).parameters)
        except (TypeError, ValueError):
            continue
    return set(exported) | set(methods), arguments


@pytest.mark.parametrize("page", ["from-flink", "from-kafka-streams", "from-bytewax"])
def test_what_a_page_names_exists(page):
    names, arguments = public()
    checked = 0
    for line in (DOCS / f"{page}.md").read_text().splitlines():
        ours = line.split(" | ", 1)[1] if line.startswith("| ") and " | " in line else ""
        for code in re.findall(r"`([^`]*)`", ours):
            named = re.findall(r"\bweir\.(\w+)", code) + re.findall(r"\b([a-z_]\w*)\(", code)
            named += re.findall(r"^\.?([A-Za-z]\w+)$", code)
            assert set(named) <= names | arguments | OTHERS, code
            assert set(re.findall(r"\b(\w+)=", code)) <= arguments | OTHER_ARGUMENTS, code
            checked += len(named)
    assert checked > 20
