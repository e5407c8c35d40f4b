"""CREATE FUNCTION: functions of Python in texts."""

import json
import sys

import polars as pl
import pytest

import weir
from weir.errors import GraphError
from weir.sql.program import build_program

_MODULE = """
import pyarrow as pa
import pyarrow.compute as pc
import polars as pl

def score(price: int | None, who: str | None) -> float | None:
    return None if price is None else price / 2 + len(who or "")

def doubled(price: pl.Series):
    return price * 2

def untold(price):
    return price

def short(price: pl.Series):
    return price.head(1)

def wrong(price: int) -> int:
    return "x"

def fails(price: int) -> int:
    raise LookupError("no such price")

def plus_one(price: pa.Array):
    return pc.add(price, 1)

def too_few(price: pa.Array):
    return price.slice(1)

def no_array(price: pa.Array):
    return price.to_pylist()
"""
_HEAD = "CREATE SOURCE t (id BIGINT NOT NULL, who VARCHAR, price BIGINT) WITH (connector = 'json', path = '{path}');\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "functions_of_test.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "functions_of_test", raising=False)
    rows = [{"id": n, "who": "ann" if n % 2 else None, "price": n if n != 3 else None} for n in range(6)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def _run(directory, functions, query):
    text = _HEAD.format(path=directory / "in.jsonl") + functions
    text += f"\nCREATE SINK o WITH (connector = 'collect') AS {query};"
    return weir.run(build_program("x.sql", text, "x"))["o"].to_polars()


def test_values_come_from_python(module):
    functions = (
        "CREATE FUNCTION score AS 'functions_of_test:score';\n"
        "CREATE FUNCTION doubled RETURNS BIGINT AS 'functions_of_test:doubled';\n"
    )
    found = _run(
        module,
        functions,
        "SELECT id, score(price, who) AS s, doubled(doubled(price)) + 1 AS d FROM t WHERE doubled(id) > 2",
    )
    assert found.sort("id").rows() == [(2, 1.0, 9), (3, None, None), (4, 2.0, 17), (5, 5.5, 21)]
    grouped = _run(module, functions, "SELECT who, SUM(doubled(price)) AS s FROM t GROUP BY who")
    kept = grouped.filter(pl.col("_change").is_in(["insert", "update_after"])).group_by("who").last()
    assert sorted(kept.select("who", "s").rows(), key=str) == [("ann", 12), (None, 12)]
    over = _run(
        module,
        functions,
        "SELECT id, d FROM (SELECT id, doubled(price) AS d FROM t) WHERE d >= 8",
    )
    assert sorted(over.rows()) == [(4, 8), (5, 10)]


def test_arrow_arrays_come_from_python(module):
    function = "CREATE FUNCTION f RETURNS BIGINT AS 'functions_of_test:{}';"
    found = _run(module, function.format("plus_one"), "SELECT id, f(price) AS p FROM t WHERE f(id) > 3")
    assert found.sort("id").rows() == [(3, None), (4, 5), (5, 6)]
    for name, words in (
        ("too_few", "returned 5 values for 6 rows"),
        ("no_array", "returned list for 6 rows"),
    ):
        with pytest.raises(
            weir.WeirError, match=rf"F\(id\) {words}; it must return an Arrow array of as many"
        ):
            _run(module, function.format(name), "SELECT f(id) AS x FROM t")


@pytest.mark.parametrize(
    ("target", "query", "words"),
    [
        (
            "f AS 'functions_of_test:scor'",
            "id",
            "2:22: module 'functions_of_test' has no function 'scor'; did you",
        ),
        ("f AS 'no_such_module:f'", "id", "2:22: there is no module 'no_such_module'"),
        ("f AS 'score'", "id", "write 'module:function'"),
        (
            "f AS 'functions_of_test:untold'",
            "id",
            "nothing says what f returns; write CREATE FUNCTION f RETURNS",
        ),
        ("f AS 'functions_of_test:doubled'", "id", "nothing says what f returns"),
        ("upper AS 'functions_of_test:score'", "id", "UPPER is a function of SQL"),
        ("f AS 'functions_of_test:score'", "f(id) AS x", "f takes 2 values, not 1"),
        ("f(a BIGINT) AS 'functions_of_test:score'", "id", "takes no list of arguments"),
        ("f AS 'os:path'", "id", "module 'os' has no function 'path'"),
    ],
)
def test_mistakes_are_told_with_their_place(module, target, query, words):
    with pytest.raises(GraphError) as told:
        _run(module, f"CREATE FUNCTION {target};", f"SELECT {query} FROM t")
    assert words in str(told.value)
    assert str(told.value).startswith("x.sql:")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_raises_is_told_with_its_line(module, monkeypatch, line, words):
    (module / "raises_of_test.py").write_text(f"import os\n\n{line}\n")
    monkeypatch.delitem(sys.modules, "raises_of_test", raising=False)
    with pytest.raises(GraphError) as told:
        _run(module, "CREATE FUNCTION f AS 'raises_of_test:f';", "SELECT id FROM t")
    assert words in str(told.value)
    assert "raises_of_test.py, line 3)" in str(told.value)


def test_a_call_in_on_is_refused(module):
    function = "CREATE FUNCTION f AS 'functions_of_test:score';"
    with pytest.raises(GraphError, match=r"f\(\) in ON is not there"):
        _run(module, function, "SELECT t.id FROM t JOIN t AS s ON f(t.id, t.who) = s.id")


@pytest.mark.parametrize(
    ("name", "words"),
    [("short", "for 6 rows"), ("wrong", "no BIGINT"), ("fails", "function f raised LookupError")],
)
def test_what_a_function_does_wrong_is_told(module, name, words):
    returns = " RETURNS BIGINT" if name == "short" else ""
    with pytest.raises(weir.WeirError, match=words):
        _run(module, f"CREATE FUNCTION f{returns} AS 'functions_of_test:{name}';", "SELECT f(id) AS x FROM t")
