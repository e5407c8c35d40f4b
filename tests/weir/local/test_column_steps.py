"""``drop``, ``rename``, ``explode`` and ``select`` of expressions, alone and with columns that nobody reads."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir
from weir import testing
from weir.plan.stages import physical_graph

SCHEMA = {"id": int, "user": str, "tags": weir.Nullable(pl.List(pl.String)), "note": weir.Nullable(str)}
ROWS = [
    {"id": 1, "user": "ann", "tags": ["a", "b"], "note": None},
    {"id": 2, "user": "bob", "tags": [], "note": "x"},
    {"id": 3, "user": "cy", "tags": None, "note": "y"},
    {"id": 4, "user": "ann", "tags": [None, "c"], "note": "z"},
]


def source(flow):
    return flow.source("in", weir.ArrowIpc("none", schema=SCHEMA))


def rows_of(make, rows=ROWS):
    flow = weir.Dataflow("job")
    make(source(flow)).sink("out", weir.Collect())
    return testing.run(flow, {"in": rows})["out"].to_dicts()


def read(make):
    flow = weir.Dataflow("job")
    make(source(flow)).sink("out", weir.Blackhole())
    return physical_graph(flow.build()).stages[0].nodes[0].spec.schema_read.names


def test_columns_are_left_out():
    assert rows_of(lambda s: s.drop("d", "tags", "note"))[0] == {"id": 1, "user": "ann"}
    keyed = rows_of(lambda s: s.key_by("user").drop("d", "tags", "note").count("n"))
    assert [row["n"] for row in keyed if row["user"] == "ann"] == [1, 2]
    assert read(lambda s: s.drop("d", "tags", "note")) == ["id", "user"]


def test_columns_get_other_names():
    swapped = rows_of(lambda s: s.rename("r", {"user": "note", "note": "user"}).drop("d", "tags"))
    assert swapped[1] == {"id": 2, "note": "bob", "user": "x"}
    assert read(lambda s: s.rename("r", {"user": "who"}).select("s", "who")) == ["user"]
    assert read(
        lambda s: s.rename("r", {"user": "who"}).filter("f", pl.col("who") != "x").select("s", "id")
    ) == [
        "id",
        "user",
    ]


def test_an_element_becomes_a_row():
    exploded = rows_of(lambda s: s.explode("e", "tags").select("s", "id", "tags"))
    assert [(row["id"], row["tags"]) for row in exploded] == [(1, "a"), (1, "b"), (4, None), (4, "c")]
    kept = rows_of(lambda s: s.explode("e", "tags", keep_empty=True).select("s", "id", "tags"))
    assert [(row["id"], row["tags"]) for row in kept] == [
        (1, "a"),
        (1, "b"),
        (2, None),
        (3, None),
        (4, None),
        (4, "c"),
    ]
    assert read(lambda s: s.explode("e", "tags").select("s", "id")) == ["id", "tags"]


LISTS = st.lists(
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=5)), max_size=12
)


@given(LISTS, st.booleans(), st.booleans())
def test_exploding_is_what_plain_python_does(lists, keep_empty, is_keyed):
    rows = [{"id": n, "user": "ann", "tags": tags, "note": None} for n, tags in enumerate(lists)]

    def make(stream):
        stream = stream.key_by("user") if is_keyed else stream
        return stream.explode("e", "tags", keep_empty=keep_empty).pass_through("p").select("s", "id", "tags")

    wanted = [(row["id"], tag) for row in rows for tag in row["tags"] or ([None] if keep_empty else [])]
    assert [(row["id"], row["tags"]) for row in rows_of(make, rows)] == wanted


def test_long_lists_leave_in_several_batches():
    rows = [{"id": n, "user": "u" * 1000, "tags": ["t"] * 30_000, "note": None} for n in range(2)]
    flow = weir.Dataflow("job")
    source(flow).explode("e", "tags").sink("out", weir.Collect())
    result = testing.run(flow, {"in": rows})["out"].to_arrow()
    assert result.num_rows == 60_000
    assert max(len(chunk) for chunk in result["id"].chunks) <= 8_500


def test_a_selected_expression_is_computed():
    chosen = rows_of(
        lambda s: s.select("s", "id", pl.col("user").str.len_chars().alias("size"), twice=pl.col("id") * 2)
    )
    assert chosen[1] == {"id": 2, "size": 3, "twice": 4}
    assert rows_of(lambda s: s.select("s", id=pl.lit(7)).filter("f", pl.col("id") == 7))[0] == {"id": 7}
    assert read(lambda s: s.select("s", id=pl.col("user").str.len_chars())) == ["user"]


def test_a_filter_of_a_computed_column_is_not_pushed_into_the_source():
    flow = weir.Dataflow("job")
    events = flow.source("in", weir.Parquet("none", schema={"id": int}))
    events.select("s", id=pl.col("id") + 10).filter("f", pl.col("id") > 5).sink("out", weir.Blackhole())
    assert physical_graph(flow.build()).stages[0].nodes[0].spec.condition is None


def test_steps_of_columns_hand_a_changelog_on():
    flow = weir.Dataflow("job")
    top = source(flow).drop("d", "tags").key_by("user").top("t", by="id", rows=1)
    assert top.rename("r", {"note": "text"}).drop("n", "text").is_changelog
    with pytest.raises(weir.GraphError, match="step 'x': without column '_change'"):
        top.rename("x", {"_change": "change"})
    with pytest.raises(weir.GraphError, match="step 'y': without column '_change'"):
        top.drop("y", "_change")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.drop("d", "nota"), "step 'd': there is no column 'nota'; did you mean 'note'"),
        (lambda s: s.drop("d"), "step 'd': drop needs at least one column"),
        (lambda s: s.drop("d", *SCHEMA), "step 'd': no column is left"),
        (
            lambda s: s.key_by("user").drop("d", "user"),
            "step 'd': it leaves out key column 'user'; do that before key_by",
        ),
        (lambda s: s.rename("r", {}), "step 'r': rename needs at least one column"),
        (lambda s: s.rename("r", {"nota": "x"}), "step 'r': there is no column 'nota'"),
        (lambda s: s.rename("r", {"note": "id"}), "step 'r': output column 'id' exists already"),
        (
            lambda s: s.rename("r", {"note": "_key_hash"}),
            "step 'r': output column '_key_hash' exists already",
        ),
        (
            lambda s: s.rename("r", {"note": 3}),
            "step 'r': 'note' becomes 3; a column's name is a non-empty string",
        ),
        (lambda s: s.key_by("user").rename("r", {"user": "who"}), "step 'r': it replaces key column 'user'"),
        (lambda s: s.explode("e", "tag"), "step 'e': there is no column 'tag'; did you mean 'tags'"),
        (lambda s: s.explode("e", "note"), "step 'e': column 'note' is string; only lists can be exploded"),
        (lambda s: s.select("s", "id", pl.col("user").alias("id")), "step 's': column 'id' is there twice"),
        (lambda s: s.select("s", pl.col("id").sum()), "step 's': .*depends on the other rows of a batch"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(make, message):
    with pytest.raises(weir.GraphError, match=message):
        make(source(weir.Dataflow("job")))
