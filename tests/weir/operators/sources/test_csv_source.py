"""The CSV source as a job sees it."""

from __future__ import annotations

import csv

import polars as pl
import pytest

import weir
from weir.errors import GraphError, InputError

SCHEMA = {"id": int, "name": weir.Nullable(str)}


def flow_of(source, parallelism=1):
    flow = weir.Dataflow("csv")
    flow.source("rows", source, parallelism=parallelism).sink("out", weir.Blackhole())
    return flow


def read(source, parallelism=1):
    return weir.run(flow_of(source, parallelism), collect="rows")


def test_columns_are_found_by_name_in_every_file(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffid,other,name\r\n1,x,a\r\n2,y,\r\n")
    (tmp_path / "b.csv").write_text('name,id\n"b\nc",3\n')
    result = read(weir.Csv(str(tmp_path), schema=SCHEMA))
    assert [(row["id"], row["name"]) for row in result["rows"]] == [(1, "a"), (2, None), (3, "b\nc")]


def test_event_time_and_dead_letters_with_file_and_position(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,at\n1,10\n2\n3,\n4,40\n")
    schema = {"id": int, "at": weir.Nullable(int)}
    result = read(weir.Csv(str(path), schema=schema, event_time="at"))
    assert [row["at"] for row in result["rows"]] == [10, 40]
    assert [
        (letter.source, letter.position, letter.reason, letter.raw) for letter in result.dead_letters
    ] == [
        (str(path), 11, "the record has 1 field, not 2", "2"),
        (str(path), 13, "field at is null", "3,"),
    ]
    with pytest.raises(weir.WeirError, match=r"a\.csv at byte 11: the record has 1 field"):
        read(weir.Csv(str(path), schema=schema, on_bad_record="fail"))


def test_without_a_header(tmp_path):
    path = tmp_path / "a"
    path.write_text("1|x|a\n2|y|NULL\n")
    columns = ["id", "other", "name"]
    source = weir.Csv(
        str(path),
        schema=SCHEMA,
        header=False,
        columns=columns,
        delimiter="|",
        null_values=["NULL"],
        quote=None,
    )
    assert [row["name"] for row in read(source)["rows"]] == ["a", None]


@pytest.mark.parametrize("events", [1, 7, 50, 1000])
def test_a_limit_counts_records_and_not_lines(tmp_path, events):
    for part in range(3):
        with open(tmp_path / f"{part}.csv", "w", newline="") as file:
            rows = [(n, "a\nb\nc" if n % 2 else None) for n in range(10 * (part + 1))]
            csv.writer(file).writerows([("id", "name"), *rows])
    result = read(weir.Csv(str(tmp_path), schema=SCHEMA, events=events), parallelism=2)
    assert len(result["rows"]) == min(events, 60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ident,name\n", "there is no column id, only ident, name"),
        ("id,name,id\n", "column id is there twice"),
        ('"id\n', "the header cannot be read: a quote is not closed"),
    ],
)
def test_a_header_that_does_not_go_with_the_schema(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read(weir.Csv(str(tmp_path), schema=SCHEMA))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delimiter": ""}, "delimiter is ''; it must be one ASCII character"),
        ({"delimiter": "\n"}, "delimiter is"),
        ({"delimiter": "5"}, "delimiter is"),
        ({"delimiter": '"'}, "quote and delimiter are both"),
        ({"quote": "''"}, "quote is"),
        ({"header": "yes"}, "header is 'yes'"),
        ({"columns": ["id", "name"]}, "give header=False"),
        ({"header": False, "columns": ["id"]}, "'name' of the schema is not among id"),
        ({"null_values": "NULL"}, "null_values is 'NULL'; give a list"),
        ({"line_bytes_max": 0}, "line_bytes_max is 0"),
        ({"schema": {"id": pl.List(pl.Int64)}}, "column 'id': a field of CSV cannot be list"),
        ({"path": ""}, "path is ''"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(GraphError, match=message):
        flow_of(weir.Csv(**{"path": "in", "schema": SCHEMA, **settings}))
