"""Alert rules and the dashboard name metrics and labels that there are."""

import json
import re

import pytest

from pages.alerts import RULES, rule_file
from pages.dashboard import dashboard
from weir.metrics.definitions import DEFINITIONS

KNOWN = {definition.name: definition for definition in DEFINITIONS}
#: What a label may be besides those of the metric: Prometheus makes these.
MADE = {"le"}


def metrics_of(expression):
    """Definitions of all metrics of a query."""
    names = [name.removesuffix("_bucket") for name in re.findall(r"\bweir_\w+", expression)]
    assert names, expression
    return [KNOWN[name] for name in names]


def labels_of(expression):
    """Labels that it asks for or groups by."""
    found = set(re.findall(r"(\w+)=\"", expression))
    for group in re.findall(r"by \(([^)]*)\)", expression):
        found |= {label.strip() for label in group.split(",")}
    return found


def check(expression, *texts):
    """Each label that the query or a text beside it has is one of its metrics."""
    there = {label for definition in metrics_of(expression) for label in definition.labels}
    shown = {label for text in texts for label in re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text)}
    assert labels_of(expression) | shown <= there | MADE
    for definition in metrics_of(expression):
        is_counted = re.search(rf"(rate|increase)\({definition.name}", expression)
        assert not is_counted or definition.kind != "gauge", f"{definition.name} is no counter"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_about_metrics_that_there_are(rule):
    check(rule.expression, rule.summary, rule.mend)
    assert rule.severity in ("page", "ticket")
    assert rule.summary.endswith(".")
    assert rule.mend.endswith(".")
    assert rule.name in rule_file()


def panels():
    return [panel for panel in json.loads(dashboard())["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_is_about_metrics_that_there_are(panel):
    for target in panel["targets"]:
        check(target["expr"], target["legendFormat"])


def test_panels_do_not_lie_on_each_other():
    taken = set()
    for panel in json.loads(dashboard())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in json.loads(dashboard())["panels"]]
    assert len(set(ids)) == len(ids)
