import json
import sys

import pytest

from weir.dataflow.loading import describe_parameters, load_deployed_job, load_job
from weir.errors import GraphError, JobCodeError
from weir.plan.fingerprints import fingerprint_of

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


def test_messages_show_no_secret(write):
    signature = "db_password: str = 'hunter2', pin_token: int = 3"
    write("wj_secret", f"import weir\n\ndef build({signature}):\n    return weir.Dataflow('x')\n")
    assert describe_parameters("wj_secret") == ["db_password: str = ***", "pin_token: int = 3"]
    for given in ({"pin_token": "hunter3"}, {"other": "x"}):
        with pytest.raises(GraphError) as refused:
            load_job("wj_secret", given, {})
        assert "hunter" not in str(refused.value)


def test_the_configuration_fills_only_what_has_no_default(job):
    configured = {"input": "from-config", "parallelism": 3, "unrelated": 1}
    loaded = load_job(job, {"rate": "5"}, configured)
    assert loaded.parameters["input"] == "from-config"
    assert loaded.parameters["parallelism"] == 1
    assert load_job(job, {"input": "given"}, configured).parameters["input"] == "given"
    assert loaded.describe_parameters() == (
        "from --param: rate=5.0; from config.json key fileName: input='from-config'; "
        "from the job's default: parallelism=1, verbose=False, mode='fast', label='x'"
    )


def test_the_author_s_defaults_win(write):
    write(
        "wj_mine",
        "import weir\n"
        "def build(input='mine', max_parallelism: int = 7):\n"
        "    flow = weir.Dataflow('mine', max_parallelism=max_parallelism)\n"
        "    flow.source('in', weir.JsonLines(input, schema={'id': int})).sink('out', weir.Blackhole())\n"
        "    return flow\n",
    )
    loaded = load_job("wj_mine", {}, {"input": "config's", "max_parallelism": 128})
    assert loaded.parameters == {"input": "mine", "max_parallelism": 7}
    assert loaded.graph.max_parallelism == 7


def test_every_process_builds_with_the_same_values(write):
    """A float whose default is written as an integer; a path, which JSON does not have."""
    write(
        "wj_same",
        "import weir\n"
        "from datetime import timedelta\n"
        "from pathlib import Path\n"
        "def build(input: Path = 'mine', rate: float = 50000, every: timedelta = timedelta(seconds=90)):\n"
        "    assert isinstance(input, Path) and isinstance(rate, float) and every.total_seconds() == 90\n"
        "    flow = weir.Dataflow('same')\n"
        "    source = weir.JsonLines(str(input), schema={'id': int}, rate=rate)\n"
        "    flow.source('in', source).sink('out', weir.Blackhole())\n"
        "    return flow\n",
    )
    here = load_job("wj_same", {}, {})
    there = load_deployed_job("wj_same", json.loads(json.dumps(here.parameters)))
    assert fingerprint_of(there.graph) == fingerprint_of(here.graph)
    assert there.parameters == here.parameters == {"input": "mine", "rate": 50000.0, "every": "PT1M30S"}


def test_other_parameters_elsewhere_are_other_code(job):
    with pytest.raises(GraphError, match=r"has parameters input, .* but was started with input: start all"):
        load_deployed_job(job, {"input": "x"})


def test_a_default_that_does_not_fit_its_annotation(write):
    write("wj_none", "def build(rate: float = None): pass")
    with pytest.raises(GraphError, match=r"rate=None is not float.*own default.*float \| None"):
        load_job("wj_none", {}, {})


@pytest.mark.parametrize(
    ("text", "place", "last"),
    [
        ("def build():\n    return helper()\ndef helper():\n    return {}['x']\n", 4, "KeyError: 'x'"),
        ("import json\ndef build():\n    return json.loads('{')\n", 3, "JSONDecodeError: Expecting property"),
        ("x = 1\n1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("x = 1\ndef build(:\n", 2, "SyntaxError: invalid syntax"),
        ("\nimport wj_nowhere\n", 2, "ModuleNotFoundError: No module named 'wj_nowhere'"),
        ("\nimport sys\nsys.exit(3)\n", 3, "SystemExit: 3"),
    ],
)
def test_an_error_of_the_job_s_code_has_its_file_its_line_and_its_traceback(
    write, tmp_path, text, place, last
):
    write("wj_raises", text)
    with pytest.raises(JobCodeError) as caught:
        load_job("wj_raises", {}, {})
    path = tmp_path / "wj_raises.py"
    assert str(caught.value).endswith(f"({path}, line {place})")
    shown = caught.value.user_traceback
    assert f'File "{path}", line {place}' in shown
    assert last in shown.splitlines()[-1]
    assert "loading.py" not in shown
    assert "importlib" not in shown


def test_a_wrong_step_is_named_with_its_line(write, tmp_path):
    write("wj_step", "import weir\ndef build():\n    weir.Dataflow('no name')\n")
    with pytest.raises(GraphError, match=r"wj_step.py, line 3\)$"):
        load_job("wj_step", {}, {})


def test_describe_parameters(job):
    assert describe_parameters(job) == [
        "input: str (config.json: fileName)",
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
        ({"nosuch": "x"}, r"has no parameter 'nosuch'; there are input.*\. Its parameters: "),
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
        ("x = 1", r"job wj_bad \(/.*/wj_bad.py\) has no function build"),
        ("import wj_nowhere", "job wj_bad cannot be imported: it needs module wj_nowhere"),
        ("1 / 0", "job wj_bad cannot be imported: ZeroDivisionError: division by zero"),
        ("def build(:", "job wj_bad cannot be imported: SyntaxError"),
        ("def build(): return 3", "job wj_bad: build returned int, not a weir.Dataflow"),
        ("def build(): raise OSError('disk')", "job wj_bad: build failed: OSError: disk"),
        ("import weir\ndef build(): return weir.Dataflow('x')", "job wj_bad: job 'x': it has no source"),
        (
            "import weir\ndef build(): weir.tumblng('1s')",
            r"weir has no 'tumblng'; did you mean 'tumbling'\? \(/",
        ),
        ("import weir\ndef build(): weir.Dataflow('x').sorce()", r"'sorce'; did you mean 'source'\? \(/"),
        ("def build(): flow = 1; return flwo", r"'flwo' is not defined; did you mean 'flow'\? \(/"),
        ("def build(): return zzyzx", r"'zzyzx' is not defined \(/"),
        ("def build(): ''.zzyzx", r"no attribute 'zzyzx' \(/"),
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


def test_rows_cannot_be_collected_on_task_managers(write):
    write(
        "wj_collects",
        "import weir\n"
        "def build():\n"
        "    flow = weir.Dataflow('collects')\n"
        "    flow.source('in', weir.JsonLines('x', schema={'a': int})).sink('out', weir.Collect())\n"
        "    return flow\n",
    )
    with pytest.raises(GraphError, match=r"step 'out': weir.Collect\(\) keeps rows in the process"):
        load_job("wj_collects", {}, {})
