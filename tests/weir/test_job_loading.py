import sys

import pytest

from weir.errors import GraphError
from weir.job_loading import describe_parameters, load_job

JOB = """
from __future__ import annotations

from typing import Literal

import weir

def build(
    input: str,
    rate: float | None = None,
    parallelism: int = 1,
    verbose: bool = False,
    mode: Literal["fast", "slow"] = "fast",
    label: str | None = "x",
):
    flow = weir.Dataflow("tiny")
    source = weir.JsonLines(input, schema={"id": int}, rate=rate)
    flow.source("events", source, parallelism=parallelism).sink("out", weir.Blackhole())
    return flow
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name, text):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("wj_"):
            del sys.modules[name]


@pytest.fixture
def job(write):
    write("wj_tiny", JOB)
    return "wj_tiny"


def test_parameters_are_converted_by_annotation(job):
    given = {
        "input": "in",
        "rate": "1e3",
        "parallelism": "2",
        "verbose": "true",
        "mode": "slow",
        "label": "none",
    }
    loaded = load_job(job, given, {})
    assert loaded.parameters == {
        "input": "in",
        "rate": 1000.0,
        "parallelism": 2,
        "verbose": True,
        "mode": "slow",
        "label": None,
    }
    assert isinstance(loaded.parameters["rate"], float)
    assert loaded.graph.name == "tiny"
    assert loaded.graph.node("events").parallelism == 2


def test_defaults_of_the_configuration_stand_behind_given_values(job):
    defaults = {"input": "from-config", "parallelism": 3, "unrelated": 1}
    assert load_job(job, {}, defaults).parameters["input"] == "from-config"
    loaded = load_job(job, {"input": "given"}, defaults)
    assert loaded.parameters["input"] == "given"
    assert loaded.parameters["parallelism"] == 3
    assert loaded.parameters["rate"] is None


def test_describe_parameters(job):
    assert describe_parameters(job) == [
        "input: str (required)",
        "rate: float | None = None",
        "parallelism: int = 1",
        "verbose: bool = False",
        "mode: Literal['fast', 'slow'] = 'fast'",
        "label: str | None = 'x'",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "job wj_tiny needs parameter 'input'; give it with --param input=VALUE"),
        ({"inptu": "x"}, r"has no parameter 'inptu'; did you mean 'input'\? .*rate: float | None = None"),
        ({"input": "x", "parallelism": "two"}, "parameter parallelism='two' is not int: "),
        ({"input": "x", "parallelism": "1.5"}, "parameter parallelism='1.5' is not int: "),
        ({"input": "x", "rate": "-1"}, "job wj_tiny: step 'events': rate is -1.0"),
        ({"input": "x", "rate": "nan"}, "job wj_tiny: step 'events': rate is nan"),
        ({"input": "x", "mode": "medium"}, "parameter mode='medium' is not Literal.*'fast' or 'slow'"),
        ({"input": "x", "parallelism": "none"}, "parameter parallelism='none' is not int"),
    ],
)
def test_wrong_parameters(job, given, message):
    with pytest.raises(GraphError, match=message) as caught:
        load_job(job, given, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "job wj_bad has no function build"),
        ("import wj_nowhere", "job wj_bad cannot be imported: it needs module wj_nowhere"),
        ("1 / 0", "job wj_bad cannot be imported: ZeroDivisionError: division by zero"),
        ("def build(:", "job wj_bad cannot be imported: SyntaxError"),
        ("def build(): return 3", "job wj_bad: build returned int, not a weir.Dataflow"),
        ("def build(): raise OSError('disk')", "job wj_bad: build failed: OSError: disk"),
        ("import weir\ndef build(): return weir.Dataflow('x')", "job wj_bad: job 'x': it has no source"),
        ("def build(**anything): return 3", "job wj_bad: parameter 'anything' of build"),
        ("def build(x: 'Nope' = 1): return 3", "job wj_bad: .*annotations of build"),
        ("class Odd: pass\ndef build(x: Odd): return 3", "job wj_bad: Odd of parameter x is not supported"),
    ],
)
def test_bad_modules(write, text, message):
    write("wj_bad", text)
    with pytest.raises(GraphError, match=message) as caught:
        load_job("wj_bad", {"x": "1"} if "Odd" in text else {}, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["jobs/x", "", "a..b", ".a", "a b", "os;x", "1a", "../x"])
def test_only_dotted_identifiers_are_imported(name):
    with pytest.raises(GraphError, match="not a module path"):
        load_job(name, {}, {})


@pytest.mark.parametrize("name", ["wj_absent", "wj_pack.absent"])
def test_absent_module(write, name):
    write("wj_pack.__init__", "")
    with pytest.raises(GraphError, match=f"job {name}: there is no module {name} in "):
        load_job(name, {}, {})


def test_a_module_of_a_package_in_the_current_directory(write):
    write("wj_deep.inner.job", JOB)
    assert load_job("wj_deep.inner.job", {"input": "x"}, {}).graph.name == "tiny"
