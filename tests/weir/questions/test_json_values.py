"""Values that no Arrow type has in common are JSON, in a column that says so."""

import datetime as dt
import decimal
import json

import polars as pl
import pyarrow as pa
import pytest

from tests.weir.questions.test_parts import part
from weir.protocol.queries import Question
from weir.questions.json_values import alike, arrow_column, is_json_type
from weir.questions.parts import merge_parts


@pytest.mark.parametrize(
    "values",
    [
        [1, None, "a"],
        ["1", 1],
        [{"most": 3}, {"most": "three"}, [1, "x"]],
        [True, 1],
        [2**63, -1],
        [2**53 + 1, 0.5],
    ],
)
def test_values_without_a_common_type_are_json(values):
    column = arrow_column(values)
    assert column.type == pa.json_()
    assert [value and json.loads(value) for value in column.to_pylist()] == values


def test_values_with_a_common_type_have_it():
    assert arrow_column([1, 2.5, None]).type == pa.float64()
    assert not is_json_type(arrow_column(["1", "2"]).type)


def test_parts_of_different_types_become_json_of_all_values():
    moment, price = dt.datetime(2020, 1, 2, tzinfo=dt.UTC), decimal.Decimal("1.50")
    columns = [
        pa.chunked_array([pa.array([], pa.null())]),
        pa.chunked_array([[moment]]),
        pa.chunked_array([[{"price": price, "raw": b"ab", "most": float("nan")}]]),
        pa.chunked_array([arrow_column(["text", 1])]),
    ]
    found = alike(columns)
    assert is_json_type(found.type)
    assert [json.loads(text) for text in found.to_pylist()] == [
        "2020-01-02T00:00:00+00:00",
        {"price": "1.50", "raw": "YWI=", "most": "nan"},
        "text",
        1,
    ]
    # Text of one part and JSON of another are both text for Arrow, and would be mixed up.
    texts = alike([pa.chunked_array([["1"]]), pa.chunked_array([arrow_column(["1", 1])])])
    assert texts.to_pylist() == ['"1"', '"1"', "1"]
    assert alike([pa.chunked_array([[1]]), pa.chunked_array([[2.5]])]).type == pa.float64()
    assert len(alike([pa.chunked_array([pa.array([], pa.null())])] * 2)) == 0


def test_an_answer_of_task_managers_with_values_of_different_types_is_one():
    parts = [
        part("a:1", [0], [("ann", 1), ("cyd", 3)], arrow=True),
        part("b:1", [1], [("bob", "two")], arrow=True),
        part("c:1", [2], [], arrow=True),
    ]
    stream = merge_parts(parts, Question("s", "n", arrow=True))["rows"]
    table = pa.ipc.open_stream(stream).read_all()
    assert table.column("key").to_pylist() == ["ann", "bob", "cyd"]
    assert table.column("value").to_pylist() == ["1", '"two"', "3"]
    # Readers that know no extension types see a column of text.
    assert pl.read_ipc_stream(stream)["value"].ext.storage().to_list() == ["1", '"two"', "3"]
