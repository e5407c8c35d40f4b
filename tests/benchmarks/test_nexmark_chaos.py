"""What the disturbed Nexmark queries rescale, and that no kind of keyed step of a query is left out."""

from functools import cache

from benchmarks import nexmark_chaos
from weir.examples import nexmark
from weir.plan.stages import physical_graph

#: Graphs are built once for all tests.
keyed_stages = cache(nexmark_chaos.keyed_stages)
graph_of = cache(lambda query: physical_graph(nexmark.build(query, parallelism=2).build()))


def steps(query, chosen):
    """Kinds of the steps in the keyed stages of a query that are chosen, or in the others."""
    rescaled = keyed_stages(query)
    stages = [
        stage for stage in graph_of(query).stages if stage.has_groups and (stage.index in rescaled) == chosen
    ]
    return {node.spec.kind for stage in stages for node in stage.nodes if node.states}


def test_every_kind_of_step_with_state_is_rescaled():
    rescaled = set().union(*(steps(query, True) for query in nexmark.QUERIES))
    assert rescaled >= {
        "join",
        "window_aggregate",
        "window_top",
        "top",
        "keyed_process",
        "changelog_aggregate",
    }
    assert set().union(*(steps(query, False) for query in nexmark.QUERIES)) <= rescaled


def test_queries_without_state_are_only_killed():
    assert [query for query in nexmark.QUERIES if not keyed_stages(query)] == [
        *("q0", "q1", "q2", "q10", "q13", "q14", "q15", "q21", "q22")
    ]
