"""What a filter and the step behind it both compute is computed once, and changes no result."""

import json
import random

import polars as pl
import polars.selectors as cs
import pytest

import weir
from tests.effort import cases
from weir.plan.fingerprints import fingerprint_of
from weir.plan.stages import physical_graph

SCHEMA = {"id": int, "at": int, "name": weir.Nullable(str), "word": str, "size": float}
ID, NAME, WORD, SIZE = (pl.col(each) for each in ("id", "name", "word", "size"))
FOUND = NAME.str.extract(r"n(\d+)", 1)
NUMBER = WORD.cast(pl.Int64)


def flow_of(predicate, *columns, path="rows.jsonl", parallelism=None):
    flow = weir.Dataflow("shared")
    rows = flow.source("rows", weir.JsonLines(str(path), schema=SCHEMA, event_time="at"))
    if parallelism is not None:
        rows = rows.rebalance().pass_through("spread", parallelism=parallelism)
    rows.filter("known", predicate).select("told", *columns).sink("out", weir.Collect())
    return flow


def steps(flow, **options):
    graph = physical_graph(flow.build_local(), **options)
    return {node.name: node.spec for stage in graph.stages for node in stage.nodes}


def shared(flow, **options):
    """What the filter hands on, and the columns behind it."""
    found = steps(flow, **options)
    return [str(each) for each in found["known"].shared], [str(each) for each in found["told"].columns]


def test_a_column_that_the_filter_computes_is_handed_on_under_its_name():
    flow = flow_of(FOUND.is_not_null(), "id", FOUND.alias("found"))
    before = fingerprint_of(flow.build())
    assert shared(flow) == ([str(FOUND.alias("found"))], ["id", "found"])
    # The job is the same: it goes on from checkpoints of the time before there was such a rule.
    assert fingerprint_of(flow.build()) == before
    assert not [node for node in flow.build().nodes if getattr(node.spec, "shared", ())]


def test_a_part_of_what_is_told_gets_a_name_that_is_free():
    flow = flow_of(FOUND != "7", "id", FOUND.str.len_chars().alias("length"), (FOUND + "x").alias("name"))
    handed, columns = shared(flow)
    assert handed == [str(FOUND.alias("_shared_1"))]
    assert columns[1:] == [
        str(pl.col("_shared_1").str.len_chars().alias("length")),
        str((pl.col("_shared_1") + "x").alias("name")),
    ]


@pytest.mark.parametrize(
    ("predicate", "columns", "options"),
    [
        # Quick to compute again.
        ((SIZE * 0.9 > 3) & (ID % 2 == 0), [(SIZE * 0.9).alias("euros"), (ID % 2).alias("odd")], {}),
        # The filter may go without it.
        (pl.when(ID > 3).then(NUMBER).otherwise(0) > 3, [NUMBER.alias("number")], {}),
        (pl.lit(True) | (NUMBER > 3), [NUMBER.alias("number")], {}),
        # All columns are asked for.
        (FOUND.is_not_null(), [FOUND.alias("found"), cs.float() * 2], {}),
        # Somebody looks at what the filter says.
        (FOUND.is_not_null(), [FOUND.alias("found")], {"whole": ["known"]}),
        # Nobody can tell whether it is the same.
        (
            NAME.map_elements(len, pl.Int64) > 3,
            [NAME.map_elements(len, pl.Int64).alias("length")],
            {},
        ),
        (FOUND.is_not_null(), ["name"], {}),
    ],
)
def test_what_is_computed_as_it_was_written(predicate, columns, options):
    flow = flow_of(predicate, "id", *columns)
    assert shared(flow, **options)[0] == []


def test_other_readers_of_a_filter_see_its_rows_alone():
    flow = weir.Dataflow("shared")
    known = flow.source("rows", weir.JsonLines("in", schema=SCHEMA)).filter("known", FOUND.is_not_null())
    known.select("told", FOUND.alias("found")).sink("out", weir.Blackhole())
    known.sink("all", weir.Blackhole())
    assert shared(flow)[0] == []


def test_sql_computes_a_column_of_an_inner_query_once(tmp_path):
    flow = weir.Dataflow("shared")
    rows = flow.source("rows", weir.JsonLines("in", schema=SCHEMA, event_time="at"))
    inner = "SELECT id, NULLIF(REGEXP_EXTRACT(name, 'n([0-9]+)', 1), '') AS found FROM rows"
    text = f"SELECT id, found FROM ({inner}) WHERE found IS NOT NULL AND id > 3"
    flow.sql(text, rows=rows).sink("out", weir.Blackhole())
    graph = physical_graph(flow.build_local())
    [filtering, choosing] = [
        node.spec for stage in graph.stages for node in stage.nodes if node.spec.kind in ("filter", "select")
    ]
    assert [each.meta.output_name() for each in filtering.shared] == ["found"]
    assert choosing.columns == ("id", "found")


def lines(path, seed, count=300):
    chance = random.Random(seed)
    rows = [
        {
            "id": chance.randrange(20),
            "at": number,
            "name": chance.choice([None, "", "n7", "m n12 n13", "é"]),
            "word": str(chance.randrange(-5, 30)),
            "size": chance.choice([0.0, -1.5, 7.25]),
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


_PARTS = (
    *(FOUND, NAME.str.to_lowercase(), NAME.fill_null("none") + WORD, NAME.str.split(" ").list.len(), NUMBER),
    *(NUMBER // 3, pl.when(NUMBER > 7).then(FOUND).otherwise(WORD), NAME.is_in(["n7", "é"]), SIZE.round(1)),
    *(pl.from_epoch(pl.col("at"), "ms").dt.to_string("%S"), SIZE * 2, ID + 1, pl.concat_str(NAME, WORD)),
)


def condition(chance, part):
    return chance.choice(
        [
            part.is_not_null(),
            part.cast(pl.String) != "7",
            part.is_null() | (ID > 9),
            (part.cast(pl.String).str.len_chars() > 1) & (ID != 3),
            pl.coalesce(part.cast(pl.String), pl.lit("")) != "",
            pl.lit(True) & part.is_not_null(),
            ID < 0,
            ID >= 0,
        ]
    )


@pytest.mark.parametrize("seed", range(cases(40)))
def test_results_are_those_of_steps_that_compute_alone(tmp_path, seed):
    chance = random.Random(seed)
    lines(tmp_path / "rows.jsonl", seed)
    parts = chance.sample(_PARTS, 3)
    predicate = condition(chance, parts[0]) & condition(chance, parts[1])
    names = chance.sample(["a", "b", "c", "name", "size", "word"], 3)
    told = [
        chance.choice([part, part.cast(pl.String) + "x", part.is_null()]).alias(name)
        for part, name in zip(parts, names, strict=True)
    ]
    flow = flow_of(
        predicate, "id", *told, path=tmp_path / "rows.jsonl", parallelism=chance.choice([None, None, 1])
    )
    found = weir.run(flow)["out"].to_polars()
    alone = weir.run(flow, collect=["rows", "known", "told"])["out"].to_polars()
    assert found.schema == alone.schema
    assert found.rows() == alone.rows()


def test_a_row_for_which_a_shared_part_fails_is_the_filters(tmp_path):
    lines(tmp_path / "rows.jsonl", 1)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"id": 1, "at": 999, "name": None, "word": "none", "size": 1.0}) + "\n")
    flow = flow_of(NUMBER > 3, "id", NUMBER.alias("number"), path=tmp_path / "rows.jsonl")
    assert shared(flow)[0]
    with pytest.raises(weir.WeirError) as together:
        weir.run(flow)
    with pytest.raises(weir.WeirError) as alone:
        weir.run(flow, collect=["rows", "known", "told"])
    assert str(together.value) == str(alone.value)
    assert "step 'known'" in str(together.value)
