"""What is told of a text that is no SQL: where, what is expected there, and which word was meant."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

#: Words that a query consists of, beside names.
KEYWORDS = (
    *(
        "ALL",
        "AND",
        "ANTI",
        "AS",
        "BETWEEN",
        "BY",
        "CASE",
        "CAST",
        "CROSS",
        "DESC",
        "DISTINCT",
        "ELSE",
        "EMIT",
        "END",
        "ESCAPE",
    ),
    *(
        "EXCLUDE",
        "EXISTS",
        "FALSE",
        "FILTER",
        "FROM",
        "FULL",
        "GROUP",
        "HAVING",
        "ILIKE",
        "IN",
        "INNER",
        "INTERVAL",
    ),
    *(
        "IS",
        "JOIN",
        "LEFT",
        "LIKE",
        "LIMIT",
        "NOT",
        "NULL",
        "NULLS",
        "ON",
        "OR",
        "ORDER",
        "OUTER",
        "OVER",
        "PARTITION",
    ),
    *(
        "PRECEDING",
        "QUALIFY",
        "RANGE",
        "RIGHT",
        "ROWS",
        "SELECT",
        "SEMI",
        "THEN",
        "TRUE",
        "TRY_CAST",
        "UNBOUNDED",
    ),
    *("UNION", "USING", "WHEN", "WHERE", "WITH", "WITHIN"),
)
#: Words that sqlglot reads with their BY, and alone where it is not there.
_BEFORE_BY = ("GROUP", "ORDER", "PARTITION")
#: Words of a table with its alias, and of a column behind it, from JOIN on.
_JOIN_WORDS_MAX = 6
#: Where the wrong word is, from where sqlglot noticed.
_NEAR = (0, -1, 1, -2)


def meant(word: str, known: Iterable[str] = KEYWORDS) -> str:
    """``"; did you mean 'FROM'?"`` of a word that is nearly one of some; "": it is near to none."""
    upper, names = word.upper(), {each.upper(): each for each in known}
    if upper in names:
        return ""
    near = [each for each in names if sorted(each) == sorted(upper)]
    if len(upper) == 2:
        # So few letters are like many words.
        names = {each: name for each, name in names.items() if each[0] == upper[0] or each in near}
    near += difflib.get_close_matches(upper, names, n=1, cutoff=0.66)
    if len(upper) == 2:
        near += [each for each in names if len(each) == 2 and each[0] == upper[0]]
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def in_place_of(word: str, near: str) -> str:
    """What :func:`meant` returned of a word that is elsewhere than the message."""
    return near.replace("?", f" in place of {word!r}?")


def refusal(error: SqlglotError, tokens: Sequence[Token], text: str) -> tuple[str, int]:
    """What is said of an error of sqlglot, and its place.

    Args:
        error: of the tokens.
        tokens: of a statement, or of a part of it.
        text: the whole text: a word that is there twice is a name, and not a mistake.
    """
    for each in getattr(error, "errors", []):
        line, column, near = each.get("line"), each.get("col"), each.get("highlight") or ""
        place = next(
            (n for n, token in enumerate(tokens) if token.line == line and token.col == column), None
        )
        number = len(tokens) - 1 if place is None else place
        wrong = _no_semicolon(tokens, number) or _no_quotes(tokens, number, text)
        wrong = wrong or _wrong_word(tokens, number, text)
        if not wrong and (told := _case_without_when(tokens, number)):
            return told
        what = _words(str(each.get("description") or ""), near or tokens[number].text)
        start = tokens[number].end if place is None else tokens[number].start
        hint = wrong or _no_by(tokens, number) or _no_on(tokens, number)
        return f"syntax: {what}{hint}", int(start)
    return "syntax: this is no SQL", int(tokens[0].start)


def _words(description: str, near: str) -> str:
    """What sqlglot says, without the names of its classes."""
    told = description.split("\n")[0].rstrip(".")
    if "missing for <class" in told or "but got <Token" in told:
        what = "a table" if "table name" in told else "something"
        return f"{what} is missing after {near!r}"
    if not told or "Unexpected token" in told:
        return f"{near!r} is not expected here"
    return f"{re.sub('<[^>]*>', '', told)}, near {near!r}"


def _no_semicolon(tokens: Sequence[Token], number: int) -> str:
    """What is told of a statement that begins within another one."""
    begins = tokens[number].text.upper() in ("CREATE", "INSERT") and number > 0
    return "; a semicolon is missing before it" if begins else ""


def _no_quotes(tokens: Sequence[Token], number: int, text: str) -> str:
    """What is told of ``FROM in/orders.jsonl``."""
    first = last = number
    while first > 0 and tokens[first - 1].end + 1 == tokens[first].start:
        first -= 1
    while last + 1 < len(tokens) and tokens[last].end + 1 == tokens[last + 1].start:
        last += 1
    name = text[tokens[first].start : tokens[last].end + 1]
    is_path = re.fullmatch(r"[\w./*?-]*[/.][\w./*?-]*", name) is not None
    follows = first > 0 and tokens[first - 1].text.upper() in ("FROM", "JOIN")
    return f"; {quotes_missing(name)}" if is_path and follows else ""


def quotes_missing(name: str) -> str:
    """What is told of a file, or a state, that is called as if it were a source."""
    return f"names of files and states are in quotes: '{name}'"


def _no_by(tokens: Sequence[Token], number: int) -> str:
    """What is told of ``GROUP who``."""
    found = next(
        (each for each in tokens[max(number - 1, 0) : number + 1] if each.text.upper() in _BEFORE_BY), None
    )
    return "" if found is None else f"; BY is missing after {found.text!r}"


def _case_without_when(tokens: Sequence[Token], number: int) -> tuple[str, int] | None:
    """What is told of ``CASE price ELSE 1 END``, and where it begins."""
    message = "syntax: WHEN is missing after CASE: CASE WHEN a > 1 THEN b ELSE c END"
    begun: list[tuple[int, bool]] = []
    for token in tokens[: number + 1]:
        kind = token.token_type
        if kind is TokenType.CASE:
            begun.append((int(token.start), False))
        elif begun and kind is TokenType.WHEN:
            begun[-1] = (begun[-1][0], True)
        elif begun and kind is TokenType.END:
            start, has_when = begun.pop()
            if not has_when:
                return message, start
    return (message, begun[-1][0]) if begun and not begun[-1][1] else None


def _no_on(tokens: Sequence[Token], number: int) -> str:
    """What is told of ``JOIN b a.k = b.k``."""
    begin = max(0, number - _JOIN_WORDS_MAX)
    words = [each.token_type for each in tokens[begin:number]]
    if TokenType.JOIN not in words:
        return ""
    start = len(words) - words[::-1].index(TokenType.JOIN)
    if not words[start:] or {TokenType.ON, TokenType.USING} & {*words[start:]}:
        return ""
    return f"; ON is missing after JOIN {tokens[begin + start].text}"


def _wrong_word(tokens: Sequence[Token], number: int, text: str) -> str:
    counts = Counter(re.findall(r"\w+", text.upper()))
    for step in _NEAR:
        if not 0 <= number + step < len(tokens):
            continue
        token = tokens[number + step]
        if token.token_type is TokenType.VAR and counts[token.text.upper()] < 2:
            found = meant(token.text)
            if found:
                return in_place_of(token.text, found) if step else found
    return ""
