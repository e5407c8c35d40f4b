"""Every version of a changelog counts where a step minds it, however rows are cut into batches."""

import random
from dataclasses import replace

import polars as pl
import pytest

import weir
from benchmarks.law import version_steps
from benchmarks.law.cases import random_case
from benchmarks.law.steps import case_of, difference
from benchmarks.law.version_steps import in_turn
from weir.errors import GraphError
from weir.plan.fingerprints import fingerprint_of
from weir.specs.keyed import VersionedSpec

STEPS = version_steps.STEPS
AS_OF = [step for step in STEPS if step.name.startswith("left join as of ")]
#: 2,000, the bound, is no multiple of 3 of it.
MODULUS = 300
COLUMNS = {"k": int, "at": int, "v": int}


@pytest.mark.parametrize(("seed", "step"), list(enumerate(STEPS)), ids=[step.name for step in STEPS])
def test_versions_are_those_of_single_rows(seed, step):
    assert difference(step, case_of(step, seed, 60)) is None


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_all_rows_in_one_batch_have_the_versions_of_single_rows(step):
    case = replace(case_of(step, 6, 80), cut=1_000_000, parallelism=(1,), interruptions=0, readers=1)
    assert difference(step, case) is None


@pytest.mark.parametrize("jitter_ms", [0, 1_500, 5_000])
@pytest.mark.parametrize("step", AS_OF, ids=[step.name for step in AS_OF])
def test_versions_of_several_splits_and_subtasks_are_in_the_order_of_time(step, jitter_ms):
    """Also of rows of several keys that come out of order, and late."""
    rng = random.Random(f"{step.name} {jitter_ms}")
    case = random_case(1, 80, 2, splits_max=3, in_time=True, own_keys=False, own_times=True)
    # All splits over the same hours, without two rows of one time, or one of the watermark of another.
    count = sum(len(rows) for splits in case.streams for rows in splits)
    numbers = iter(range(0, 3 * count, 3))
    assert 3 * count < MODULUS
    streams = [
        [
            [
                row
                | {
                    "at": 10**9
                    + (number * 300 + rng.randint(0, jitter_ms)) // MODULUS * MODULUS
                    + next(numbers)
                }
                for number, row in enumerate(rows)
            ]
            for rows in splits
        ]
        for splits in case.streams
    ]
    for cut in (1, None, 1_000_000):
        made = replace(case, streams=streams, cut=cut, parallelism=(3, 2, 4, 1), interruptions=2)
        by_time = replace(step, model=lambda rows: step.model([sorted(each, key=in_turn) for each in rows]))
        assert difference(replace(by_time, several="rows", parallelism_max=4), made) is None


def _flow(after):
    flow = weir.Dataflow("versions")
    rows = flow.source("rows", weir.JsonLines("rows.jsonl", schema=COLUMNS, event_time="at"))
    last = rows.key_by("k").deduplicate("last", keep="last")
    after(rows, last).sink("out", weir.Collect())
    return flow.build()


def _telling(graph):
    return [
        node.name for node in graph.nodes if isinstance(node.spec, VersionedSpec) and node.spec.every_version
    ]


def test_a_table_that_is_only_kept_tells_what_batches_leave():
    graph = _flow(lambda rows, last: last.key_by("v").aggregate("sums", n=weir.count()))
    assert _telling(graph) == []
    assert not any(node.orders_time for node in graph.nodes)


def test_all_steps_before_an_as_of_join_tell_every_version():
    def joined(rows, last):
        sums = last.key_by("v").aggregate("sums", n=weir.count()).filter("some", pl.col("n") > 1)
        return rows.key_by("v").join_as_of("joined", sums.key_by("v"))

    graph = _flow(joined)
    assert _telling(graph) == ["last", "sums"]
    assert [node.name for node in graph.nodes if node.orders_time] == ["last", "sums"]


def test_the_fingerprint_does_not_say_it():
    graph = _flow(lambda rows, last: rows.key_by("k").join_as_of("joined", last.key_by("k")))
    plain = [
        replace(node, spec=replace(node.spec, every_version=False), orders_time=False)
        if isinstance(node.spec, VersionedSpec)
        else node
        for node in graph.nodes
    ]
    assert _telling(graph) == ["last"]
    assert fingerprint_of(replace(graph, nodes=tuple(plain))) == fingerprint_of(graph)


def test_an_updated_join_on_the_right_side_is_refused():
    def joined(rows, last):
        other = rows.select("less", "k", w="v").key_by("k").deduplicate("other", keep="last")
        both = last.key_by("k").join("both", other.key_by("k"))
        return rows.key_by("k").join_as_of("joined", both.key_by("k"))

    with pytest.raises(
        GraphError, match=r"'joined'.*right side comes from join 'both'.*join_as_of with each"
    ):
        _flow(joined)


def test_a_view_of_groups_in_sql_tells_every_version():
    flow = weir.Dataflow("versions")
    rows = flow.source("rows", weir.JsonLines("rows.jsonl", schema=COLUMNS, event_time="at"))
    groups = flow.sql("SELECT k, COUNT(*) AS n FROM rows GROUP BY k", step="groups", rows=rows)
    query = "SELECT l.k, g.n FROM l LEFT JOIN g FOR SYSTEM_TIME AS OF l.at AS g ON l.k = g.k"
    flow.sql(query, step="joined", l=rows, g=groups).sink("out", weir.Collect())
    assert _telling(flow.build()) == ["groups.group"]
