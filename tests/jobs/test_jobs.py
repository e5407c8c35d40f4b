import ast
from pathlib import Path

import pytest

import jobs
from weir.dataflow.loading import load_job
from weir.errors import GraphError
from weir.plan.fingerprints import fingerprint_of
from weir.plan.graph import Exchange
from weir.plan.stages import physical_graph

CONFIGURED = {"input": "data/events", "max_parallelism": 128}
JOBS = Path(jobs.__file__).parent


def stages(module, **parameters):
    loaded = load_job(module, parameters, CONFIGURED)
    return physical_graph(loaded.graph).stages


def test_server_count_has_five_stages():
    found = stages("jobs.server_count", parallelism="2")
    assert [(stage.index, stage.name, stage.parallelism) for stage in found] == [
        (0, "events", 1),
        (1, "keep", 2),
        (2, "load", 2),
        (3, "count", 2),
        (4, "out", 2),
    ]
    exchanges = [stage.inputs[0].exchange for stage in found[1:]]
    assert exchanges == [Exchange.ROUND_ROBIN, Exchange.HASH, Exchange.HASH, Exchange.ROUND_ROBIN]
    assert found[3].is_keyed


def test_server_count_keeps_five_stages_with_junk_and_load():
    found = stages("jobs.server_count", junk="2", count_load_ms="0.5", load_ms="0.1", source_parallelism="2")
    assert [stage.name for stage in found] == ["events", "keep", "load", "count -> junk -> count_load", "out"]
    assert [stage.parallelism for stage in found] == [2, 1, 1, 1, 1]


def test_server_count_parameters_are_in_the_fingerprint():
    settings = [{}, {"junk": "1"}, {"junk": "2"}, {"load_ms": "1"}, {"rate": "5"}, {"events": "9"}]
    prints = {fingerprint_of(load_job("jobs.server_count", s, CONFIGURED).graph) for s in settings}
    assert len(prints) == len(settings)


def test_server_count_refuses_negative_junk():
    with pytest.raises(GraphError, match=r"job jobs.server_count: junk is -1"):
        stages("jobs.server_count", junk="-1")


def test_throughput_has_two_stages():
    found = stages("jobs.throughput")
    assert [(stage.name, stage.parallelism) for stage in found] == [
        ("events -> keep", 2),
        ("count -> out", 2),
    ]
    assert found[1].inputs[0].exchange is Exchange.HASH


@pytest.mark.parametrize(
    ("sink", "kind"),
    [
        ("blackhole", "blackhole_sink"),
        ("latency", "latency_sink"),
        ("json_lines", "json_lines_sink"),
        ("print", "print_sink"),
    ],
)
def test_throughput_sinks(sink, kind):
    assert stages("jobs.throughput", sink=sink)[1].nodes[-1].spec.kind == kind


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.py")), ids=lambda path: path.stem)
def test_jobs_import_only_the_public_api(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert not name.startswith(("weir.", "control_plane", "task_manager")), (
                f"{path.name} imports {name}"
            )
