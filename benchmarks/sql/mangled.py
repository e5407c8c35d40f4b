"""Further mistakes in texts of SQL: cut within a token, doubled clauses, open quotes, settings, very long texts, names.

Beside ``mutations``, which takes words away, doubles and swaps them. ``python -m benchmarks sql --mutations 4000`` has
both.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

_WIDE = Path(__file__).with_name("wide.sql")

_CLAUSES = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP BY",
    "HAVING",
    "JOIN",
    "LEFT JOIN",
    "ON",
    "WITH",
    "AS",
    "OVER",
    "ORDER BY",
)
_CLAUSE = rf"\b(?:{'|'.join(_CLAUSES)}|PARTITION BY|FILTER)\b"
_VALUES = (
    "", " ", "0", "-1", "1.5", "1e400", "nan", "inf", "ten", "true", "NULL", "none", "²", "٣", "9" * 30, "9" * 5_000,
    "x" * 5_000, "a,b,,c", "[1]", "{}", "'", "/dev/null/x", "é", "\u202e", "\x00", "10 s", "1h", "PT1H", "localhost",
    "localhost:99999999", "LOCAL_ONE", "2026-02-30", "INTERVAL '1' DAY",
)  # fmt: skip
_NAMES = (
    "é", "naïve", "表", "имя", "🙂", "a\u200bb", "a\u00a0b", "\ufeffa", "Ⅷ", "ﬁ", "ß", "İ", "a" * 5_000, "1a", "_",
    "_change", "_event_time_ms", "window_start", "select", "a.b", "a b", "a-b", "a/b", "..", "a\tb", "a\x00b", "$a",
    "@a", "#a", "%s", "{0}", "\\n", "\u202ea",
)  # fmt: skip
#: Text that stands in place of an expression.
_LONG: tuple[Callable[[], str], ...] = (
    lambda: "(" * 2_000 + "1" + ")" * 2_000,
    lambda: "NOT " * 3_000 + "TRUE",
    lambda: " + ".join(["1"] * 5_000),
    lambda: " AND ".join(["1 = 1"] * 3_000),
    lambda: "ABS(" * 800 + "1" + ")" * 800,
    lambda: f"1 IN ({', '.join(map(str, range(5_000)))})",
    lambda: "CASE WHEN TRUE THEN " * 500 + "1" + " END" * 500,
    lambda: f"'{'x' * 200_000}'",
    lambda: "9" * 5_000,
    lambda: f"1.{'0' * 5_000}1",
    lambda: f"1e{'9' * 50}",
    lambda: f"CAST(1 AS DECIMAL({'9' * 30}, 2))",
    lambda: f"INTERVAL '{'9' * 40}' SECOND",
    lambda: "(SELECT " * 300 + "1" + ")" * 300,
    lambda: "-" * 1_001 + "1",
    lambda: "- " * 3_000 + "1",
)


def wide() -> str:
    """A text with most of what there is: each connector of files, tables that rows look up, joins, OVER, places."""
    return _WIDE.read_text("utf-8")


def mangled(text: str, seed: int) -> str:
    """The text with one mistake, by chance one of the kinds of this module."""
    chance = random.Random(f"mangled-{seed}")
    kind = chance.choice(
        (_cut, _cut, _doubled, _doubled, _quoted, _quoted, _setting, _setting, _named, _named, _long)
    )
    return kind(text, chance)


def _cut(text: str, chance: random.Random) -> str:
    """Ends within a token, or lacks a stretch."""
    place = chance.randrange(1, len(text))
    if chance.random() < 0.6:
        return text[:place]
    return text[:place] + text[place + chance.randrange(1, 200) :]


def _doubled(text: str, chance: random.Random) -> str:
    """A clause is there twice, or in another place."""
    starts = [found.start() for found in re.finditer(_CLAUSE, text)] + [len(text)]
    number = chance.randrange(len(starts) - 1)
    clause = text[starts[number] : starts[number + 1]]
    place = starts[number] if chance.random() < 0.6 else chance.choice(starts)
    return text[:place] + clause + " " + text[place:]


def _quoted(text: str, chance: random.Random) -> str:
    """A quote, a parenthesis or a comment too many, or too few."""
    sign = chance.choice(
        ("'", '"', "`", "(", ")", "/*", "*/", "--", "$$", "[", "]", "{", "}", ";", "\\", "''")
    )
    places = [found.start() for found in re.finditer(re.escape(sign[0]), text)]
    if places and chance.random() < 0.5:
        place = chance.choice(places)
        return text[:place] + text[place + 1 :]
    place = chance.randrange(len(text))
    return text[:place] + sign + text[place:]


def _setting(text: str, chance: random.Random) -> str:
    """A setting of WITH that is not there, of a wrong value, or twice."""
    settings = list(re.finditer(r"(\w+) = ('[^']*')", text))
    found = chance.choice(settings)
    kind = chance.randrange(4)
    if kind == 0:
        name = chance.choice((found[1] + "s", found[1][:-1], "no_such", chance.choice(_NAMES)))
        return text[: found.start(1)] + name + text[found.end(1) :]
    if kind == 1:
        return text[: found.end()] + ", " + found[0] + text[found.end() :]
    if kind == 2:
        other = chance.choice(settings)[0]
        return text[: found.start()] + other + text[found.end() :]
    value = chance.choice(_VALUES)
    quoted = value if chance.random() < 0.3 else f"'{value}'"
    return text[: found.start(2)] + quoted + text[found.end(2) :]


def _named(text: str, chance: random.Random) -> str:
    """A name everywhere or once another one, with or without quotes."""
    words = sorted(set(re.findall(r"\b[a-z_]+\b", text)))
    name = chance.choice(_NAMES)
    shown = chance.choice((name, f'"{name}"', f"`{name}`"))
    return re.sub(rf"\b{chance.choice(words)}\b", lambda _: shown, text, count=chance.choice((0, 1)))


def _long(text: str, chance: random.Random) -> str:
    """A very long or deep expression in place of a word, or very many columns or statements."""
    kind = chance.randrange(8)
    if kind == 0:
        return text.replace(
            "SELECT ", f"SELECT {', '.join(f'1 AS c{number}' for number in range(1_500))}, ", 1
        )
    if kind == 1:
        return "-- x\n" * 20_000 + text + "\n" * 20_000 + "x"
    if kind == 2:
        return text + "CREATE VIEW v AS SELECT 1 AS a FROM orders;\n" * 500
    words = list(re.finditer(r"\b(?:price|cents|amount|auction|TRUE|id|1)\b", text))
    found = chance.choice(words)
    return text[: found.start()] + chance.choice(_LONG)() + text[found.end() :]
