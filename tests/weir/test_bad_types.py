"""Columns that cannot be compared are one error that names the step, when the graph is built."""

import polars as pl
import pytest

import weir
from weir.errors import GraphError

SCHEMA = {"k": str, "at": int, "some": pl.List(pl.Int64), "both": pl.Struct({"a": pl.Int64}), "f": float}
MINUTE = weir.tumbling("1m")


def stream(flow=None, name="rows"):
    flow = flow or weir.Dataflow("bad_types")
    return flow.source(name, weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))


def joined(left_key, right_key, **arguments):
    flow = weir.Dataflow("bad_types")
    left, right = stream(flow, "left"), stream(flow, "right")
    return left.key_by(left_key).join("j", right.key_by(right_key), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rows: rows.key_by("k").window(MINUTE).aggregate("a", m=weir.max("some")), "'a': max over"),
        (lambda rows: rows.key_by("k").aggregate("a", m=weir.min("both")), "'a': min over 'both'"),
        (lambda rows: rows.key_by("k").aggregate("a", m=weir.count_distinct("some")), "'a': count_distinct"),
        (lambda rows: rows.key_by("k").top("t", by="some", rows=1), "'t': it goes by column 'some'"),
        (lambda rows: rows.key_by("both"), "key column 'both' is struct"),
        (lambda rows: rows.key_by("f"), "key column 'f' is double"),
        (lambda rows: joined("k", "at", window=MINUTE), "'j'"),
        (lambda rows: joined("k", "k", between=("k", "at")), "'j': column 'k', a bound, is string"),
        (lambda rows: rows.assign_event_time("t", "some"), "'t'"),
    ],
)
def test_what_cannot_be_compared_is_refused_when_the_graph_is_built(make, message):
    with pytest.raises(GraphError, match=message) as error:
        make(stream())
    assert "\n" not in str(error.value)
