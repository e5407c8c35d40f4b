"""The prompt's session: files as tables, declarations that stay, order and limits, plans, messages."""

import json

import polars as pl
import pytest

from weir.console.sql_prompt import run_text
from weir.errors import WeirError
from weir.sql.session import Session

ROWS = [{"id": n, "who": "ab"[n % 2], "price": n * 10 if n != 4 else None} for n in range(7)]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pl.DataFrame(ROWS)
    frame.write_parquet("orders.parquet")
    frame.write_csv("orders.csv")
    frame.write_ipc("orders.arrow")
    (tmp_path / "orders.txt").touch()
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def _frames(text, session=None):
    return [each.frame for each in (session or Session()).run(text) if each.frame is not None]


@pytest.mark.parametrize("name", ["orders.parquet", "orders.csv", "orders.jsonl", "orders.arrow"])
def test_files_are_tables(directory, name):
    (found,) = _frames(f"SELECT id, price FROM '{name}' WHERE who = 'a' ORDER BY price DESC, id LIMIT 3")
    assert found.rows() == [(6, 60), (2, 20), (0, 0)]


def test_groups_are_shown_as_the_table_that_they_are(directory):
    (found,) = _frames(
        "SELECT who, COUNT(*) AS n, SUM(price) AS s FROM 'orders.jsonl' GROUP BY who ORDER BY 1"
    )
    assert found.rows() == [("a", 4, 80), ("b", 3, 90)]


def test_what_is_declared_stays_and_may_be_declared_anew(directory):
    session = Session()
    text = (
        "CREATE SOURCE t (id BIGINT, who VARCHAR) WITH (connector = 'json', path = 'orders.jsonl');"
        "CREATE VIEW v AS SELECT who, id FROM t WHERE id > {};"
    )
    assert [each.message for each in session.run(text.format(4))] == ["source t", "view v"]
    assert _frames("SELECT * FROM v ORDER BY id", session)[0].rows() == [("b", 5), ("a", 6)]
    list(session.run("CREATE VIEW v AS SELECT who, id FROM t WHERE id > 5"))
    assert _frames("SELECT v.id, o.price FROM v JOIN 'orders.csv' AS o ON v.id = o.id", session)[
        0
    ].rows() == [(6, 60)]


def test_a_limit_without_an_order_ends_early(directory):
    (found,) = _frames("(SELECT id FROM 'orders.parquet') LIMIT 2 OFFSET 1")
    assert found.height == 2


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        ("ORDER BY 1 / 0, id DESC LIMIT 1", [(6,)]),
        ("ORDER BY NULL, id LIMIT 1", [(0,)]),
        ("ORDER BY id OFFSET 99999999999999999999", []),
        ("ORDER BY id LIMIT 99999999999999999999 OFFSET 6", [(6,)]),
    ],
)
def test_constants_order_nothing_and_bounds_may_be_beyond_all_rows(directory, end, rows):
    (found,) = _frames(f"SELECT id FROM 'orders.parquet' {end}")
    assert found.rows() == rows


def test_a_plan_is_drawn_and_nothing_runs(directory):
    (answer,) = Session().run("EXPLAIN SELECT who, COUNT(*) AS n FROM 'orders.jsonl' GROUP BY who")
    assert any(node.spec.kind == "changelog_aggregate" for node in answer.graph.nodes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT x FROM 'orders.csv'", "SQL:1:8: there is no column 'x'"),
        ("SELECT id FROM 'order.csv'", "; did you mean 'orders.csv'?"),
        ("SELECT id FROM nothing", "SQL:1:16: there is no source or view 'nothing'"),
        ("SELECT id FROM 'orders.csv' ORDER BY y", "SQL:1:38: there is no column 'y'"),
        ("SELECT id FROM 'orders.csv' ORDER BY price", "; ORDER BY takes columns of the result"),
        ("SELECT id FROM 'orders.txt'", "SQL:1:16: 'orders.txt' is no table; files of tables end in .parquet, .csv"),
        ("SELECT * FROM state/totals/n", "; names of files and states are in quotes: 'state/totals/n'"),
        ("SELECT * FROM in/0.jsonl LIMIT 3", "; names of files and states are in quotes: 'in/0.jsonl'"),
        ("SELECT * FROM ./orders.csv o", "; names of files and states are in quotes: './orders.csv'"),
        ("SELECT id FROM t JOIN 1.csv ON TRUE", "; names of files and states are in quotes: '1.csv'"),
        ("SELECT id FROM orders.csv", "SQL:1:16: names of files and states are in quotes: 'orders.csv'"),
        ("SELECT id FROM shop.orders", "SQL:1:16: tables have one name here, without 'shop' before it"),
        ("SELECT id FROM 'orders.csv' ORDER BY 3", "SELECT has 1 columns"),
        ("SELECT id FROM 'orders.csv' LIMIT id", "LIMIT takes a whole number"),
        ("SELECT who FROM 'orders.csv' ORDER BY CAST(who AS BIGINT)", "SQL:1:44: ORDER BY cannot be computed"),
        ("SELECT who FROM 'orders.csv' ORDER BY REGEXP_LIKE(who, '(')", "SQL:1:56: '(' is no regular expression"),
        ("SELECT * FROM 'state/totals'", "a state is 'state/STEP/STATE'"),
        ("CREATE SINK o WITH (connector = 'print') AS SELECT 1", "SQL:1:1: the prompt answers queries"),
        ("EXPLAIN", "EXPLAIN takes a query"),
        ("SHOW TABLE", "SQL:1:1: SHOW is SHOW TABLES"),
        ("DROP TABLE t", "SQL:1:1: there is no statement DROP TABLE"),
        ("SELECT id FROM (SELECT id FROM 'orders.csv' LIMIT 2)", "LIMIT is not there"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(directory, text, words):
    with pytest.raises(WeirError) as told:
        list(Session().run(text))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_records_that_cannot_be_read_are_told(directory):
    (directory / "bad.jsonl").write_text('{"id": 1}\n{"id": 2}\nnothing\n' + '{"id": 3}\n' * 200)
    session = Session()
    list(session.run("CREATE SOURCE t (id BIGINT) WITH (connector = 'json', path = 'bad.jsonl')"))
    (answer,) = session.run("SELECT COUNT(*) AS n FROM t")
    assert answer.frame.rows() == [(202,)]
    assert answer.notes[0].startswith("1 records could not be read")


def test_a_table_of_rows_controls_no_terminal(directory, capsys):
    (directory / "bad.jsonl").write_text('{"who": "\\u001b[2Jx"}\n')
    assert run_text(Session(), "SELECT who FROM 'bad.jsonl'", "text", "table", 10) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\\x1b[2Jx" in told


def test_a_part_of_a_result_is_told(directory):
    rows = 300_000
    pl.DataFrame({"id": range(rows)}).write_csv("many.csv")
    (answer,) = Session(for_s=0.0).run("SELECT id FROM 'many.csv'")
    assert answer.frame.height < rows
    assert "a part of the result" in answer.notes[0]
