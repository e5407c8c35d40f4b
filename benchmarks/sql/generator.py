"""Queries over the tables of the judge, made up from a seed.

``python -m benchmarks.sql.generator 300 7 > tests/weir/sql/made_up.slt`` freezes so many different ones of a seed.
"""

from __future__ import annotations

import random
import sys

from benchmarks.sql.judge import Record, for_duckdb

_COLUMNS = {
    "t": {"id": "n", "k": "s", "a": "n", "b": "n", "x": "n", "f": "c"},
    "u": {"id": "n", "k": "s", "c": "n"},
}


def made_up(seed: int) -> Record:
    """A query and what DuckDB is asked in its place."""
    chance = random.Random(f"query-{seed}")
    kind = chance.choice(
        (
            _rows,
            _rows,
            _groups,
            _groups,
            _windows,
            _windows,
            _joins,
            _places,
            _distinct,
            _existing,
            _ranked,
            _ranked_results,
            _over,
            _over,
            _nested,
            _union,
            _lookups,
        )
    )
    text = kind(chance)
    return Record(f"seed {seed}", text, for_duckdb(text), "made up")


class _Values:
    """Expressions over the columns of a table."""

    def __init__(self, chance: random.Random, table: str, prefix: str = "") -> None:
        self.chance, self.prefix, self.columns = chance, prefix, _COLUMNS[table]

    def column(self, kind: str) -> str:
        """A column of numbers (n), texts (s) or truth (c)."""
        return self.prefix + self.chance.choice([name for name, each in self.columns.items() if each == kind])

    def number(self, depth: int = 2, *, whole: bool = False) -> str:
        """A number."""
        chance = self.chance
        if not depth or chance.random() < 0.3:
            name = self.column("n")
            if whole and name.endswith("x"):
                name = f"{self.prefix}id"
            return name if chance.random() < 0.7 else str(chance.randrange(-5, 9))
        one, other = self.number(depth - 1, whole=whole), self.number(depth - 1, whole=whole)
        return chance.choice(
            (
                f"({one} + {other})",
                f"({one} - {other})",
                f"({one} * {chance.randrange(1, 4)})",
                f"ABS({one})",
                f"COALESCE({one}, {other})",
                f"NULLIF({one}, {other})",
                f"GREATEST({one}, {other})",
                f"CASE WHEN {self.truth(depth - 1)} THEN {one} ELSE {other} END",
                f"LENGTH({self.text(depth - 1)})",
                f"({self.prefix}id / {chance.randrange(1, 5)})",
                f"(({self.prefix}id - 20) % {chance.randrange(1, 7)})",
            )
        )

    def text(self, depth: int = 1) -> str:
        """A text."""
        name = self.column("s")
        if not depth:
            return name
        chance = self.chance
        return chance.choice(
            (
                name,
                f"UPPER({name})",
                f"({name} || '-' || LOWER({name}))",
                f"SUBSTRING({name}, {chance.randrange(1, 4)}, {chance.randrange(0, 3)})",
                f"REPLACE({name}, 'n', '')",
                f"CASE WHEN {self.truth(0)} THEN {name} END",
                f"COALESCE({name}, 'none')",
            )
        )

    def truth(self, depth: int = 2) -> str:
        """A condition."""
        chance = self.chance
        if not depth:
            name = self.column("n")
            return chance.choice(
                (f"{name} > {chance.randrange(-5, 5)}", f"{self.column('s')} LIKE '%n%'", f"{name} IS NULL")
            )
        one, other = self.truth(depth - 1), self.truth(depth - 1)
        return chance.choice(
            (
                f"({one} AND {other})",
                f"({one} OR {other})",
                f"NOT ({one})",
                f"{self.number(1)} >= {self.number(1)}",
                f"{self.column('n')} BETWEEN {chance.randrange(-6, 1)} AND {chance.randrange(1, 7)}",
                f"{self.column('s')} IN ('ann', 'bob', '')",
                f"{self.column('n')} IS DISTINCT FROM {self.column('n')}",
            )
        )

    def aggregate(self) -> str:
        """An aggregate that takes rows back, of whole numbers so that the order of rows does not count."""
        name = self.number(1, whole=True)
        made = self.chance.choice(
            ("COUNT(*)", f"COUNT({name})", f"SUM({name})", f"MIN({name})", f"MAX({name})", f"AVG({name})")
        )
        return f"{made} FILTER (WHERE {self.truth(1)})" if self.chance.random() < 0.3 else made


def _rows(chance: random.Random) -> str:
    of = _Values(chance, "t")
    where = f" WHERE {of.truth()}" if chance.random() < 0.7 else ""
    return f"SELECT id, {of.number()} AS n, {of.text()} AS s, {of.truth(1)} AS c FROM t{where}"


def _groups(chance: random.Random) -> str:
    of = _Values(chance, "t")
    group = chance.choice(("k", "f", "id % 4", "UPPER(k)", "k, f"))
    having = f" HAVING COUNT(*) > {chance.randrange(1, 6)}" if chance.random() < 0.4 else ""
    where = f" WHERE {of.truth()}" if chance.random() < 0.5 else ""
    two = _percentile(of) if chance.random() < 0.3 else of.aggregate()
    values = f"{of.aggregate()} AS one, {two} AS two, COUNT(*) AS n"
    return f"SELECT {values} FROM t{where} GROUP BY {group}{having}"


def _percentile(of: _Values) -> str:
    """A percentile, of numbers of either type."""
    share = of.chance.choice(("0.5", "0.9", "0", "1", "0.25"))
    value = of.number(1)
    return of.chance.choice(
        (
            f"PERCENTILE_CONT({share}) WITHIN GROUP (ORDER BY {value})",
            f"PERCENTILE_DISC({share}) WITHIN GROUP (ORDER BY {value})",
            f"MEDIAN({value})",
        )
    )


def _lookups(chance: random.Random) -> str:
    left, right = _Values(chance, "t", "t."), _Values(chance, "u", "u.")
    how = chance.choice(("JOIN", "LEFT JOIN"))
    on = chance.choice(("t.k = u.k", "t.a = u.c", "t.id = u.id", "u.id = t.id * 2", "u.c = t.a + 1"))
    more = ""
    if how == "JOIN":
        more = chance.choice(
            (
                "",
                f" WHERE {left.truth(1)}",
                f" AND {left.number(1)} < {right.number(1)}",
                f" AND {right.truth(1)}",
            )
        )
    table = "u FOR SYSTEM_TIME AS OF PROCTIME()"
    joined = f"SELECT t.id, t.k, u.id AS other, u.c, t.a FROM t {how} {table} ON {on}{more}"
    if chance.random() < 0.4:
        return f"SELECT k, COUNT(*) AS n, SUM(c) AS s, COUNT(other) AS m FROM ({joined}) GROUP BY k"
    return joined


def _windows(chance: random.Random) -> str:
    of = _Values(chance, "t")
    window = chance.choice(
        ("TUMBLE(t, ts, INTERVAL '4' SECOND)", "HOP(t, ts, INTERVAL '2' SECOND, INTERVAL '6' SECOND)")
    )
    where = f" WHERE {of.truth(1)}" if chance.random() < 0.5 else ""
    key = chance.choice(("k, ", "f, ", ""))
    return (
        f"SELECT {key}window_start, {of.aggregate()} AS one, {of.aggregate()} AS two FROM {window}{where} "
        f"GROUP BY {key}window_start, window_end"
    )


def _joins(chance: random.Random) -> str:
    left, right = _Values(chance, "t", "t."), _Values(chance, "u", "u.")
    on = chance.choice(("t.k = u.k", "t.a = u.c", "t.id = u.id", "t.id = u.c + 20"))
    how = chance.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
    more = ""
    if how == "JOIN":
        more = chance.choice(
            ("", f" WHERE {left.truth(1)}", f" AND {left.number(1)} < {right.number(1)}",
             " AND u.ts BETWEEN t.ts - INTERVAL '2' SECOND AND t.ts + INTERVAL '4' SECOND")
        )  # fmt: skip
    return f"SELECT t.id, u.id AS other, t.k, u.c FROM t {how} u ON {on}{more}"


def _places(chance: random.Random) -> str:
    of = _Values(chance, "t")
    order = chance.choice(("id", "id DESC", "id * 3 - 1 DESC"))
    part = chance.choice(("PARTITION BY k ", "PARTITION BY f, k ", "PARTITION BY id % 3 ", ""))
    inner = f"SELECT *, ROW_NUMBER() OVER ({part}ORDER BY {order}) AS r FROM t WHERE {of.truth(1)}"
    what = chance.choice(("k, id, a", "k, id, r"))
    return f"SELECT {what} FROM ({inner}) WHERE r <= {chance.randrange(1, 4)}"


def _distinct(chance: random.Random) -> str:
    of = _Values(chance, "t")
    return f"SELECT DISTINCT k, {of.number(1, whole=True)} AS n FROM t WHERE {of.truth(1)}"


def _existing(chance: random.Random) -> str:
    of = _Values(chance, "u", "u.")
    word = chance.choice(("EXISTS", "NOT EXISTS"))
    on = chance.choice(("u.k = t.k", "u.c = t.a", "u.id = t.id"))
    return f"SELECT id, k FROM t WHERE {word} (SELECT 1 FROM u WHERE {on} AND {of.truth(1)})"


def _order(chance: random.Random, columns: tuple[str, ...], last: str) -> str:
    """Some columns, each with a direction; the last one is different in every row."""
    chosen = chance.sample(columns, chance.randrange(1, 3))
    parts = [
        f"{each}{chance.choice(('', ' DESC', ' NULLS FIRST', ' DESC NULLS FIRST', ' DESC NULLS LAST'))}"
        for each in chosen
    ]
    return ", ".join([*parts, f"{last}{chance.choice(('', ' DESC'))}"])


def _ranked(chance: random.Random) -> str:
    of = _Values(chance, "t")
    columns = ("k", "a", "b", "x", "f", "a % 3", "UPPER(k)", "a > 0", "x - a")
    part = chance.choice(("PARTITION BY k ", "PARTITION BY f, k ", "PARTITION BY id % 4 ", ""))
    inner = f"SELECT *, ROW_NUMBER() OVER ({part}ORDER BY {_order(chance, columns, 'id')}) AS r FROM t"
    where = f" WHERE {of.truth(1)}" if chance.random() < 0.5 else ""
    what = chance.choice(("k, id, a", "id, r", "x, id, r, f"))
    return f"SELECT {what} FROM ({inner}{where}) WHERE r <= {chance.randrange(1, 6)}"


def _ranked_results(chance: random.Random) -> str:
    of = _Values(chance, "t")
    window = chance.choice(
        ("TUMBLE(t, ts, INTERVAL '8' SECOND)", "HOP(t, ts, INTERVAL '4' SECOND, INTERVAL '8' SECOND)", "")
    )
    value = of.aggregate()
    if not window:
        inner = f"SELECT k, f, COUNT(*) AS n, {value} AS v FROM t GROUP BY k, f"
        part = chance.choice(("", "PARTITION BY f "))
        order = _order(chance, ("n", "v"), "k") + ", f"
    else:
        inner = (
            f"SELECT k, f, window_end, COUNT(*) AS n, {value} AS v FROM {window} "
            "GROUP BY k, f, window_start, window_end"
        )
        part = chance.choice(("PARTITION BY window_end ", "PARTITION BY window_end, f "))
        order = _order(chance, ("n", "v"), "k") + ", f"
    places = f"SELECT *, ROW_NUMBER() OVER ({part}ORDER BY {order}) AS r FROM ({inner})"
    end = ", window_end" if window else ""
    return f"SELECT k, f, n, r{end} FROM ({places}) WHERE r <= {chance.randrange(2, 5)}"


def _over(chance: random.Random) -> str:
    of = _Values(chance, "t")
    part = chance.choice(("PARTITION BY k ", "PARTITION BY f ", "PARTITION BY id % 3, f ", ""))

    def function() -> str:
        value = of.number(1, whole=True)
        if chance.random() < 0.3:
            column = chance.choice(("a", "k", "f", "x", "ts", value))
            more = chance.choice(("", f", {chance.randrange(1, 5)}"))
            return f"LAG({column}{more}) OVER ({part}ORDER BY ts)"
        functions = ("COUNT", "SUM", "MIN", "MAX", "AVG")
        made = chance.choice(("COUNT(*)", *(f"{each}({value})" for each in functions), "SUM(x)", "MAX(x)"))
        frame = chance.choice(
            (
                "",
                " ROWS UNBOUNDED PRECEDING",
                f" ROWS BETWEEN {chance.randrange(0, 6)} PRECEDING AND CURRENT ROW",
                f" RANGE BETWEEN INTERVAL '{chance.randrange(1, 9)}' SECOND PRECEDING AND CURRENT ROW",
                " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            )
        )
        where = f" FILTER (WHERE {of.truth(1)})" if chance.random() < 0.2 else ""
        return f"{made}{where} OVER ({part}ORDER BY ts{frame})"

    where = f" WHERE {of.truth(1)}" if chance.random() < 0.5 else ""
    return f"SELECT id, {function()} AS one, {function()} AS two FROM t{where}"


def _nested(chance: random.Random) -> str:
    of = _Values(chance, "t")
    inner = f"SELECT id, k, {of.number(1, whole=True)} AS v, {of.truth(1)} AS c FROM t"
    outer = chance.choice(
        (
            "SELECT k, SUM(v) AS s, COUNT(*) FILTER (WHERE c) AS n FROM ({}) GROUP BY k",
            "SELECT c, MIN(v) AS low, MAX(id) AS high FROM ({}) WHERE v IS NOT NULL GROUP BY c",
            "SELECT x.id, u.c FROM ({}) x JOIN u ON x.v = u.c",
            "SELECT DISTINCT v, c FROM ({})",
            "SELECT n, COUNT(*) AS m FROM (SELECT v, COUNT(*) AS n FROM ({}) GROUP BY v) GROUP BY n",
        )
    )
    return outer.format(inner)


def _union(chance: random.Random) -> str:
    left, right = _Values(chance, "t"), _Values(chance, "u")
    word = chance.choice(("UNION ALL", "UNION"))
    one = f"SELECT k, {left.number(1, whole=True)} AS n FROM t WHERE {left.truth(1)}"
    return f"{one} {word} SELECT k, {right.number(1, whole=True)} FROM u WHERE {right.truth(1)}"


def frozen(count: int, seed: int) -> str:
    """So many different queries, as a file of the judge has them."""
    found: dict[str, None] = {}
    number = 0
    while len(found) < count:
        found.setdefault(made_up(seed * 1_000_000 + number).text)
        number += 1
    head = f"# Made up: python -m benchmarks.sql.generator {count} {seed}\n"
    return head + "".join(f"\nquery made up {at}\n{text}\n" for at, text in enumerate(found, start=1))


if __name__ == "__main__":
    print(frozen(int(sys.argv[1]), int(sys.argv[2])), end="")
